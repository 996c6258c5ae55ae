"""Powers of two that keep squares in range, and measures of vectors at the ends of float64 and float32."""

from __future__ import annotations

import math

import pytest
import torch
from literal.problems import without_shape_checks

from tl_geometry.measures.cost import representation_cost
from tl_geometry.measures.frame import OutputFrame
from tl_geometry.measures.halfspace import halfspace_margins
from tl_geometry.measures.scaling import power_of_two, safe_norm, scale
from tl_geometry.measures.similarity import relative_residual, token_similarity

FLOAT64 = [1e-300, 1e-200, 1e-60, 1e60, 1e200, 1e300]


def tokens(shape=(6, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) + 1


@pytest.mark.parametrize(
    ("dtype", "exponents"),
    [
        (torch.float32, (-149, -127, -1, 0, 100, 127)),
        (torch.float64, (-1074, -1000, 0, 1000, 1023)),
    ],
)
def test_a_power_of_two_brings_the_whole_range_to_order_one(dtype, exponents):
    for exponent in exponents:
        x = torch.tensor([math.ldexp(1.0, exponent), 0.0], dtype=dtype)
        power = power_of_two(x, -1)
        scaled = scale(x, -power)
        assert 2.0**-52 <= float(scaled[0]) <= 4  # only subnormal numbers stay below 1/2
        assert torch.equal(scale(scaled, power), x)
        assert float(safe_norm(x)) == math.ldexp(1.0, exponent)


def test_a_frame_keeps_to_the_range_of_its_precision():
    weight = torch.full((1, 2, 3), 1e200, dtype=torch.float64)
    assert int(OutputFrame.of(weight, dtype=torch.float32).exponent) == 126
    frame = OutputFrame.of(weight, dtype=torch.float64)
    assert float(frame.L.norm()) == pytest.approx(6**0.5 * math.ldexp(1e200, -int(frame.exponent)))


@pytest.mark.parametrize("size", FLOAT64)
def test_similarity_does_not_depend_on_the_scale(size):
    x = tokens((2, 7, 5))
    for measure in (token_similarity, relative_residual):
        torch.testing.assert_close(measure(x * size), measure(x), rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", FLOAT64)
def test_margins_grow_with_the_scale(size):
    usual, scaled = halfspace_margins(tokens()), halfspace_margins(tokens() * size)
    assert bool(usual.feasible)
    for name in ("origin_margin", "sink_margin", "longest", "control_sink_margin"):
        assert float(getattr(scaled, name)) == pytest.approx(
            float(getattr(usual, name)) * size, rel=1e-9
        )
    assert float(scaled.cosine_max) == pytest.approx(float(usual.cosine_max))


def test_a_length_beyond_float64_is_infinite():
    assert halfspace_margins(torch.full((3, 4), 1.5e308, dtype=torch.float64)).longest == math.inf


@pytest.mark.parametrize("target", ["sink", "diagonal"])
@pytest.mark.parametrize("size", [1e-100, 1e-60, 1e60, 1e100])
def test_costs_shrink_with_the_square_of_the_scale(target, size):
    """Of orthonormal tokens the cost is known in closed form."""
    found = representation_cost(torch.eye(4, dtype=torch.float64) * size, target)
    unit = (4 - sum(1 / n for n in range(1, 5))) ** 0.5
    assert found.feasible
    assert found.cost * size * size == pytest.approx(unit, rel=1e-3)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_costs_beyond_float64_are_refused(size):
    with without_shape_checks("tl_geometry.measures.cost") as plain:
        for target in ("sink", "diagonal"):
            with pytest.raises(ValueError, match=r"x has entries up to 1.0e.300.* scale x"):
                plain.representation_cost(torch.eye(8, dtype=torch.float64) * size, target)


def test_short_vectors_of_single_precision_all_count():
    """Lengths on both sides of the smallest normal number, 1.2e-38."""
    x = tokens((2, 9, 4), seed=1).float() * 1e-38
    x[:, ::2] /= 4
    expected = token_similarity(x.double())
    torch.testing.assert_close(token_similarity(x), expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_first_token_that_is_left_out_may_hold_anything(wrong):
    x = tokens((2, 5, 4))
    spoiled = x.clone()
    spoiled[0, 0, 1] = wrong
    for measure in (token_similarity, relative_residual):
        torch.testing.assert_close(measure(spoiled), measure(x), rtol=0, atol=0)
        found = measure(spoiled, skip_first=False)
        assert found.isnan().tolist() == [True, False]
        spoiled_later = x.clone()
        spoiled_later[0, 3, 1] = wrong
        assert measure(spoiled_later).isnan().tolist() == [True, False]
