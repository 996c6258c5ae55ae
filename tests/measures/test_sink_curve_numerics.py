"""Curves of the sink's attention at extreme scales, on degenerate rows, beside garbage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import sink_curve as literal
from literal.masks import all_masks, causal, padded, token_mask, windowed
from literal.problems import assert_same, problem
from literal.sink_curve import LENGTHS, PRODUCTS, RATIOS, assert_curve, outputs

from tl_geometry.measures.sink_curve import sink_curve_summary, sink_norm_curve

MASKS = all_masks(batch=2, heads=4, length=6)


@pytest.mark.parametrize("W_scale", [1.0, 1e-15, 1e15])
@pytest.mark.parametrize("v_scale", [1e-20, 1e-15, 1e15, 1e20])
def test_extreme_scales(v_scale, W_scale):
    made = problem(available=MASKS["causal, right: b q k"], dtype=torch.float64, seed=13)
    made = made.to(torch.float32)
    usual = sink_norm_curve(*made.tensors, available=made.available)
    tensors = (made.pattern, made.v * v_scale, made.W_O * W_scale)
    curve = sink_norm_curve(*tensors, available=made.available)
    size = v_scale * W_scale
    for name in RATIOS:
        torch.testing.assert_close(getattr(curve, name), getattr(usual, name), equal_nan=True)
    for name in LENGTHS if size < 1e30 else ():
        expected = getattr(usual, name).double() * size
        found = getattr(curve, name).double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * size, equal_nan=True)
    for name in PRODUCTS:
        expected = getattr(usual, name).double() * size**2
        found = getattr(curve, name)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * size**2, equal_nan=True)


@pytest.mark.parametrize("factor", [1e18, 1e10, 1e-10, 1e-18])
def test_sinks_much_longer_or_shorter_than_the_rest(factor):
    made = problem(available=causal(6)[None], sharpness=1.0, seed=14)
    made.v[:, 0] *= factor
    curve = sink_norm_curve(*made.tensors, available=made.available)
    pattern, v, W_O = (x.double() for x in made.tensors)
    s = (v[:, :1].repeat_interleave(2, 2).transpose(1, 2) @ W_O)[:, :, :1]
    others = torch.cat([0 * pattern[..., :1], pattern[..., 1:]], -1)
    m = outputs(others, v, W_O) / (1 - pattern[..., :1])
    inner = (s * m).sum(-1)
    expected = {
        "sink_length": s.norm(dim=-1).expand_as(inner),
        "rest_length": m.norm(dim=-1),
        "inner": inner,
        "optimum_unclipped": ((m - s) * m).sum(-1) / (m - s).square().sum(-1),
        "sign_change": torch.where(inner < 0, -inner / (s.square().sum(-1) - inner), torch.nan),
    }
    for name, values in expected.items():
        found = getattr(curve, name)[:, :, 1:].double()
        torch.testing.assert_close(found, values[:, :, 1:], rtol=1e-3, atol=0, equal_nan=True)


@pytest.mark.parametrize("factor", [1e-8, 1e-5, 1e5, 1e8])
def test_the_minimum_is_exact_and_at_most_either_end(factor):
    made = problem(available=causal(6)[None], sharpness=1.0, seed=15)
    made.v[:, 0] *= factor
    curve = sink_norm_curve(*made.tensors, available=made.available)
    least, s, m = (
        x[:, :, 1:].double() for x in (curve.minimal_norm, curve.sink_length, curve.rest_length)
    )
    assert (least <= torch.minimum(s, m)).all()
    # By hand: of the line through s and m in float64, the point nearest to the origin.
    pattern, v, W_O = (x.double() for x in made.tensors)
    values = v.repeat_interleave(2, 2).transpose(1, 2) @ W_O
    sink = values[:, :, :1]
    rest = (pattern[:, :, 1:, 1:] @ values[:, :, 1:]) / (1 - pattern[:, :, 1:, :1])
    step = rest - sink
    a = ((rest * step).sum(-1, keepdim=True) / step.square().sum(-1, keepdim=True)).clamp(0, 1)
    nearest = (a * sink + (1 - a) * rest).norm(dim=-1)
    torch.testing.assert_close(least, nearest, rtol=1e-3, atol=0)


@pytest.mark.parametrize("sink_scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("exponent", [8, 16, 22])
def test_a_small_rest_is_not_drowned(exponent, sink_scale):
    """All but 2^-exponent of the attention is the sink's; m is what little the others bring."""
    made = problem(batch=1, heads=2, kv_heads=1, available=causal(6)[None], seed=15)
    made.v[:, 0] *= sink_scale
    pattern = made.pattern.double()
    pattern[..., 0] = 0
    pattern /= pattern.sum(-1, keepdim=True)
    pattern = pattern * 2.0**-exponent
    pattern[..., 0] = 1 - 2.0**-exponent
    pattern = pattern.float()
    curve = sink_norm_curve(pattern[..., 1:, :], made.v, made.W_O, cross=True)
    expected = literal.sink_norm_curve(pattern[..., 1:, :], made.v, made.W_O, cross=True)
    for name in ("rest_length", "norm", "attention", "minimal_norm", "optimum"):
        values = expected[name]
        assert_same(getattr(curve, name), values, 1e-5 * np.abs(values) + 1e-6)
    full = pattern[..., 1:, :] * 2.0 ** (exponent - 24)
    full[..., 0] = 1
    assert sink_norm_curve(full, made.v, made.W_O, cross=True).norm.isnan().all()


def all_nan(curve) -> bool:
    return all(bool(values.isnan().all()) for values in vars(curve).values())


def test_degenerate_rows():
    eye = torch.eye(2)[None]
    one = sink_norm_curve(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 2), eye)
    assert all_nan(one)
    assert all_nan(sink_curve_summary(one))
    hidden = torch.zeros(1, 3, 3, dtype=torch.bool)
    uniform = torch.full((1, 1, 3, 3), 1 / 3)
    masked = sink_norm_curve(uniform, torch.ones(1, 3, 1, 2), eye, available=hidden)
    assert all_nan(masked)
    assert all_nan(sink_curve_summary(masked))
    on_sink = torch.zeros(1, 1, 3, 3)
    on_sink[..., 0] = 1
    assert all_nan(sink_norm_curve(on_sink, torch.ones(1, 3, 1, 2), eye))


def test_tokens_that_are_all_equal_have_no_optimum():
    pattern = torch.full((1, 1, 5, 5), 1 / 5)
    v = torch.randn(1, 1, 1, 3, generator=torch.Generator().manual_seed(16)).expand(-1, 5, -1, -1)
    curve = sink_norm_curve(pattern, v, torch.eye(3)[None])
    rows = curve.norm[0, 0, 1:]
    length = v[0, 0, 0].norm().expand(4)
    for values in (rows, curve.minimal_norm[0, 0, 1:], curve.rest_length[0, 0, 1:]):
        torch.testing.assert_close(values, length)
    assert curve.optimum.isnan().all()
    assert curve.optimum_unclipped.isnan().all()
    assert curve.sign_change.isnan().all()
    assert (curve.curvature[0, 0, 1:] < 1e-12).all()
    summary = sink_curve_summary(curve)
    assert summary.gap_histogram.isnan().all()
    assert summary.quadratic.isnan().all()  # every row has the same a
    assert summary.share_by_attention[0, 0].tolist() == [0, 0, 1] + [0] * 7


def test_values_of_zero():
    made = problem(available=causal(5)[None], queries=5, batch=1, heads=2, kv_heads=1, seed=17)
    silent = sink_norm_curve(made.pattern, 0 * made.v, made.W_O)
    for name in LENGTHS + PRODUCTS:
        assert (getattr(silent, name)[:, :, 1:] == 0).all(), name
    assert silent.optimum.isnan().all()
    v = made.v.clone()
    v[:, 0] = 0  # a sink without a value shortens most where it takes everything
    curve = sink_norm_curve(made.pattern, v, made.W_O)
    assert (curve.optimum_unclipped[:, :, 1:] == 1).all()
    assert (curve.minimal_norm[:, :, 1:] == 0).all()
    assert curve.sign_change.isnan().all()
    v = 0 * made.v
    v[:, 0] = 1  # and others without values leave nothing where it takes nothing
    curve = sink_norm_curve(made.pattern, v, made.W_O)
    assert (curve.optimum_unclipped[:, :, 1:] == 0).all()
    assert (curve.minimal_norm[:, :, 1:] == 0).all()


def test_a_sink_equal_to_another_token():
    """Only rows that attend to its double alone are flat."""
    pattern = torch.zeros(1, 1, 4, 4)
    pattern[0, 0, :, :2] = torch.tensor([0.3, 0.7])
    pattern[0, 0, 3] = torch.tensor([0.3, 0.1, 0.6, 0.0])
    v = torch.randn(1, 4, 1, 3, generator=torch.Generator().manual_seed(18))
    v[:, 1] = v[:, 0]
    W_O = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(19))
    curve = sink_norm_curve(pattern, v, W_O)
    assert curve.optimum[0, 0, :3].isnan().all()
    torch.testing.assert_close(curve.minimal_norm[0, 0, 1:3], curve.norm[0, 0, 1:3])
    assert curve.optimum[0, 0, 3].isfinite()
    assert_curve(curve, literal.sink_norm_curve(pattern, v, W_O), 1e-5)


def test_several_sinks_without_attention_are_undefined():
    made = problem(batch=1, heads=1, kv_heads=1, queries=8, available=windowed(8, 3)[None], seed=20)
    pattern = made.pattern.clone()
    pattern[0, 0, 2, :2] = 0  # sees both sinks, attends to neither
    pattern[0, 0, 3, 1] = 0  # sees only the second: its value is s
    options = {"available": made.available, "sink": [0, 1]}
    curve = sink_norm_curve(pattern, made.v, made.W_O, **options)
    assert curve.norm[0, 0].isnan().tolist() == [True, True, True] + [False] + [True] * 4
    assert curve.attention[0, 0, 3] == 0
    second = (made.v[0, 1, 0] @ made.W_O[0]).norm()
    torch.testing.assert_close(curve.sink_length[0, 0, 3], second)
    assert_curve(curve, literal.sink_norm_curve(pattern, made.v, made.W_O, **options), 1e-5)
    alone = sink_norm_curve(pattern, made.v, made.W_O, available=made.available, sink=1)
    assert alone.attention[0, 0, 2] == 0
    assert alone.optimum[0, 0, 2].isfinite()


@pytest.mark.parametrize("garbage", [1e30, np.inf, np.nan])
def test_padding_takes_no_part(garbage):
    mask = MASKS["causal, both: b q k"]
    made = problem(available=mask, seed=21)
    expected = sink_norm_curve(*made.tensors, available=mask)
    v = torch.where(mask.any(1)[..., None, None], made.v, garbage)
    pattern = torch.where(mask.any(-1)[:, None, :, None], made.pattern, np.nan)
    curve = sink_norm_curve(pattern, v, made.W_O, available=mask)
    for name, values in vars(expected).items():
        torch.testing.assert_close(getattr(curve, name), values, equal_nan=True)


def test_gradients_are_finite():
    mask = padded(causal(6), token_mask("both", 2, 6))
    made = problem(available=mask, seed=22)
    made.v[0, 2] = 0
    made.pattern[1, :, 3] = 0
    made.v[1, 3:] = made.v[1, 2]
    tensors = [x.clone().requires_grad_() for x in made.tensors]
    curve = sink_norm_curve(*tensors, available=mask)
    for name in (*RATIOS, *LENGTHS, *PRODUCTS):
        values = getattr(curve, name)
        chosen = values[~values.isnan()].sum()
        for gradient in torch.autograd.grad(chosen, tensors, retain_graph=True, allow_unused=True):
            assert gradient is None or gradient.isfinite().all(), name


def test_autocast_regions_do_not_round():
    made = problem(seed=23)
    outside = sink_norm_curve(*made.tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = sink_norm_curve(*made.tensors)
    for name, values in vars(outside).items():
        torch.testing.assert_close(getattr(inside, name), values, rtol=0, atol=0, equal_nan=True)
