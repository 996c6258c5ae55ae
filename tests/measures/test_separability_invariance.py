"""What must not change a score: scale, padding, batches, layout, precision, blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import separability as literal
from literal.masks import all_masks, causal, padded, token_mask
from literal.problems import problem

from tl_geometry import separability

TOP_N = (1, 2, 3, 4)
MASKS = all_masks(batch=2, heads=4, length=6)
OPTIONS = ({}, {"space": "model"}, {"distance": "cosine"}, {"rank_by": "value_weighted"})


def close(actual, expected, tolerance=1e-6):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_same_scores(left, right, tolerance=1e-6):
    for name in literal.FIELDS:
        close(getattr(left, name), getattr(right, name), tolerance)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[1], OPTIONS[3]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale_of_the_values(dtype, options):
    made = problem(available=MASKS["causal, gaps: b q k"], dtype=dtype, seed=9)
    usual = separability(*made.tensors, available=made.available, top_n=TOP_N, **options)
    for exponent in (-100, -30, -20, 20, 30, 100):
        scale = 2.0**exponent
        scaled = separability(
            made.pattern, made.v * scale, made.W_O, available=made.available, top_n=TOP_N, **options
        )
        for name in ("precision", "recall", "f_score", "inversions"):
            close(getattr(scaled, name), getattr(usual, name), 0)
        close(scaled.margin / scale, usual.margin)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("side", ["left", "right", "both", "gaps"])
def test_padding_and_batches_change_nothing(side, options):
    tokens = token_mask(side, 2, 9)
    mask = padded(causal(9), tokens)
    made = problem(queries=9, available=mask, seed=10)
    full = separability(*made.tensors, available=mask, **options)
    for b, places in enumerate(t.nonzero()[:, 0] for t in tokens):
        alone = separability(
            made.pattern[b : b + 1, :, places][..., places],
            made.v[b : b + 1, places],
            made.W_O,
            available=causal(len(places))[None],
            **options,
        )
        for name in literal.FIELDS:
            close(getattr(full, name)[b : b + 1, :, places], getattr(alone, name))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("garbage", [1e6, 1e30, np.inf, np.nan])
def test_values_of_padding_do_not_leak(garbage, options):
    mask = MASKS["causal, left: b q k"]
    made = problem(available=mask, seed=7)
    usual = separability(*made.tensors, available=mask, **options)
    v = torch.where(mask.any(1)[..., None, None], made.v, garbage)
    spoilt = separability(made.pattern, v, made.W_O, available=mask, **options)
    assert_same_scores(spoilt, usual)


def test_half_precision_is_widened_first():
    made = problem(available=MASKS["causal, left: b q k"], dtype=torch.bfloat16, seed=11)
    wide = made.to(torch.float32)
    for space in ("head", "model"):
        narrow = separability(*made.tensors, space=space, available=made.available)
        assert narrow.f_score.dtype == torch.float32
        same = separability(*wide.tensors, space=space, available=made.available)
        assert_same_scores(narrow, same, 0)


def test_grouped_heads_equal_their_copies():
    made = problem(available=MASKS["causal, left: b q k"], seed=12)
    copies = made.v.repeat_interleave(2, 2)
    for space in ("head", "model"):
        grouped = separability(*made.tensors, space=space, available=made.available)
        single = separability(made.pattern, copies, made.W_O, space=space, available=made.available)
        assert_same_scores(grouped, single)


def test_isometric_outputs_are_scored_as_the_values_are():
    made = problem(available=MASKS["full, both: b q k"], dtype=torch.float64, seed=13)
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 7, 3, generator=generator).double()).Q.mT
    plain = separability(*made.tensors, available=made.available)
    outputs = separability(made.pattern, made.v, turn, space="model", available=made.available)
    assert_same_scores(plain, outputs, 1e-5)


def test_inputs_are_never_modified_and_may_be_strided():
    made = problem(available=MASKS["causal, left: b q k"], seed=14)
    kept = [x.clone() for x in (*made.tensors, made.available)]
    usual = separability(*made.tensors, space="model", available=made.available)
    for before, after in zip(kept, (*made.tensors, made.available), strict=True):
        assert torch.equal(before, after)
    strided = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in made.tensors]
    assert not any(x.is_contiguous() for x in strided)
    other = separability(*strided, space="model", available=made.available.mT.clone().mT)
    assert_same_scores(usual, other)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_a_factor_common_to_the_attention_of_a_row(options):
    """What is left beside an excluded sink may be any small share of the row."""
    mask = MASKS["full, both: b q k"]
    made = problem(available=mask, queries=6, seed=16)
    usual = separability(*made.tensors, available=mask, top_n=(1, 2), **options)
    for exponent in (-30, -70, -100):
        scale = 2.0**exponent
        scaled = separability(
            made.pattern * scale, made.v, made.W_O, available=mask, top_n=(1, 2), **options
        )
        for name in ("precision", "recall", "f_score", "inversions"):
            close(getattr(scaled, name), getattr(usual, name), 0)
        close(scaled.margin / scale, usual.margin)


@pytest.mark.parametrize("weight", [1e-15, 1e-23, 1e-30])
def test_a_tiny_weight_keeps_its_cosine_within_one(weight):
    pattern = torch.tensor([[[[1.0, weight, weight]]]])
    v = 2.0**20 * torch.tensor([[3.0, 4.0], [4.0, 3.0], [-3.0, 4.0]]).view(1, 3, 1, 2)
    found = separability(pattern, v, top_n=1, distance="cosine").margin.item()
    y = pattern[0, 0, 0].double().numpy()[:, None] * v[0, :, 0].double().numpy()
    expected = literal.clusters(y, [0], [1, 2], distance="cosine")[0].margin
    assert found == pytest.approx(expected, abs=4 * torch.finfo(torch.float32).eps)


def test_negative_zero_is_zero():
    pattern = torch.tensor([[[[-0.0, 0.7, -0.0, 0.3]]]])
    v = torch.randn(1, 4, 1, 3, generator=torch.Generator().manual_seed(0))
    hidden = torch.tensor([[[True, True, True, False]]])
    assert_same_scores(
        separability(pattern, v, top_n=(1, 2), available=hidden),
        separability(pattern.abs(), v, top_n=(1, 2), available=hidden),
    )


def test_many_rows_are_worked_in_blocks(monkeypatch):
    from tl_geometry.measures import layer

    made = problem(available=MASKS["causal, left: b q k"], seed=15)
    usual = separability(*made.tensors, available=made.available)
    monkeypatch.setattr(layer, "BLOCK_ELEMENTS", 2 * 4 * 6 * 4)  # blocks of four rows and of two
    assert_same_scores(separability(*made.tensors, available=made.available), usual)
