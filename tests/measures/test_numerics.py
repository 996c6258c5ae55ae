"""Numerics: undefined rows, extreme scales, garbage in padding, and gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from literal import contributions as literal
from literal.masks import all_masks, causal, padded, token_mask
from literal.problems import assert_same, problem, row_tolerance

from tl_geometry.measures.contributions import (
    contribution_factors,
    contribution_weights,
    suppression,
    value_weighted_attention,
)
from tl_geometry.measures.regimes import source_winners
from tl_geometry.measures.sinks import sink_geometry, sink_metric, sink_rate

MODES = ("intra", "inter")
MASKS = all_masks(batch=2, heads=4, length=6)
mode_of = pytest.mark.parametrize("mode", MODES)


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


DIFFERENTIABLE = {
    "weights": contribution_weights,
    "relative_norm": lambda *tensors, **kw: contribution_factors(*tensors, **kw).relative_norm,
    "cosine": lambda *tensors, **kw: contribution_factors(*tensors, **kw).cosine,
    "value_weighted": value_weighted_attention,
    "normalized": lambda *tensors, **kw: value_weighted_attention(*tensors, normalized=True, **kw),
    "suppression": suppression,
}


@mode_of
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name, scale, mode):
    made = problem(batch=1, heads=2, kv_heads=1, queries=3, d_model=4, dtype=torch.float64, seed=3)
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)[None]
    tensors = [x.clone().requires_grad_() for x in (made.pattern, scale * made.v, made.W_O)]

    def below_the_diagonal(*tensors):
        values = DIFFERENTIABLE[name](*tensors, mode=mode, available=mask)
        return values.masked_select(mask[:, None]) / (scale if name == "value_weighted" else 1)

    step = 1e-6 * min(scale, 1)
    assert torch.autograd.gradcheck(below_the_diagonal, tensors, eps=step, atol=1e-4, rtol=1e-4)


@mode_of
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_undefined_rows_do_not_spoil_gradients(name, mode):
    mask = padded(causal(6), token_mask("both", 2, 6))
    made = problem(available=mask, seed=4)
    made.v[0, 2] = 0  # a silent token
    made.pattern[1, :, 3] = 0  # an undefined row among the real ones
    tensors = [x.clone().requires_grad_() for x in made.tensors]
    values = DIFFERENTIABLE[name](*tensors, mode=mode, available=mask)
    assert values.isnan().any()
    gradients = torch.autograd.grad(values[~values.isnan()].sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)


@mode_of
@pytest.mark.parametrize("garbage", [1e30, np.inf, np.nan])
def test_values_of_padding_do_not_leak(garbage, mode):
    mask = MASKS["causal, left: b q k"]
    made = problem(available=mask, seed=7)
    expected = contribution_weights(*made.tensors, available=mask, mode=mode)
    winners = source_winners(*made.tensors, available=mask)
    geometry = vars(sink_geometry(*made.tensors, available=mask))
    made.v.copy_(torch.where(mask.any(1)[..., None, None], made.v, garbage))
    close(contribution_weights(*made.tensors, available=mask, mode=mode), expected)
    assert torch.equal(source_winners(*made.tensors, available=mask).position, winners.position)
    for field, values in vars(sink_geometry(*made.tensors, available=mask)).items():
        close(values, geometry[field])


@pytest.mark.parametrize("garbage", [7.0, np.nan])
def test_pattern_rows_of_padding_queries_do_not_leak(garbage):
    """Softmax over a fully masked row is NaN in some models."""
    mask = MASKS["causal, both: b q k"]
    made = problem(available=mask, seed=8)
    spoilt = torch.where(mask.any(-1)[:, None, :, None], made.pattern, garbage)
    v, W_O = made.v, made.W_O
    for mode in MODES:
        expected = contribution_weights(made.pattern, v, W_O, available=mask, mode=mode)
        close(contribution_weights(spoilt, v, W_O, available=mask, mode=mode), expected)
    winners = source_winners(made.pattern, v, available=mask)
    assert torch.equal(source_winners(spoilt, v, available=mask).category, winners.category)
    close(sink_rate(spoilt, available=mask), sink_rate(made.pattern, available=mask))
    close(sink_metric(spoilt, available=mask), sink_metric(made.pattern, available=mask))
    expected = vars(sink_geometry(made.pattern, v, W_O, available=mask))
    for field, values in vars(sink_geometry(spoilt, v, W_O, available=mask)).items():
        close(values, expected[field])


@mode_of
def test_undefined_rows_are_nan(mode):
    pattern = torch.full((1, 2, 3, 3), 1 / 4)  # 1/4 + 1/4 - 2/4 = 0, in both heads
    pattern[..., 2] = 1 / 2
    pattern[:, :, 2] = torch.tensor([0.5, 0.25, 0.25])
    direction = torch.tensor([1.0, -3.0])
    v = torch.stack([direction, direction, -direction])[None, :, None]
    W_O = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[2.0, 0.0, 1.0], [1.0, 1.0, 1.0]]])
    weights = contribution_weights(pattern, v, W_O, mode=mode)
    assert weights[:, :, :2].isnan().all()
    assert weights[:, :, 2].isfinite().all()
    assert suppression(pattern, v, W_O, mode=mode)[:, :, :2].isnan().all()
    normalized = value_weighted_attention(pattern, v, W_O, mode=mode, normalized=True)
    assert normalized[:, :, :2].isnan().all()
    assert not normalized.isinf().any()
    factors = contribution_factors(pattern, v, W_O, mode=mode)
    product = factors.attention * factors.relative_norm * factors.cosine
    assert product[:, :, :2].isnan().all()
    assert product[:, :, 2].isfinite().all()
    assert contribution_weights(pattern, 0 * v, W_O, mode=mode).isnan().all()
    assert contribution_weights(pattern, v, 0 * W_O, mode=mode).isnan().all()


def test_heads_that_cancel_leave_only_the_layer_undefined():
    made = problem(heads=2, kv_heads=1, seed=8)
    pattern = made.pattern[:, :1].expand(-1, 2, -1, -1)
    W_O = torch.stack([made.W_O[0], -made.W_O[0]])
    assert contribution_weights(pattern, made.v, W_O, mode="inter").isnan().all()
    assert contribution_weights(pattern, made.v, W_O).isfinite().all()
    zero = torch.stack([made.W_O[0], 0 * made.W_O[0]])
    inter = contribution_weights(pattern, made.v, zero, mode="inter")
    assert (inter[:, 1] == 0).all()  # a silent head takes no share of a defined layer
    assert contribution_weights(pattern, made.v, zero)[:, 1].isnan().all()


@pytest.mark.parametrize(("exponent", "defined"), [(18, True), (20, False)])
def test_the_threshold_of_undefined_rows(exponent, defined):
    gap = 2.0**-exponent  # |o| = gap / 2 against a total of 1 - gap / 2
    v = torch.tensor([1.0, -1.0 + gap]).view(1, 2, 1, 1)
    weights = contribution_weights(torch.full((1, 1, 2, 2), 0.5), v, torch.ones(1, 1, 1))
    if defined:
        assert weights[0, 0, 0].tolist() == [1 / gap, 1 - 1 / gap]
    else:
        assert weights.isnan().all()


SCALES = list(itertools.product((1e-20, 1e-3, 1e20), repeat=2))


@mode_of
@pytest.mark.parametrize(("v_scale", "W_scale"), SCALES)
def test_extreme_scales(v_scale, W_scale, mode):
    made = problem(available=MASKS["causal, right: b q k"], seed=9)
    options = {"mode": mode, "available": made.available}
    tensors = (made.pattern, made.v * v_scale, made.W_O * W_scale)
    expected = literal.contribution_weights(*tensors, **options)
    assert_same(contribution_weights(*tensors, **options), expected, row_tolerance(expected, mode))
    actual = contribution_factors(*tensors, **options)
    usual = contribution_factors(*made.tensors, **options)
    for field in ("attention", "relative_norm", "cosine"):
        close(getattr(actual, field), getattr(usual, field))
    for space in ("head", "model"):
        winners = source_winners(*tensors, space=space, available=made.available)
        usual_winners = source_winners(*made.tensors, space=space, available=made.available)
        assert torch.equal(winners.position, usual_winners.position)
    geometry = sink_geometry(*tensors, available=made.available)
    usual_geometry = sink_geometry(*made.tensors, available=made.available)
    for field in (
        "norm_ratio",
        "cosine_mean",
        "cosine_max",
        "norm_ratio_model",
        "cosine_max_model",
    ):
        close(getattr(geometry, field), getattr(usual_geometry, field))


@mode_of
@pytest.mark.parametrize("axis", ["heads of W_O", "kv heads", "opposed", "tokens", "model axis"])
@pytest.mark.parametrize("spread", [1e8, 1e15, 1e20])
def test_scales_that_differ_within_a_layer(axis, spread, mode):
    if axis == "tokens" and spread > 1e15:
        pytest.skip("the ratio of two lengths would itself overflow float32")
    made = problem(available=causal(6)[None], seed=10)
    scale = torch.tensor([spread, 1, 1 / spread, 1])
    if axis == "heads of W_O":
        made.W_O.mul_(scale[:, None, None])
    elif axis == "kv heads":
        made.v.mul_(scale[[0, 2]][:, None])
    elif axis == "opposed":  # large values meet small weights: every head matters
        made.v.mul_(torch.tensor([spread, 1 / spread])[:, None])
        made.W_O.mul_(torch.tensor([1 / spread, 1 / spread, spread, spread])[:, None, None])
    elif axis == "tokens":  # early queries see small values only
        made.v.mul_(torch.tensor([1 / spread, 1 / spread, 1, 1, spread, spread])[:, None, None])
    else:
        made.W_O.mul_(torch.tensor([1 / spread, 1, spread, 1, 1, 1, 1]))
    expected = literal.contribution_weights(*made.tensors, mode=mode)
    assert_same(
        contribution_weights(*made.tensors, mode=mode), expected, row_tolerance(expected, mode)
    )


@pytest.mark.parametrize("scale", [60000.0, 2.0**-20])
def test_the_ends_of_float16(scale):
    made = problem(seed=11)
    v = (made.v / made.v.abs().max() * scale).half()
    tensors = (made.pattern.half(), v, made.W_O.half())
    expected = literal.contribution_weights(*tensors)
    assert_same(contribution_weights(*tensors), expected, row_tolerance(expected, "intra"))


def test_autocast_regions_do_not_round():
    from tl_geometry import contribution_weights, separability

    made = problem(batch=1, heads=2, kv_heads=1, queries=12, seed=3)
    outside = contribution_weights(*made.tensors), separability(*made.tensors).margin
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = contribution_weights(*made.tensors), separability(*made.tensors).margin
    for a, b in zip(outside, inside, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
