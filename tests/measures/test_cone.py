"""The semantic cone: alignment with and without the sink against the literal form and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import cone as literal
from literal.masks import all_masks, causal, padded, token_mask
from literal.problems import assert_same, problem

from tl_geometry.measures.cone import lowest_quartile, semantic_alignment

MASKS = all_masks(batch=2, heads=4, length=6)
COSINES = ("tightness", "alignment", "alignment_no_sink")
NORMS = ("norm", "norm_no_sink")


def assert_aligned(found, expected, tolerance):
    assert set(vars(found)) == set(expected)
    for name in (*COSINES, *NORMS):
        assert_same(getattr(found, name), expected[name], tolerance)
    assert found.low_norm.dtype == torch.bool
    assert np.array_equal(found.low_norm.numpy(), expected["low_norm"])


@pytest.mark.parametrize("sink", ["first", 1, [0, 2]], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_alignment_under_every_mask(name, sink):
    made = problem(available=MASKS[name], dtype=torch.float64, seed=1)
    options = {"available": made.available, "sink": sink}
    expected = literal.semantic_alignment(*made.tensors, **options)
    assert_aligned(semantic_alignment(*made.tensors, **options), expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("side", ["left", "right", "both", "gaps"])
def test_single_and_half_precision(side, dtype):
    mask = padded(causal(12), token_mask(side, 2, 12))
    made = problem(queries=12, available=mask, dtype=dtype, seed=2)
    expected = literal.semantic_alignment(*made.tensors, available=mask)
    found = semantic_alignment(*made.tensors, available=mask)
    assert found.norm.dtype == torch.float32
    assert_aligned(found, expected, 1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 2)])
def test_grouped_queries_with_options(heads, kv_heads):
    made = problem(
        heads=heads, kv_heads=kv_heads, queries=9, available=causal(9)[None],
        dtype=torch.float64, seed=3,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(4)
    b_V = torch.randn(kv_heads, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(7, generator=generator, dtype=torch.float64)
    for options in (
        {},
        {"value_bias": "remove", "b_V": b_V},
        {"output": "normed", "norm_weight": weight},
    ):
        expected = literal.semantic_alignment(*made.tensors, available=made.available, **options)
        found = semantic_alignment(*made.tensors, available=made.available, **options)
        assert_aligned(found, expected, 1e-12)


def test_sinks_of_each_head_and_cross_attention():
    marked = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(5)) < 0.4
    made = problem(available=MASKS["causal, both: b q k"], dtype=torch.float64, seed=5)
    options = {"available": made.available, "sink": marked}
    expected = literal.semantic_alignment(*made.tensors, **options)
    assert_aligned(semantic_alignment(*made.tensors, **options), expected, 1e-12)
    for keys in (6, 4):
        made = problem(keys=keys, dtype=torch.float64, seed=6)
        for cross in (False, True):
            expected = literal.semantic_alignment(*made.tensors, cross=cross)
            assert_aligned(semantic_alignment(*made.tensors, cross=cross), expected, 1e-12)


def test_a_key_that_one_head_does_not_see():
    mask = causal(6).expand(2, 4, 6, 6).clone()
    mask[:, 1, :, 3] = False
    made = problem(available=mask, dtype=torch.float64, seed=13)
    expected = literal.semantic_alignment(*made.tensors, available=mask)
    assert_aligned(semantic_alignment(*made.tensors, available=mask), expected, 1e-12)


def test_without_the_sink_outputs_collapse_into_the_cone():
    """Values in a narrow cone, a small sink against them: the claim of the paper, by construction."""
    generator = torch.Generator().manual_seed(7)
    mask = causal(30)[None]
    made = problem(batch=1, heads=2, kv_heads=1, queries=30, available=mask, sharpness=1.0, seed=7)
    v = 0.2 * torch.randn(1, 30, 1, 3, generator=generator) + torch.tensor([2.0, 0, 0])
    v[:, 0] = torch.tensor([-0.3, 0, 0])
    pattern = made.pattern.clone()
    pattern[..., 0] += 9
    pattern /= pattern.sum(-1, keepdim=True)
    W_O = torch.eye(3).expand(2, 3, 3)
    found = semantic_alignment(pattern, v, W_O, available=mask)
    assert (found.tightness > 0.98).all()
    assert (found.alignment_no_sink[:, :, 1:] > 0.95).all()
    assert (found.alignment[:, :, 1:] < found.alignment_no_sink[:, :, 1:] + 1e-6).all()
    assert (found.alignment[:, :, 1:] < 0).float().mean() > 0.5
    zeroed = v.clone()
    zeroed[:, 0] = 0  # the same numbers as with the sink's value at zero, attention kept
    again = semantic_alignment(pattern, zeroed, W_O, available=mask)
    torch.testing.assert_close(again.alignment, found.alignment_no_sink, equal_nan=True)
    torch.testing.assert_close(again.norm, found.norm_no_sink, equal_nan=True)
    torch.testing.assert_close(again.tightness, found.tightness)


def test_the_axis_by_hand():
    v = torch.tensor([[[[5.0, 5.0]], [[2.0, 0.0]], [[0.0, 0.5]], [[0.0, 0.0]]]])
    pattern = torch.tensor([0.5, 0.25, 0.25, 0.0]).expand(1, 1, 4, 4)
    found = semantic_alignment(pattern, v, torch.eye(2)[None])
    # mu is the mean of (1, 0) and (0, 1): the sink and the zero value are left out.
    assert found.tightness.item() == pytest.approx(0.5**0.5)
    assert found.alignment[0, 0, 1].item() == pytest.approx(
        (3 + 2.625) / (2 * (3**2 + 2.625**2)) ** 0.5
    )
    assert found.norm_no_sink[0, 0, 1].item() == pytest.approx((0.5**2 + 0.125**2) ** 0.5)


@pytest.mark.parametrize("size", [1e-20, 1e-15, 1e15, 1e20])
def test_extreme_scales(size):
    made = problem(available=MASKS["causal, right: b q k"], seed=8)
    usual = semantic_alignment(*made.tensors, available=made.available)
    for v, W_O in ((made.v * size, made.W_O), (made.v, made.W_O * size)):
        found = semantic_alignment(made.pattern, v, W_O, available=made.available)
        for name in COSINES:
            torch.testing.assert_close(getattr(found, name), getattr(usual, name), equal_nan=True)
        for name in NORMS:
            expected = getattr(usual, name) * size
            torch.testing.assert_close(
                getattr(found, name), expected, rtol=1e-5, atol=1e-6 * size, equal_nan=True
            )
        assert torch.equal(found.low_norm, usual.low_norm)


def test_heads_and_tokens_of_different_scales():
    made = problem(available=causal(6)[None], seed=9)
    made.W_O.mul_(torch.tensor([1e15, 1.0, 1e-15, 1e-18])[:, None, None])
    made.v.mul_(torch.tensor([1.0, 1e-15, 1e-15, 1.0, 1e12, 1e12])[:, None, None])
    expected = literal.semantic_alignment(*made.tensors, available=made.available)
    found = semantic_alignment(*made.tensors, available=made.available)
    for name in COSINES:
        assert_same(getattr(found, name), expected[name], 1e-5)
    assert found.low_norm.tolist() == expected["low_norm"].tolist() == [[False] * 3 + [True]] * 2


def test_nothing_to_compare_is_nan():
    eye = torch.eye(2)[None]
    one = semantic_alignment(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 2), eye)
    for name in (*COSINES, *NORMS):
        assert getattr(one, name).isnan().all(), name
    assert one.low_norm.tolist() == [[False]]
    tokens = torch.tensor([[True] * 6, [False] * 6])
    mask = padded(causal(6), tokens)
    made = problem(available=mask, seed=10)
    found = semantic_alignment(*made.tensors, available=mask)
    for name in (*COSINES, *NORMS):
        assert getattr(found, name)[1].isnan().all(), name
        assert not getattr(found, name)[0].isnan().all(), name
    assert found.low_norm.sum(-1).tolist() == [1, 0]
    silent = semantic_alignment(made.pattern, 0 * made.v, made.W_O, available=mask)
    for name in COSINES:
        assert getattr(silent, name).isnan().all(), name
    assert (silent.norm[0, :, 1:] == 0).all()


def test_cancelled_outputs_and_axes():
    v = torch.tensor([1.0, -1.0, 3.0, -2.0]).view(1, 4, 1, 1)
    pattern = torch.tensor([[0.5, 0.5, 0, 0], [0.0, 0.5, 0.25, 0.25], [1.0, 0, 0, 0]])
    pattern = torch.cat([pattern[:1], pattern])[None, None]
    found = semantic_alignment(pattern, v, torch.ones(1, 1, 1), available=torch.ones(4, 4).bool())
    assert found.norm[0, 0].tolist()[1:] == [0, 0.25, 1]
    assert found.norm_no_sink[0, 0].tolist()[1:] == [0.5, 0.25, 0]
    assert found.tightness.item() == pytest.approx(1 / 3)
    # mu points down: -1/3. The first output has cancelled, the last has nothing but the sink.
    torch.testing.assert_close(
        found.alignment[0, 0, 1:], torch.tensor([torch.nan, 1, -1]), equal_nan=True
    )
    torch.testing.assert_close(
        found.alignment_no_sink[0, 0, 1:], torch.tensor([1, 1, torch.nan]), equal_nan=True
    )
    opposed = torch.tensor([1.0, -1.0, 1.0]).view(1, 3, 1, 1)
    found = semantic_alignment(torch.full((1, 1, 3, 3), 0.3), opposed, torch.ones(1, 1, 1))
    assert found.tightness.item() == 0
    assert found.alignment.isnan().all()
    assert found.alignment_no_sink.isnan().all()
    assert not found.norm[0, 0, 1:].isnan().any()


@pytest.mark.parametrize("garbage", [1e30, np.inf, np.nan])
def test_padding_takes_no_part(garbage):
    mask = MASKS["causal, both: b q k"]
    made = problem(available=mask, seed=11)
    expected = vars(semantic_alignment(*made.tensors, available=mask))
    v = torch.where(mask.any(1)[..., None, None], made.v, garbage)
    pattern = torch.where(mask.any(-1)[:, None, :, None], made.pattern, np.nan)
    found = semantic_alignment(pattern, v, made.W_O, available=mask)
    for name, values in expected.items():
        torch.testing.assert_close(getattr(found, name), values, equal_nan=True)


def test_gradients_are_finite():
    mask = padded(causal(6), token_mask("both", 2, 6))
    made = problem(available=mask, seed=12)
    made.v[0, 3] = 0
    made.pattern[1, :, 3] = 0
    tensors = [x.clone().requires_grad_() for x in made.tensors]
    found = semantic_alignment(*tensors, available=mask)
    for name in (*COSINES, *NORMS):
        values = getattr(found, name)
        chosen = values[~values.isnan()].sum()
        for gradient in torch.autograd.grad(chosen, tensors, retain_graph=True, allow_unused=True):
            assert gradient is None or gradient.isfinite().all(), name


@pytest.mark.parametrize("heads", [2, 4, 5, 9])
def test_the_lowest_quartile(heads):
    norms = torch.rand(7, heads, generator=torch.Generator().manual_seed(heads))
    expected = [literal.lowest_quartile(row) for row in norms.tolist()]
    assert lowest_quartile(norms).tolist() == expected
    by_numpy = norms.numpy() <= np.quantile(norms.numpy(), 0.25, axis=-1, keepdims=True)
    assert lowest_quartile(norms).tolist() == by_numpy.tolist()


def test_ties_and_single_heads():
    nan = torch.nan
    assert lowest_quartile(torch.tensor([[2.0]])).tolist() == [[False]]
    assert lowest_quartile(torch.tensor([2.0, nan])).tolist() == [False, False]
    assert lowest_quartile(torch.tensor([nan, nan])).tolist() == [False, False]
    assert lowest_quartile(torch.ones(4)).tolist() == [True] * 4
    assert (
        lowest_quartile(torch.tensor([1.0, 1.0, 2.0, 3.0])).tolist() == [True, True] + [False] * 2
    )
    assert lowest_quartile(torch.tensor([0.0, nan, 1.0])).tolist() == [True, False, False]
