"""Contribution weights and their relatives against the literal definitions and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import contributions as literal
from literal.masks import all_masks, available_mask, causal, padded, token_mask
from literal.problems import assert_same, problem, row_tolerance

from tl_geometry.measures import contributions as fast

MASKS = all_masks(batch=2, heads=4, length=6)
MODES = ("intra", "inter")
HALF = (torch.bfloat16, torch.float16)
mode_of = pytest.mark.parametrize("mode", MODES)


def check_weights(tensors, mode, **options) -> None:
    expected = literal.contribution_weights(*tensors, mode=mode, **options)
    actual = fast.contribution_weights(*tensors, mode=mode, **options)
    relative = 1e-10 if tensors[1].dtype == torch.float64 else 1e-5
    assert_same(actual, expected, row_tolerance(expected, mode, relative))


@mode_of
@pytest.mark.parametrize("name", MASKS)
def test_weights_under_every_mask(name, mode):
    made = problem(available=MASKS[name], seed=1)
    check_weights(made.tensors, mode, available=made.available)


@mode_of
@pytest.mark.parametrize("name", MASKS)
def test_weights_ignore_attention_outside_the_mask(name, mode):
    made = problem(available=None, seed=2)  # every entry of the pattern is positive
    check_weights(made.tensors, mode, available=MASKS[name])


@mode_of
@pytest.mark.parametrize("mask", [causal(6), None], ids=["causal", "full"])
def test_the_default_mask_looks_above_the_diagonal(mask, mode):
    made = problem(available=mask, seed=3)
    check_weights(made.tensors, mode)
    weights = fast.contribution_weights(*made.tensors, mode=mode)
    explicit = torch.ones(6, 6, dtype=torch.bool) if mask is None else mask
    expected = fast.contribution_weights(*made.tensors, mode=mode, available=explicit[None])
    assert torch.equal(weights, expected)


def test_availability_is_not_inferred_from_positive_attention():
    pattern = torch.tensor([[[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0]]]])
    v, W_O = torch.ones(1, 3, 1, 1), torch.ones(1, 1, 1)
    factors = fast.contribution_factors(pattern, v, W_O)
    assert factors.relative_norm[0, 0, 2].tolist() == [1, 1, 1]
    row = fast.contribution_weights(pattern, v, W_O)[0, 0, 1]
    assert row.isnan().all()  # available keys, but nothing is written: undefined, not zero


@mode_of
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 2), (4, 1), (6, 3), (6, 2)])
def test_grouped_queries(heads, kv_heads, mode):
    made = problem(heads=heads, kv_heads=kv_heads, available=causal(6), batch=3, seed=4)
    check_weights(made.tensors, mode, available=made.available)


@mode_of
@pytest.mark.parametrize(("queries", "keys"), [(3, 7), (7, 3), (1, 5), (5, 1)])
def test_rectangular_patterns(queries, keys, mode):
    made = problem(queries=queries, keys=keys, seed=5)
    check_weights(made.tensors, mode)
    mask = torch.rand(2, queries, keys, generator=torch.Generator().manual_seed(0)) < 0.7
    check_weights(made.tensors, mode, available=mask)


@mode_of
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF], ids=str)
def test_accumulates_in_float32_or_float64(dtype, mode):
    made = problem(available=MASKS["causal, both: b q k"], dtype=dtype, queries=6, seed=6)
    check_weights(made.tensors, mode, available=made.available)
    weights = fast.contribution_weights(*made.tensors, mode=mode, available=made.available)
    assert weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@mode_of
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_float32_pattern_in_a_half_precision_model(dtype, mode):
    made = problem(available=causal(6), seed=15)
    check_weights((made.pattern, made.v.to(dtype), made.W_O.to(dtype)), mode)


@mode_of
def test_strided_and_expanded_inputs(mode):
    made = problem(available=causal(6), seed=7)
    pattern = made.pattern.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    v = torch.zeros(2, 12, 2, 6)[:, ::2, :, ::2]
    v.copy_(made.v)
    W_O = made.W_O[:1].expand(4, -1, -1)
    assert not (pattern.is_contiguous())
    assert not (v.is_contiguous())
    assert not (W_O.is_contiguous())
    check_weights((pattern, v, W_O), mode, available=made.available[None].expand(2, -1, -1))
    one_row = made.pattern[:1].expand(2, -1, -1, -1)
    check_weights((one_row, made.v.flip(1), made.W_O.transpose(1, 2).contiguous().mT), mode)


@mode_of
@pytest.mark.parametrize("name", ["causal: 1 q k", "causal, gaps: b q k", "heads: b h q k"])
def test_factors(name, mode):
    made = problem(available=MASKS[name], seed=8)
    made.v[:, 1] = 0  # the cosine with a zero vector is 0
    expected = literal.contribution_factors(*made.tensors, mode=mode, available=made.available)
    actual = fast.contribution_factors(*made.tensors, mode=mode, available=made.available)
    rows = available_mask(made.pattern, made.available).any(-1, keepdims=True)
    seen = available_mask(made.pattern, made.available) | ~rows
    for field, values in zip(("attention", "relative_norm", "cosine"), expected, strict=True):
        values = np.where(seen, values, 0)
        found = torch.where(torch.from_numpy(seen), getattr(actual, field), 0)
        assert_same(found, values, 1e-5 * (1 + np.nan_to_num(np.abs(values))))


BASELINES = {
    "value_weighted": (fast.value_weighted_attention, literal.value_weighted_attention, {}),
    "normalized": (
        fast.value_weighted_attention,
        literal.value_weighted_attention,
        {"normalized": True},
    ),
    "suppression": (fast.suppression, literal.suppression, {}),
    **{
        f"importance {kind}{' absolute' * absolute}": (
            fast.importance,
            literal.importance,
            {"kind": kind, "absolute": absolute},
        )
        for kind in ("contribution", "attention", "value_weighted", "value_weighted_normalized")
        for absolute in (False, True)
    },
}


@mode_of
@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name, mode):
    actual, expected, options = BASELINES[name]
    for mask in (None, MASKS["causal, left: b q k"], MASKS["heads: b h q k"]):
        made = problem(available=mask, seed=9)
        options = {"available": mask, "mode": mode, **options}
        values = expected(*made.tensors, **options)
        tolerance = 1e-5 * (1 + np.nan_to_num(np.abs(values)).sum(-1, keepdims=True))
        assert_same(actual(*made.tensors, **options), values, tolerance)


OPTIONED = {
    "weights": (fast.contribution_weights, literal.contribution_weights),
    "suppression": (fast.suppression, literal.suppression),
    "value_weighted": (fast.value_weighted_attention, literal.value_weighted_attention),
    "importance": (fast.importance, literal.importance),
    "attention": (
        lambda *tensors, **options: fast.contribution_factors(*tensors, **options).attention,
        lambda *tensors, **options: literal.contribution_factors(*tensors, **options)[0],
    ),
    "relative_norm": (
        lambda *tensors, **options: fast.contribution_factors(*tensors, **options).relative_norm,
        lambda *tensors, **options: literal.contribution_factors(*tensors, **options)[1],
    ),
    "cosine": (
        lambda *tensors, **options: fast.contribution_factors(*tensors, **options).cosine,
        lambda *tensors, **options: literal.contribution_factors(*tensors, **options)[2],
    ),
}


@mode_of
@pytest.mark.parametrize("name", OPTIONED)
def test_removed_bias_and_output_norm(name, mode):
    actual, expected = OPTIONED[name]
    made = problem(seed=10)  # full attention
    generator = torch.Generator().manual_seed(11)
    b_V = 2 * torch.randn(2, 3, generator=generator)
    ungrouped = (made.pattern, made.v.repeat_interleave(2, 2), made.W_O)
    norm_weight = torch.randn(7, generator=generator)
    cases = [
        (made.tensors, {"value_bias": "remove", "b_V": b_V}),
        (made.tensors, {"value_bias": "remove", "b_V": b_V.repeat_interleave(2, 0)}),
        (ungrouped, {"value_bias": "remove", "b_V": torch.randn(4, 3, generator=generator)}),
        (made.tensors, {"output": "normed", "norm_weight": norm_weight}),
        (
            made.tensors,
            {
                "output": "normed",
                "norm_weight": norm_weight,
                "value_bias": "remove",
                "b_V": b_V,
            },
        ),
    ]
    plain = expected(*made.tensors, mode=mode)
    for tensors, options in cases:
        values = expected(*tensors, mode=mode, **options)
        if name != "attention":
            assert np.abs(values - plain).max() > 1e-2  # the option matters here
        tolerance = 1e-5 * (1 + np.abs(values).sum(-1, keepdims=True))
        assert_same(actual(*tensors, mode=mode, **options), values, tolerance)


def test_closed_forms():
    pattern = torch.tensor([[[[1.0, 0.0], [0.75, 0.25]]]])
    v = torch.eye(2)[None, :, None]
    W_O = 3 * torch.eye(2)[None]
    weights = fast.contribution_weights(pattern, v, W_O)
    torch.testing.assert_close(weights[0, 0], torch.tensor([[1.0, 0.0], [0.9, 0.1]]))
    opposed = torch.stack([v[0, 0], -v[0, 0]])[None]  # 0.75 e - 0.25 e = 0.5 e
    weights = fast.contribution_weights(pattern, opposed, W_O)
    torch.testing.assert_close(weights[0, 0], torch.tensor([[1.0, 0.0], [1.5, -0.5]]))
    suppressed = fast.suppression(pattern, opposed, W_O)
    torch.testing.assert_close(suppressed[0, 0], torch.tensor([[0.0, 0.0], [-0.75, 0.75]]))


def test_two_heads_share_the_output_of_their_layer():
    pattern, v = torch.ones(1, 2, 1, 1), torch.ones(1, 1, 1, 1)
    W_O = torch.tensor([[[3.0]], [[-1.0]]])
    weights = fast.contribution_weights(pattern, v, W_O, mode="inter")
    torch.testing.assert_close(weights.flatten(), torch.tensor([1.5, -0.5]))
    assert fast.contribution_weights(pattern, v, W_O).flatten().tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["random", "attention", "contribution"])
def test_importance_of_padding(kind):
    mask = padded(causal(6), token_mask("both", 2, 6))
    made = problem(available=mask, seed=12)
    values = fast.importance(*made.tensors, kind=kind, available=mask)
    empty = ~mask.any(-1)[:, None].expand(-1, 4, -1)
    assert values[empty].isnan().all()
    assert values[~empty].isfinite().all()
    outside = ~mask[:, None].expand(-1, 4, -1, -1) & ~empty[..., None]
    assert (values[outside] == 0).all()


def test_random_importance_is_seeded():
    made = problem(seed=13)

    def draw(**options):
        return fast.importance(*made.tensors, kind="random", **options)

    assert torch.equal(draw(), draw(seed=0))
    assert not torch.equal(draw(), draw(seed=1))
    assert len(draw().unique()) == draw().numel()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    draw(seed=5)
    assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone
    first, second = (draw(generator=torch.Generator().manual_seed(s)) for s in (8, 8))
    assert torch.equal(first, second)
    generator = torch.Generator().manual_seed(8)
    assert not torch.equal(draw(generator=generator), draw(generator=generator))
