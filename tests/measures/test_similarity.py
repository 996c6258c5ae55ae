"""Similarity of tokens against every pair looked at, and in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import similarity as literal
from literal.masks import token_mask
from literal.problems import assert_same, without_shape_checks

from tl_geometry.measures.similarity import TokenVectors, relative_residual, token_similarity

MEASURES = {"similarity": token_similarity, "residual": relative_residual}
LITERAL = {"similarity": literal.token_similarity, "residual": literal.relative_residual}


def first_token_cosines(x, mask=None):
    return TokenVectors(x, mask).first_cosines()


each = pytest.mark.parametrize("name", MEASURES)


def tokens(batch=3, length=9, d_model=5, seed=0, shift=0.5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, d_model, generator=generator, dtype=torch.float64)
    return (x + shift).to(dtype)


@each
@pytest.mark.parametrize("skip_first", [True, False])
@pytest.mark.parametrize("kind", ["none", "left", "right", "both", "gaps"])
def test_every_pair(name, kind, skip_first):
    x, mask = tokens(), token_mask(kind, 3, 9)
    expected = LITERAL[name](x, mask, skip_first=skip_first)
    assert_same(MEASURES[name](x, mask, skip_first=skip_first), expected, 1e-6)
    if kind == "none":
        assert_same(MEASURES[name](x, skip_first=skip_first), expected, 1e-6)


@pytest.mark.parametrize("kind", ["none", "left", "right", "both", "gaps"])
def test_the_first_tokens_cosines(kind):
    x, mask = tokens(shift=0.0), token_mask(kind, 3, 9)
    for found, expected in zip(
        first_token_cosines(x, mask), literal.first_token_cosines(x, mask), strict=True
    ):
        assert_same(found, expected, 1e-6)


@each
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_any_content_changes_nothing(name, side):
    x, mask = tokens(), token_mask(side, 3, 9)
    alone = torch.cat([MEASURES[name](row[keep][None]) for row, keep in zip(x, mask, strict=True)])
    for garbage in (torch.nan, torch.inf, 1e30):
        spoilt = torch.where(mask[..., None], x, garbage)
        torch.testing.assert_close(MEASURES[name](spoilt, mask), alone)
        for found, plain in zip(
            first_token_cosines(spoilt, mask), first_token_cosines(x, mask), strict=True
        ):
            assert torch.equal(found, plain)


def test_the_two_numbers_of_unit_vectors_say_the_same():
    """For n unit vectors residual^2 = (n - 1) / n * (1 - mean cosine)."""
    x = torch.nn.functional.normalize(tokens(length=40, d_model=16, dtype=torch.float64), dim=-1)
    n = 39
    expected = ((n - 1) / n * (1 - token_similarity(x))).sqrt()
    torch.testing.assert_close(relative_residual(x), expected)


def test_known_configurations():
    eye = torch.eye(6)[None]
    torch.testing.assert_close(token_similarity(eye), torch.zeros(1))
    simplex = eye - 1 / 6  # six vectors at the largest common angle
    torch.testing.assert_close(token_similarity(simplex, skip_first=False), torch.tensor([-0.2]))
    torch.testing.assert_close(relative_residual(simplex, skip_first=False), torch.ones(1))
    two = torch.tensor([[[9.0, 9.0], [2.0, 0.0], [-3.0, 0.0]]])
    assert token_similarity(two).item() == -1


@pytest.mark.parametrize("length", [2, 3, 600])
def test_equal_tokens(length):
    x = torch.full((1, length, 7), 0.1) * torch.linspace(-1, 3, 7)
    expected = [1.0] if length > 2 else [np.nan]
    assert_same(token_similarity(x), expected, 1e-6)
    assert_same(relative_residual(x), [0.0], 1e-6)
    same, largest = first_token_cosines(x)
    assert_same(same, [1.0], 1e-6)
    assert_same(largest, [1.0], 1e-6)


def test_what_is_undefined_is_nan():
    one = tokens(batch=1, length=1)
    assert token_similarity(one).isnan().all()
    assert token_similarity(one, skip_first=False).isnan().all()
    assert relative_residual(one).isnan().all()
    assert relative_residual(one, skip_first=False).item() == 0
    assert all(found.isnan().all() for found in first_token_cosines(one))
    zero = torch.zeros(1, 5, 3)
    assert token_similarity(zero).isnan().all()
    assert relative_residual(zero).isnan().all()
    assert all(found.isnan().all() for found in first_token_cosines(zero))
    nothing = torch.zeros(1, 5, dtype=torch.bool)
    for measure in MEASURES.values():
        assert measure(tokens(batch=1, length=5), nothing).isnan().all()


def test_tokens_of_length_zero_are_left_out():
    x = tokens(batch=2, length=8)
    x[0, [3, 5]] = 0
    x[1, 0] = 0
    assert_same(token_similarity(x), literal.token_similarity(x), 1e-6)
    for found, expected in zip(first_token_cosines(x), literal.first_token_cosines(x), strict=True):
        assert_same(found, expected, 1e-6)
    assert first_token_cosines(x)[0][1].isnan()


@each
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_extreme_scales(name, scale):
    x = tokens()
    torch.testing.assert_close(MEASURES[name](x * scale), MEASURES[name](x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        first_token_cosines(x * scale)[0], first_token_cosines(x)[0], rtol=1e-6, atol=1e-6
    )


def test_tokens_of_very_different_lengths_count_the_same():
    x = tokens()
    lengths = torch.logspace(-15, 15, 9)[None, :, None]
    torch.testing.assert_close(token_similarity(x * lengths), token_similarity(x))


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(name, dtype):
    x = tokens(dtype=dtype)
    found = MEASURES[name](x)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_same(found, LITERAL[name](x), 1e-12 if dtype == torch.float64 else 1e-6)


def test_a_long_document_of_unrelated_tokens_is_exact():
    x = tokens(batch=2, length=1000, d_model=300, shift=0.0)
    expected = token_similarity(x.double())
    assert abs(expected).max() < 1e-3
    torch.testing.assert_close(token_similarity(x).double(), expected, rtol=0, atol=1e-8)


def test_inputs_stay_as_they_are():
    x, mask = tokens(), token_mask("left", 3, 9)
    copies = x.clone(), mask.clone()
    for measure in (*MEASURES.values(), first_token_cosines):
        measure(x, mask)
    assert torch.equal(x, copies[0])
    assert torch.equal(mask, copies[1])


@each
def test_wrong_arguments(name):
    with without_shape_checks("tl_geometry.measures.similarity") as plain:
        measure = getattr(plain, MEASURES[name].__name__)
        x = tokens()
        with pytest.raises(ValueError, match=r"x must have the axes batch pos d_model.*\(9, 5\)"):
            measure(x[0])
        with pytest.raises(TypeError, match=r"x must be a floating point.*int64"):
            measure(x.long())
        with pytest.raises(TypeError, match=r"mask must be a bool tensor.*int64"):
            measure(x, torch.ones(3, 9).long())
        with pytest.raises(ValueError, match=r"mask has shape \(3, 8\)"):
            measure(x, torch.ones(3, 8, dtype=torch.bool))


@each
@pytest.mark.parametrize("skip_first", [True, False])
def test_derivatives(name, skip_first):
    """By finite differences: nothing that autograd needs is overwritten."""
    x = tokens(batch=2, length=5, d_model=3, dtype=torch.float64).requires_grad_()
    mask = token_mask("left", 2, 5)
    assert torch.autograd.gradcheck(lambda x: MEASURES[name](x, mask, skip_first=skip_first), (x,))
