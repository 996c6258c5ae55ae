"""The length of outputs against the sink's attention: by grids, by autograd, by re-weighted rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import sink_curve as literal
from literal.masks import all_masks, causal, padded, token_mask
from literal.problems import problem
from literal.sink_curve import assert_curve, outputs
from scipy.optimize import minimize_scalar

from tl_geometry.measures.contributions import contribution_weights
from tl_geometry.measures.sink_curve import sink_norm_curve

MASKS = all_masks(batch=2, heads=4, length=6)


def reweighted(pattern, sinks, share):
    """Rows that give their sinks ``share`` and keep the proportions of all others."""
    share = torch.as_tensor(share, dtype=pattern.dtype)[..., None]
    taken = torch.where(sinks, pattern, 0).sum(-1, keepdim=True)
    on_sinks = pattern * share / taken
    return torch.where(sinks, on_sinks, pattern * (1 - share) / (1 - taken))


@pytest.mark.parametrize("sink", ["first", 1, [0, 2]], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_every_field_under_every_mask(name, sink):
    made = problem(available=MASKS[name], dtype=torch.float64, seed=1)
    expected = literal.sink_norm_curve(*made.tensors, available=made.available, sink=sink)
    curve = sink_norm_curve(*made.tensors, available=made.available, sink=sink)
    assert_curve(curve, expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("side", ["left", "right", "both", "gaps"])
def test_single_and_half_precision(side, dtype):
    mask = padded(causal(12), token_mask(side, 2, 12))
    made = problem(queries=12, available=mask, dtype=dtype, seed=2)
    expected = literal.sink_norm_curve(*made.tensors, available=mask)
    curve = sink_norm_curve(*made.tensors, available=mask)
    assert curve.norm.dtype == torch.float32
    assert_curve(curve, expected, 3e-6)


def test_sinks_of_each_document_and_of_each_head():
    for marked in (
        torch.eye(6, dtype=torch.bool)[[2, 1]],
        torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(4)) < 0.4,
        torch.zeros(2, 6, dtype=torch.bool),
    ):
        made = problem(available=MASKS["causal, right: b q k"], dtype=torch.float64, seed=3)
        expected = literal.sink_norm_curve(*made.tensors, available=made.available, sink=marked)
        curve = sink_norm_curve(*made.tensors, available=made.available, sink=marked)
        assert_curve(curve, expected, 1e-12)
        assert curve.norm.isnan().all() == (not marked.any())


def test_more_rows_than_a_block():
    """The causal half is multiplied out in blocks of rows."""
    mask = padded(causal(300), token_mask("left", 2, 300))
    made = problem(heads=2, kv_heads=1, queries=300, available=mask, seed=4)
    curve = sink_norm_curve(*made.tensors, available=mask)
    direct = outputs(*made.tensors).norm(dim=-1)
    rows = ~curve.norm.isnan()
    assert rows.sum() == 2 * (299 + 298) - 4
    torch.testing.assert_close(curve.norm[rows], direct[rows])
    made.v[0, 1] = made.v[1, 2] = 0
    without = outputs(*made.tensors).norm(dim=-1) / (1 - curve.attention)
    torch.testing.assert_close(curve.rest_length[rows], without[rows])


def test_cross_attention_and_bidirectional():
    for keys in (6, 4):
        made = problem(keys=keys, dtype=torch.float64, seed=5)
        assert_curve(sink_norm_curve(*made.tensors), literal.sink_norm_curve(*made.tensors), 1e-12)
    crossed = sink_norm_curve(*made.tensors, cross=True)
    assert not crossed.norm.isnan().any()
    made = problem(dtype=torch.float64, seed=5)
    crossed = sink_norm_curve(*made.tensors, cross=True)
    assert_curve(crossed, literal.sink_norm_curve(*made.tensors, cross=True), 1e-12)
    assert not crossed.norm.isnan().any()


@pytest.mark.parametrize("sink", ["first", [0, 1]], ids=str)
def test_the_minimum_by_search(sink):
    """Rows are re-weighted as a whole and projected to d_model; nothing of the algebra is used."""
    made = problem(available=causal(6)[None], dtype=torch.float64, sharpness=1.0, seed=6)
    curve = sink_norm_curve(*made.tensors, available=made.available, sink=sink)
    sinks = torch.zeros(6, dtype=torch.bool)
    sinks[[0] if sink == "first" else sink] = True
    inside = 0
    for b, h, i in (~curve.norm.isnan()).nonzero().tolist():

        def length(share, b=b, h=h, i=i):
            row = reweighted(made.pattern[b, h, i], sinks, share)
            return float((row @ made.v[b, :, h // 2] @ made.W_O[h]).norm())

        grid = np.linspace(0, 1, 41)
        lengths = np.array([length(share) for share in grid])
        assert (np.diff(lengths**2, 2) >= -1e-12).all()  # convex
        best = grid[lengths.argmin()]
        span = (max(best - 0.025, 0), min(best + 0.025, 1))
        found = minimize_scalar(length, bounds=span, method="bounded", options={"xatol": 1e-12})
        optimum, minimal = float(curve.optimum[b, h, i]), float(curve.minimal_norm[b, h, i])
        assert optimum == pytest.approx(found.x, abs=1e-5)
        assert minimal <= lengths.min() + 1e-12
        assert minimal == pytest.approx(found.fun, abs=1e-6)
        assert length(optimum) == pytest.approx(minimal, abs=1e-12)
        assert length(float(curve.attention[b, h, i])) == pytest.approx(
            float(curve.norm[b, h, i]), abs=1e-12
        )
        inside += 0 < optimum < 1
    assert 5 < inside < int((~curve.norm.isnan()).sum())


def test_the_second_derivative_by_autograd():
    made = problem(available=causal(6)[None], dtype=torch.float64, seed=7)
    curve = sink_norm_curve(*made.tensors, available=made.available)
    sinks = torch.arange(6) == 0
    for place in (0.2, 0.9):
        share = torch.full(made.pattern.shape[:3], place, dtype=torch.float64, requires_grad=True)
        rows = reweighted(made.pattern, sinks, share)
        square = outputs(rows, made.v, made.W_O).square().sum(-1)[:, :, 1:]
        (slope,) = torch.autograd.grad(square.sum(), share, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), share)
        torch.testing.assert_close(second[:, :, 1:], curve.curvature[:, :, 1:])
        # The slope is that of a parabola around the unclipped optimum.
        expected = curve.curvature * (place - curve.optimum_unclipped)
        torch.testing.assert_close(slope[:, :, 1:].detach(), expected[:, :, 1:])


@pytest.mark.parametrize("sink", ["first", [0, 2]], ids=str)
def test_the_contribution_of_the_sink_along_the_curve(sink):
    """It changes its sign at ``sign_change``, and equals a* at the unclipped a*."""
    made = problem(available=causal(9)[None], queries=9, dtype=torch.float64, seed=8)
    sinks = torch.zeros(9, dtype=torch.bool)
    sinks[[0] if sink == "first" else sink] = True
    curve = sink_norm_curve(*made.tensors, available=made.available, sink=sink)
    rows = ~curve.norm.isnan()

    def contribution(share):
        pattern = torch.where(
            rows[..., None], reweighted(made.pattern, sinks, share.nan_to_num(0.5)), made.pattern
        )
        weights = contribution_weights(pattern, made.v, made.W_O, available=made.available)
        return weights[..., sinks].sum(-1)

    at_optimum = contribution(curve.optimum_unclipped)
    torch.testing.assert_close(at_optimum[rows], curve.optimum_unclipped[rows])
    changes = ~curve.sign_change.isnan()
    assert torch.equal(changes, rows & (curve.inner < 0))
    assert 5 < changes.sum() < rows.sum()
    assert (curve.sign_change[changes] > 0).all()
    assert (curve.sign_change[changes] < 1).all()
    assert (contribution(curve.sign_change - 1e-6)[changes] < 0).all()
    assert (contribution(curve.sign_change + 1e-6)[changes] > 0).all()
    for share in (0.01, 0.5, 0.99):
        at = contribution(torch.full_like(curve.norm, share))
        assert (at[rows & ~changes] >= 0).all()
        negative = share < curve.sign_change
        assert torch.equal((at < 0)[changes], negative[changes])


def test_the_optimum_is_below_one_where_the_sink_is_long_enough():
    """a* < 1 exactly where <s, m> < |s|^2, and a* > 0 where <s, m> < |m|^2."""
    made = problem(available=causal(20)[None], queries=20, dtype=torch.float64, seed=9)
    curve = sink_norm_curve(*made.tensors, available=made.available)
    rows = ~curve.norm.isnan()
    below = curve.inner < curve.sink_length**2
    above = curve.inner < curve.rest_length**2
    assert torch.equal((curve.optimum < 1)[rows], below[rows])
    assert torch.equal((curve.optimum > 0)[rows], above[rows])
    assert 0 < below[rows].sum() < rows.sum()


@pytest.mark.parametrize("sink", ["first", [1, 2, 4]], ids=str)
@pytest.mark.parametrize("null", [1.0, 0.6], ids=["softmax", "null sink"])
def test_the_fields_compose_the_output(sink, null):
    """o = a s + (1 - a) m, and nothing is renormalised where a null sink takes attention."""
    made = problem(available=causal(8)[None], queries=8, dtype=torch.float64, seed=10)
    pattern = null * made.pattern
    curve = sink_norm_curve(pattern, made.v, made.W_O, available=made.available, sink=sink)
    a = curve.attention
    square = (a * curve.sink_length) ** 2 + ((1 - a) * curve.rest_length) ** 2
    square += 2 * a * (1 - a) * curve.inner
    rows = ~curve.norm.isnan()
    direct = outputs(pattern, made.v, made.W_O).square().sum(-1)
    torch.testing.assert_close(square[rows], direct[rows])
    torch.testing.assert_close(curve.norm[rows] ** 2, direct[rows])
    curvature = 2 * (curve.sink_length**2 + curve.rest_length**2 - 2 * curve.inner)
    torch.testing.assert_close(curve.curvature[rows], curvature[rows])
    expected = literal.sink_norm_curve(
        pattern, made.v, made.W_O, available=made.available, sink=sink
    )
    assert_curve(curve, expected, 1e-12)


def test_options():
    made = problem(available=causal(6)[None], dtype=torch.float64, seed=11)
    generator = torch.Generator().manual_seed(12)
    b_V = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(7, generator=generator, dtype=torch.float64)
    before = [x.clone() for x in made.tensors]
    for options in (
        {"value_bias": "remove", "b_V": b_V},
        {"output": "normed", "norm_weight": weight},
    ):
        expected = literal.sink_norm_curve(*made.tensors, available=made.available, **options)
        curve = sink_norm_curve(*made.tensors, available=made.available, **options)
        assert_curve(curve, expected, 1e-12)
    assert all(torch.equal(*pair) for pair in zip(before, made.tensors, strict=True))


def test_a_grouped_layer_equals_its_ungrouped_copy():
    made = problem(available=causal(6)[None], seed=12)
    grouped = sink_norm_curve(*made.tensors)
    copied = sink_norm_curve(made.pattern, made.v.repeat_interleave(2, 2), made.W_O)
    for name, values in vars(grouped).items():
        torch.testing.assert_close(getattr(copied, name), values, equal_nan=True)
