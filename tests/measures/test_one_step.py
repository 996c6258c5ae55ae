"""The one-step theory against simulated tokens, exact expectations and limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal.problems import without_shape_checks

from tl_geometry.measures.one_step import one_step_similarity
from tl_geometry.measures.similarity import token_similarity

BAR = 0.02


def attention(length: int, mixing: float, causal: bool) -> torch.Tensor:
    """Straight from the definition."""
    uniform = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        seen = i + 1 if causal else length
        uniform[i, :seen] = 1 / seen
    return (1 - mixing) * torch.eye(length, dtype=torch.float64) + mixing * uniform


def random_step(d: int, *, scale: float, mean: float, seed: int = 0):
    """A matrix with eigenvalues around ``scale``, a mean of about that length, a covariance of unit trace."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    W = scale * torch.eye(d, dtype=torch.float64) + 0.5 * normal(d, d) / d**0.5
    root = normal(d, d) / d
    mu = mean * normal(d) / d**0.5
    return W, mu, root, generator


def draw(mu, root, documents: int, length: int, generator) -> torch.Tensor:
    noise = torch.randn(documents, length, len(mu), generator=generator, dtype=torch.float64)
    return mu + noise @ root.T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("scale", [-1.0, 0.5, 1.5])
@pytest.mark.parametrize(("d", "length"), [(64, 4), (64, 24), (160, 60)])
def test_simulated_tokens(d, length, scale, mixing, causal):
    for mean in (0.0, 0.4):
        W, mu, root, generator = random_step(d, scale=scale, mean=mean, seed=length)
        x = draw(mu, root, 60, length, generator)
        y = x + attention(length, mixing, causal) @ x @ W
        expected = token_similarity(y, skip_first=False).mean()
        found = one_step_similarity(W, mu, root @ root.T, length, mixing=mixing, causal=causal)
        assert abs(found - expected) < BAR


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_simulated_tokens_behind_a_norm(norm, causal):
    """Moments of x and norm(x) are measured on other tokens than those that are mixed."""
    d, length = 96, 16
    W, mu, root, generator = random_step(d, scale=0.8, mean=0.6, seed=3)
    gain = torch.rand(d, generator=generator, dtype=torch.float64) + 0.5

    def normed(x):
        centered = x - x.mean(-1, keepdim=True) if norm == "layer" else x
        return centered / centered.square().mean(-1, keepdim=True).sqrt() * gain * 0.3

    sample = draw(mu, root, 1, 4000, generator)[0]
    u = normed(sample)
    center, center_u = sample.mean(0), u.mean(0)
    moments = {
        "normed_mean": center_u,
        "normed_covariance": torch.cov(u.T),
        "cross_covariance": (sample - center).T @ (u - center_u) / (len(u) - 1),
    }
    x = draw(mu, root, 100, length, generator)
    for mixing in (0.0, 0.6, 1.0):
        y = x + attention(length, mixing, causal) @ normed(x) @ W
        expected = token_similarity(y, skip_first=False).mean()
        given = (W, center, torch.cov(sample.T), length)
        found = one_step_similarity(*given, mixing=mixing, causal=causal, **moments)
        assert abs(found - expected) < BAR
        without = one_step_similarity(*given, mixing=mixing, causal=causal)
        assert mixing == 0 or abs(without - expected) > 2 * BAR  # the norm can't be ignored


def exact(W, mu, covariance, length, mixing, causal) -> float:
    """Second moments of all outputs from the whole covariance of the T d numbers, written out."""
    d = len(mu)
    A = attention(length, mixing, causal).numpy()
    step = np.eye(length * d) + np.kron(A, W.numpy().T)  # of the stacked columns x_1, ..., x_T
    mean = step @ np.tile(mu.numpy(), length)
    second = step @ np.kron(np.eye(length), covariance.numpy()) @ step.T + np.outer(mean, mean)
    blocks = second.reshape(length, d, length, d)
    inner = np.einsum("iaja->ij", blocks)
    cosines = [
        inner[i, j] / np.sqrt(inner[i, i] * inner[j, j])
        for i in range(length)
        for j in range(i + 1, length)
    ]
    return float(np.mean(cosines))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixing", [0.0, 0.3, 1.0])
def test_expectations_are_exact(mixing, causal):
    W, mu, root, _ = random_step(5, scale=0.4, mean=1.0, seed=1)
    given = (W, mu, root @ root.T, 7)
    found = one_step_similarity(*given, mixing=mixing, causal=causal)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(exact(*given, mixing, causal), abs=1e-12)
    rounded = one_step_similarity(*(x.float() for x in given[:3]), 7, mixing=mixing, causal=causal)
    assert rounded.dtype == torch.float32
    assert float(rounded) == pytest.approx(float(found), abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_the_plain_formula_is_that_of_equal_moments(causal):
    W, mu, root, _ = random_step(8, scale=0.4, mean=1.0)
    covariance = root @ root.T
    moments = {
        "normed_mean": mu,
        "normed_covariance": covariance,
        "cross_covariance": covariance,
    }
    for mixing in (0.0, 0.7):
        options = {"mixing": mixing, "causal": causal}
        plain = one_step_similarity(W, mu, covariance, 9, **options)
        assert torch.equal(one_step_similarity(W, mu, covariance, 9, **options, **moments), plain)


def test_the_cross_covariance_has_x_along_its_rows():
    """u = x P for a matrix P that is not symmetric: the step is one with P W instead of W."""
    W, mu, root, generator = random_step(6, scale=0.5, mean=1.0)
    P = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    covariance = root @ root.T
    found = one_step_similarity(
        W, mu, covariance, 5, mixing=0.5, normed_mean=mu @ P,
        normed_covariance=P.T @ covariance @ P, cross_covariance=covariance @ P,
    )  # fmt: skip
    torch.testing.assert_close(found, one_step_similarity(P @ W, mu, covariance, 5, mixing=0.5))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_when_dense_attention_smooths_more_than_none(seed, causal):
    """For long documents the sign of 2 tr(Sigma W) + tr(W^T Sigma W) decides."""
    W, mu, root, _ = random_step(12, scale=[-0.6, 0.2, -0.2][seed % 3], mean=1.0, seed=seed)
    covariance = root @ root.T
    sign = 2 * (covariance @ W).trace() + (W.T @ covariance @ W).trace()
    dense, sparse = (
        one_step_similarity(W, mu, covariance, 10**5, mixing=mixing, causal=causal)
        for mixing in (1.0, 0.0)
    )
    assert bool(dense > sparse) == bool(sign > 0)


@pytest.mark.parametrize("causal", [False, True])
def test_limits(causal):
    W, mu, root, _ = random_step(12, scale=0.3, mean=1.0)
    covariance = root @ root.T
    nothing = one_step_similarity(0 * W, mu, covariance, 9, causal=causal)
    torch.testing.assert_close(
        nothing, mu.square().sum() / (mu.square().sum() + covariance.trace())
    )
    equal = one_step_similarity(W, mu, 0 * covariance, 9, causal=causal)
    torch.testing.assert_close(equal, torch.ones_like(equal))
    centred = one_step_similarity(W, 0 * mu, covariance, 9, mixing=0, causal=causal)
    torch.testing.assert_close(centred, torch.zeros_like(centred))
    two = [one_step_similarity(W, mu, covariance, 2, mixing=0, causal=c) for c in (False, True)]
    torch.testing.assert_close(*two)


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_undefined_is_nan(causal):
    W, mu, root, _ = random_step(12, scale=0.3, mean=1.0)
    covariance = root @ root.T
    assert one_step_similarity(W, mu, covariance, 1, causal=causal).isnan()
    nothing = torch.zeros_like(covariance)
    assert one_step_similarity(W, 0 * mu, nothing, 5, causal=causal).isnan()
    # y = x - x: what is left is rounding error
    minus = -torch.eye(12, dtype=torch.float64)
    assert one_step_similarity(minus, mu, covariance, 5, mixing=0, causal=causal).isnan()


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_extreme_scales(scale):
    W, mu, root, _ = (x.float() if isinstance(x, torch.Tensor) else x for x in random_step(
        12, scale=0.3, mean=1.0))  # fmt: skip
    covariance = root @ root.T
    for causal in (False, True):
        usual = one_step_similarity(W, mu, covariance, 5, causal=causal)
        scaled = one_step_similarity(W, mu * scale, covariance * scale**2, 5, causal=causal)
        torch.testing.assert_close(scaled, usual)
        assert one_step_similarity(W * scale, mu, covariance, 5, causal=causal).isfinite()


def test_autocast_does_not_round():
    W, mu, root, _ = random_step(12, scale=0.3, mean=1.0)
    given = [x.float() for x in (W, mu, root @ root.T)]
    outside = one_step_similarity(*given, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(one_step_similarity(*given, 5), outside)


def test_wrong_arguments():
    with without_shape_checks("tl_geometry.measures.one_step") as plain:
        step = plain.one_step_similarity
        W, mu, covariance = torch.eye(3), torch.ones(3), torch.eye(3)
        for change, message in (
            ({"W": torch.ones(3, 2)}, r"W has shape \(3, 2\)"),
            ({"W": torch.ones(3, 3).long()}, "W must be a floating point"),
            ({"mean": torch.ones(2)}, r"mean has shape \(2,\)"),
            (
                {"covariance": torch.ones(3)},
                r"^covariance must have the axes d_model d_model, got shape \(3,\)",
            ),
            ({"length": 0}, "length must be at least 1 token, got 0"),
            ({"length": 5.5}, "length must be an integer, got 5.5"),
            ({"length": float("inf")}, "length must be an integer, got inf"),
            ({"length": True}, "length must be an integer, got True"),
            ({"mixing": "all"}, "mixing must be a number, got 'all'"),
            ({"mean": mu.numpy()}, r"mean must be a tensor \(d_model\), got ndarray"),
            ({"covariance": [[1.0]]}, "covariance must be a tensor .* got list"),
            ({"mixing": 1.5}, r"mixing.*\[0, 1\], got 1.5"),
            ({"normed_mean": mu}, "give all three or none"),
            (
                {"normed_mean": mu, "normed_covariance": covariance, "cross_covariance": mu},
                r"cross_covariance must have the axes d_model d_model.*\(3,\)",
            ),
        ):
            given = {"W": W, "mean": mu, "covariance": covariance, "length": 4} | change
            with pytest.raises((ValueError, TypeError), match=message):
                step(**given)
        usual = step(W, mu, covariance, 4)
        assert step(W, mu, covariance, np.int64(4)) == usual
