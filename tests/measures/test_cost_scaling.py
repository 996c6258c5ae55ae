"""Exponents against closed forms and scipy's regression, and where the comparison turns round."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from literal.problems import without_shape_checks
from scipy import stats

from tl_geometry.measures.cost import representation_cost
from tl_geometry.measures.cost_scaling import Exponent, cost_scaling

TARGETS = ("sink", "diagonal")


def log_slope(lengths, costs):
    return stats.linregress(np.log(lengths), np.log(np.asarray(costs)))


@pytest.fixture(scope="module")
def orthonormal():
    return {norm: cost_scaling(norm=norm) for norm in ("frobenius", "nuclear")}


def test_the_nuclear_gap_of_orthonormal_tokens_is_one_half(orthonormal):
    found = orthonormal["nuclear"]
    assert found.gap.value == pytest.approx(0.5, abs=0.1)
    assert found.gap.low < found.gap.value < found.gap.high
    assert found.gap.low > 0.4
    lengths = np.array(found.lengths)
    np.testing.assert_allclose(found.sink[0], (lengths - 1) / np.sqrt(lengths), rtol=1e-3)
    np.testing.assert_allclose(found.diagonal[0], (6.058, 13.72, 29.38, 61.03), rtol=1e-3)
    assert found.turns_round is None
    assert found.infeasible == {"sink": (), "diagonal": ()}


def test_the_frobenius_gap_of_orthonormal_tokens_is_zero(orthonormal):
    found = orthonormal["frobenius"]
    assert found.gap.value == pytest.approx(0, abs=0.02)
    assert found.turns_round is None
    harmonic = [sum(1 / k for k in range(1, T + 1)) for T in found.lengths]
    np.testing.assert_allclose(
        found.sink[0], np.sqrt(np.array(found.lengths) - harmonic), rtol=1e-3
    )


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_fits_are_ordinary_least_squares(orthonormal, norm):
    found = orthonormal[norm]
    parts = [found.sink[0].numpy(), found.diagonal[0].numpy()]
    for exponent, costs in zip(
        (found.sink_exponent, found.diagonal_exponent, found.gap),
        (*parts, parts[1] / parts[0]),
        strict=True,
    ):
        fit = log_slope(found.lengths, costs)
        reach = stats.t.ppf(0.975, len(found.lengths) - 2) * fit.stderr
        assert exponent.value == pytest.approx(fit.slope, abs=1e-9)
        assert exponent.high - exponent.value == pytest.approx(reach, rel=1e-6, abs=1e-9)
        assert exponent.value - exponent.low == pytest.approx(reach, rel=1e-6, abs=1e-9)


def test_random_tokens_are_samples_of_their_own():
    lengths, seeds = (4, 6, 9), (3, 5, 8)
    found = cost_scaling(
        lengths, tokens="random", d=12, norm="frobenius", seeds=seeds, confidence=0.8
    )
    assert found.sink.shape == found.diagonal.shape == (3, 3)
    slopes = {
        target: np.array([log_slope(lengths, row).slope for row in getattr(found, target)])
        for target in TARGETS
    }
    slopes["gap"] = slopes["diagonal"] - slopes["sink"]
    for name, exponent in (
        ("sink", found.sink_exponent),
        ("diagonal", found.diagonal_exponent),
        ("gap", found.gap),
    ):
        reach = stats.t.ppf(0.9, 2) * stats.sem(slopes[name])
        assert exponent.value == pytest.approx(slopes[name].mean(), abs=1e-9)
        assert exponent.high == pytest.approx(exponent.value + reach)
        assert exponent.low == pytest.approx(exponent.value - reach)
    # Growing constraints on the same tokens: no sample gets cheaper.
    assert (found.sink.diff(dim=1) > 0).all()
    again = cost_scaling(lengths, tokens="random", d=12, norm="frobenius", seeds=seeds[::-1])
    assert torch.equal(again.sink.flip(0), found.sink)


def test_on_crowded_tokens_the_claim_turns_round():
    """Cheap at first, the sink grows dear near T = 2 d and can't be represented beyond."""
    lengths = (4, 12, 36)
    found = cost_scaling(lengths, tokens="random", d=12, seeds=(0, 1, 2), max_iterations=2000)
    assert found.infeasible == {"sink": (36,), "diagonal": ()}
    assert found.sink_infeasible.tolist() == [0, 0, 1]
    assert found.sink[:, -1].isnan().all()
    assert (found.sink[:, 0] < found.diagonal[:, 0]).all()
    assert found.turns_round in (12, 36)
    place = lengths.index(found.turns_round)
    dear = ~(found.sink <= found.diagonal)  # NaN is infeasible here
    assert (dear.double().mean(0)[place:] > 0.5).all()
    assert dear.double().mean(0)[place - 1] <= 0.5
    assert not math.isnan(found.gap.value)


def test_own_tokens_are_drawn_behind_their_sink():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(12, 16, generator=generator, dtype=torch.float64)
    x[0] = 3 * x[0]
    found = cost_scaling((3, 12), tokens=x, norm="frobenius", seeds=(0, 1, 2, 3))
    whole = [representation_cost(x, target, tolerance=1e-3).cost for target in TARGETS]
    for seed in range(4):  # all tokens, in their own order
        assert (found.sink[seed, 1].item(), found.diagonal[seed, 1].item()) == tuple(whole)
    pairs = {
        representation_cost(x[[0, i, j]], "sink", tolerance=1e-3).cost
        for i, j in itertools.combinations(range(1, 12), 2)
    }
    small = found.sink[:, 0].tolist()
    assert set(small) <= pairs
    assert len(set(small)) > 1


def test_repeated_tokens_leave_no_diagonal_and_no_exponents():
    x = torch.eye(8)[[0, 1, 2, 3, 4, 5, 5, 5]]
    found = cost_scaling((4, 6, 8), tokens=x, norm="frobenius", seeds=(0, 1))
    assert found.infeasible["sink"] == ()
    assert 8 in found.infeasible["diagonal"]
    assert found.diagonal[:, 2].isnan().all()
    assert found.turns_round is None
    nothing = cost_scaling((4, 8), tokens=torch.ones(8, 3), norm="frobenius", seeds=(0, 1))
    assert all(math.isnan(n) for n in vars(nothing.gap).values())
    assert nothing.turns_round is None


def test_two_lengths_have_a_slope_and_no_interval():
    found = cost_scaling((4, 9), norm="frobenius", causal=False)
    assert found.sink_exponent.value == pytest.approx(math.log(8 / 3) / 2 / math.log(9 / 4))
    assert math.isnan(found.sink_exponent.low)
    assert math.isnan(found.sink_exponent.high)
    assert isinstance(found.gap, Exponent)


WRONG = {
    "one length": ({"lengths": (8,)}, "lengths must be two or more increasing numbers"),
    "equal lengths": ({"lengths": (8, 8)}, r"lengths must be .* got \(8, 8\)"),
    "a single token": ({"lengths": (1, 8)}, "of at least 2 tokens"),
    "falling": ({"lengths": (8, 4)}, "increasing"),
    "kind": ({"tokens": "real"}, "tokens must be one of 'orthonormal', 'random'"),
    "narrow": ({"d": 5}, "d=5 is too small: 6 orthonormal tokens need at least 6"),
    "no dimension": ({"d": 0, "tokens": "random"}, "d=0 is too small"),
    "few tokens": ({"tokens": torch.ones(5, 3)}, "lengths go up to 6, but tokens holds 5"),
    "d of own tokens": ({"tokens": torch.ones(8, 3), "d": 3}, "yours have 3 dimensions"),
    "axes": ({"tokens": torch.ones(8)}, "tokens must have the axes pos d"),
    "no seed": ({"tokens": "random", "seeds": ()}, "seeds is empty"),
    "confidence": ({"confidence": 1}, "confidence must lie between 0 and 1, got 1"),
    "margin": ({"margin": -1}, "margin must be positive"),
}


@pytest.fixture(scope="module")
def unchecked():
    with without_shape_checks("tl_geometry.measures.cost_scaling") as module:
        return module.cost_scaling


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name, unchecked):
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        unchecked(**{"lengths": (3, 6)} | change)
