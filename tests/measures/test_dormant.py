"""Dormant heads: both criteria against literal forms, thresholds, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import cone as literal, sinks as literal_sinks
from literal.masks import all_masks, causal, padded, sink_mask, token_mask
from literal.problems import assert_same, problem

from tl_geometry.measures.dormant import dormant_heads

MASKS = all_masks(batch=2, heads=4, length=6)


def mean_rates(made, sink="first") -> np.ndarray:
    rates = literal_sinks.sink_rate(made.pattern, available=made.available, sink=sink)
    own = sink_mask(sink, made.pattern, made.available)
    result = np.full(rates.shape[:2], np.nan)
    for b, h in np.ndindex(result.shape):
        rows = rates[b, h][~own[b, h] & ~np.isnan(rates[b, h])]
        if len(rows):
            result[b, h] = rows.mean()
    return result


@pytest.mark.parametrize("sink", ["first", [0, 2]], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_both_criteria_under_every_mask(name, sink):
    made = problem(available=MASKS[name], dtype=torch.float64, seed=1)
    found = dormant_heads(*made.tensors, available=made.available, sink=sink, rate=0.2)
    rates = mean_rates(made, sink)
    ratios = literal.output_norm_ratios(*made.tensors, available=made.available)
    assert_same(found.sink_rate, rates, 1e-12)
    assert_same(found.norm_ratio, ratios, 1e-12)
    np.testing.assert_array_equal(found.by_rate.numpy(), rates > 0.2)
    assert found.thresholds == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    for k, threshold in enumerate(found.thresholds):
        np.testing.assert_array_equal(found.by_norm[..., k].numpy(), ratios < threshold)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_single_and_half_precision(dtype):
    mask = padded(causal(12), token_mask("both", 2, 12))
    made = problem(queries=12, available=mask, dtype=dtype, seed=2)
    generator = torch.Generator().manual_seed(3)
    b_V, weight = torch.randn(2, 3, generator=generator), torch.randn(7, generator=generator)
    for options in (
        {},
        {"value_bias": "remove", "b_V": b_V},
        {"output": "normed", "norm_weight": weight},
    ):
        found = dormant_heads(*made.tensors, available=mask, **options)
        assert_same(found.sink_rate, mean_rates(made), 1e-6)
        ratios = literal.output_norm_ratios(*made.tensors, available=mask, **options)
        assert_same(found.norm_ratio, ratios, 1e-5)


def test_thresholds():
    made = problem(heads=2, kv_heads=1, seed=4)
    W_O = torch.stack([made.W_O[0], 0.1 * made.W_O[0]])
    pattern = made.pattern[:, :1].expand(-1, 2, -1, -1)
    found = dormant_heads(pattern, made.v, W_O)
    torch.testing.assert_close(found.norm_ratio, torch.tensor([[2 / 1.1, 0.2 / 1.1]] * 2))
    assert found.by_norm[0].tolist() == [[False] * 8, [False] + [True] * 7]
    assert dormant_heads(pattern, made.v, W_O, norm=0.3).by_norm[0].tolist() == [[False], [True]]
    several = dormant_heads(pattern, made.v, W_O, norm=[0.1, 0.3, 2])
    assert several.by_norm[0].tolist() == [[False, False, True], [False, True, True]]
    assert several.thresholds == (0.1, 0.3, 2)


def test_rates():
    pattern = torch.zeros(1, 2, 4, 4)
    pattern[..., 0] = torch.tensor([[1.0], [0.75]])
    pattern[:, 1, :, 1] = 0.25
    pattern[..., 0, :] = torch.eye(4)[0]
    v, W_O = torch.randn(1, 4, 1, 2, generator=torch.Generator().manual_seed(5)), torch.eye(2)
    found = dormant_heads(pattern, v, W_O.expand(2, 2, 2))
    assert found.sink_rate.tolist() == [[1, 0.75]]
    assert found.by_rate.tolist() == [[True, False]]
    for rate, dormant in ((0.75, [True, False]), (0.7, [True, True]), (1, [False, False])):
        found = dormant_heads(pattern, v, W_O.expand(2, 2, 2), rate=rate)
        assert found.by_rate.tolist() == [dormant]


def test_silent_heads_and_layers():
    made = problem(available=causal(6)[None], seed=6)
    W_O = made.W_O.clone()
    W_O[1] = 0  # a head that was removed is dormant, not unknown
    found = dormant_heads(made.pattern, made.v, W_O)
    assert (found.norm_ratio[:, 1] == 0).all()
    assert found.by_norm[:, 1].all()
    assert found.norm_ratio.mean(-1).tolist() == pytest.approx([1, 1])
    silent = dormant_heads(made.pattern, made.v, 0 * W_O)
    assert silent.norm_ratio.isnan().all()
    assert not silent.by_norm.any()
    broken = made.v.clone()
    broken[:, 2, 0] = torch.nan  # heads 0 and 1 read it
    found = dormant_heads(made.pattern, broken, made.W_O)
    assert found.norm_ratio.isnan().all()  # nothing is known of the layer's mean
    assert not found.by_norm.any()
    broken = made.v.clone()
    broken[0, 2, 0] = torch.inf
    found = dormant_heads(made.pattern, broken, made.W_O).norm_ratio
    assert found[0].isnan().all()
    assert torch.equal(found[1], dormant_heads(*made.tensors).norm_ratio[1])
    some = causal(6).repeat(2, 4, 1, 1)
    some[1, 3] = False  # a head without rows is no part of the layer
    found = dormant_heads(*made.tensors, available=some).norm_ratio
    assert found.isnan().tolist() == [[False] * 4, [False] * 3 + [True]]
    assert found[1, :3].mean().item() == pytest.approx(1)
    mask = padded(causal(6), torch.tensor([[True] * 6, [False] * 6]))
    nothing = dormant_heads(*made.tensors, available=mask)
    assert nothing.norm_ratio[1].isnan().all()
    assert nothing.sink_rate[1].isnan().all()
    assert not nothing.by_rate[1].any()
    one = dormant_heads(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 2), torch.eye(2)[None])
    assert one.norm_ratio.tolist() == [[1]]
    assert one.sink_rate.isnan().all()


def test_scales_that_differ_between_heads():
    made = problem(available=causal(6)[None], seed=7)
    usual = dormant_heads(*made.tensors)
    for size in (1e-20, 1e-15, 1e15, 1e20):
        for v, W_O in ((made.v * size, made.W_O), (made.v, made.W_O * size)):
            found = dormant_heads(made.pattern, v, W_O)
            torch.testing.assert_close(found.norm_ratio, usual.norm_ratio)
    spread = torch.tensor([1e20, 1.0, 1e-10, 1e10])[:, None, None]
    found = dormant_heads(made.pattern, made.v, made.W_O * spread)
    ratios = literal.output_norm_ratios(made.pattern, made.v, made.W_O * spread)
    assert_same(found.norm_ratio, ratios, 1e-5 * ratios)


@pytest.mark.parametrize(
    "norm", [[0.1, 0.2], np.array([0.1, 0.2]), torch.tensor([0.1, 0.2], dtype=torch.float64)]
)
def test_several_thresholds_of_any_kind(norm):
    made = problem(seed=7)
    found = dormant_heads(*made.tensors, norm=norm)
    assert found.thresholds == (0.1, 0.2)
    assert torch.equal(found.by_norm, dormant_heads(*made.tensors, norm=(0.1, 0.2)).by_norm)
    assert dormant_heads(*made.tensors, norm=0.2).thresholds == (0.2,)


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_rates_are_shares(rate):
    with pytest.raises(ValueError, match="rate is a share of attention"):
        dormant_heads(*problem().tensors, rate=rate)


@pytest.mark.parametrize("norm", [0, -1.0, [], [0.1, 0.0], float("nan")])
def test_thresholds_are_positive(norm):
    with pytest.raises(ValueError, match="norm is a share"):
        dormant_heads(*problem().tensors, norm=norm)
