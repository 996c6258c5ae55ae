"""Separability of rows whose numbers follow by hand, and the bounds that hold for every row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from literal import separability as literal
from literal.rows import layers, profile

from tl_geometry import inversion_bounds, separability

DTYPES = (torch.float64, torch.float32)
dtype_of = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def one_row(weights, values, dtype=torch.float64, **options):
    """Scores of a single query that sees every key: a dict of lists over top_n."""
    pattern = torch.tensor([[[weights]]], dtype=dtype)
    v = torch.tensor(values, dtype=dtype).view(1, len(weights), 1, -1)
    scores = separability(pattern, v, **options)
    return {name: getattr(scores, name)[0, 0, 0].tolist() for name in literal.FIELDS}


def check(found, place, *, precision, recall, inversions, margin, tolerance=1e-6):
    f_score = 2 * precision * recall / (precision + recall) if recall else 0
    expected = (precision, recall, f_score, margin, inversions)
    for name, value in zip(literal.FIELDS, expected, strict=True):
        assert found[name][place] == pytest.approx(value, abs=tolerance), (name, found)


SEPARATED = {"precision": 1, "recall": 1, "inversions": 0}


@dtype_of
def test_identical_values_are_ordered_by_attention(dtype):
    """y_j = a_j v, s = A v: D_j = (A - a_j)|v| falls as attention grows; the margin is a_N - a_N+1."""
    weights = [0.05, 0.4, 0.1, 0.25, 0.2]
    found = one_row(weights, [[3.0, 4.0]] * 5, dtype, top_n=(1, 2, 3, 4))
    for place, margin in enumerate((0.15, 0.05, 0.1, 0.05)):
        check(found, place, **SEPARATED, margin=5 * margin)
    if dtype == torch.float32:  # in float64 the 1e-12 of the definition shows
        cosine = one_row(weights, [[3.0, 4.0]] * 5, dtype, top_n=(2,), distance="cosine")
        # All point along s: every distance is 0.
        check(cosine, 0, precision=2 / 5, recall=0, inversions=6, margin=0, tolerance=1e-5)


@dtype_of
@pytest.mark.parametrize("n", [1, 2, 4])
def test_identical_contributions_cannot_be_told_apart(dtype, n):
    """All distances are (N - 1)|y|: each unselected key ties with each selected one."""
    found = one_row([0.2] * 5, [[1.0, 2.0]] * 5, dtype, top_n=(n,))
    check(found, 0, precision=n / 5, recall=0, inversions=n * (5 - n), margin=0)


@dtype_of
def test_orthogonal_values_are_always_separated(dtype):
    """|s|^2 - q_i^2 for a selected key, |s|^2 + q_j^2 for another."""
    lengths = [0.4 * 2, 0.3 * 1, 0.2 * 3, 0.1 * 5]
    values = np.diag([2.0, 1.0, 3.0, 5.0])
    found = one_row([0.4, 0.3, 0.2, 0.1], values, dtype, top_n=(1, 2, 3, 4))
    for n in (1, 2, 3):
        square = sum(q * q for q in lengths[:n])
        near = math.sqrt(square + min(lengths[n:]) ** 2)
        far = math.sqrt(square - min(lengths[:n]) ** 2)
        check(found, n - 1, **SEPARATED, margin=near - far)
    assert np.isnan([found[name][3] for name in literal.FIELDS]).all()
    cosine = one_row([0.4, 0.3, 0.2, 0.1], values, dtype, top_n=(2,), distance="cosine")
    check(cosine, 0, **SEPARATED, margin=0.3 / math.hypot(0.8, 0.3), tolerance=1e-5)


SINK = [[-0.2, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]


@dtype_of
def test_an_anti_aligned_small_sink_breaks_the_cluster(dtype):
    """y = (-0.1, 0.3, 0.15, 0.05) along one direction.

    N = 2: s = 0.2, so D = 0.3 and 0.1 for the selected, 0.05 and 0.15 for the others. The sink is
    behind both others, key 1 behind one of them. Without the sink s = 0.45 and D = 0.15, 0.3 | 0.4.
    N = 3: s = 0.35, D = 0.45, 0.05, 0.2 | 0.3: only the sink is out of order.
    """
    weights = [0.5, 0.3, 0.15, 0.05]
    found = one_row(weights, SINK, dtype, top_n=(2, 3))
    check(found, 0, precision=2 / 4, recall=0, inversions=3, margin=-0.25)
    check(found, 1, precision=3 / 4, recall=2 / 3, inversions=1, margin=-0.15)
    without = one_row(weights, SINK, dtype, top_n=(2, 3), exclude_sink=True)
    check(without, 0, **SEPARATED, margin=0.1)
    assert np.isnan(without["f_score"][1])  # three candidates are left
    other = one_row(weights, SINK, dtype, top_n=(2,), exclude_sink=True, sink=3)
    # s = 0.2 as before; now 0.05 (key 2) is the only other key.
    check(other, 0, precision=2 / 3, recall=0, inversions=2, margin=-0.25)


@dtype_of
def test_value_weighting_selects_by_length(dtype):
    """|y| = 0.1, 0.3, 0.15, 0.05, so that N = 2 selects keys 1 and 2: s = 0.45.

    D = 0.15, 0.3 for them, 0.55 and 0.4 for the others.
    """
    found = one_row([0.5, 0.3, 0.15, 0.05], SINK, dtype, top_n=(2,), rank_by="value_weighted")
    check(found, 0, **SEPARATED, margin=0.1)


@dtype_of
def test_all_keys_but_one(dtype):
    """N = 3 of 4 with a faraway key left out, and with one in the midst of the selected.

    Contributions 0.3, 0.2, 0.1 and u: s = 0.6, D = 0.3, 0.4, 0.5 | |u - 0.6|.
    """
    values = [[1.0], [0.8], [0.5], [-4.0]]
    weights = [0.3, 0.25, 0.2, 0.05]
    check(one_row(weights, values, dtype, top_n=(3,)), 0, **SEPARATED, margin=0.3)
    values[3] = [4.0]  # u = 0.2: as near as the second
    found = one_row(weights, values, dtype, top_n=(3,))
    check(found, 0, precision=3 / 4, recall=1 / 3, inversions=2, margin=-0.1)
    assert np.isnan(one_row(weights, values, dtype, top_n=(4,))["f_score"]).all()


@dtype_of
@pytest.mark.parametrize("rank_by", ["attention", "value_weighted", "random"])
def test_a_single_key_is_its_own_centre(dtype, rank_by):
    generator = torch.Generator().manual_seed(0)
    pattern = torch.rand(2, 3, 5, 7, generator=generator, dtype=dtype).softmax(-1)
    v = torch.randn(2, 7, 3, 4, generator=generator, dtype=dtype)
    scores = separability(pattern, v, top_n=(1,), rank_by=rank_by, repeats=3)
    assert (scores.f_score == 1).all()
    assert (scores.inversions == 0).all()
    assert (scores.margin > 0).all()


@dtype_of
def test_a_sum_of_zero_has_no_direction(dtype):
    """Opposite contributions cancel: with the cosine every distance is 1."""
    values = [[1.0, 2.0], [-1.0, -2.0], [1.0, 0.0], [0.0, 1.0]]
    weights = [0.3, 0.3, 0.2, 0.2]
    found = one_row(weights, values, dtype, top_n=(2,), distance="cosine")
    check(found, 0, precision=2 / 4, recall=0, inversions=4, margin=0)
    # Euclidean: |y| = 0.3 sqrt(5) twice, the others 0.2.
    found = one_row(weights, values, dtype, top_n=(2,))
    check(found, 0, precision=2 / 4, recall=0, inversions=4, margin=0.2 - 0.3 * math.sqrt(5))


@dtype_of
@pytest.mark.parametrize("weights", [[0.25] * 4, [0.0] * 4])
def test_zero_contributions_all_tie(dtype, weights):
    values = [[0.0, 0.0]] * 4 if weights[0] else [[1.0, 2.0]] * 4
    for distance in ("euclidean", "cosine"):
        for rank_by in ("attention", "value_weighted"):
            found = one_row(
                weights, values, dtype, top_n=(1, 3), distance=distance, rank_by=rank_by
            )
            check(found, 0, precision=1 / 4, recall=0, inversions=3, margin=0)
            check(found, 1, precision=3 / 4, recall=0, inversions=3, margin=0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16, torch.float16], ids=str)
def test_equal_attention_goes_to_the_lower_key(dtype):
    """Orthogonal values of different length reveal through the margin which keys were taken."""
    weights, lengths = [0.125, 0.25, 0.25, 0.25, 0.125], [1.0, 2.0, 3.0, 4.0, 0.5]
    q = [a * length for a, length in zip(weights, lengths, strict=True)]
    found = one_row(weights, np.diag(lengths), dtype, top_n=(2, 4))
    for place, (selected, others) in enumerate([((1, 2), (0, 3, 4)), ((1, 2, 3, 0), (4,))]):
        square = sum(q[i] ** 2 for i in selected)
        near = math.sqrt(square + min(q[j] for j in others) ** 2)
        far = math.sqrt(square - min(q[i] for i in selected) ** 2)
        check(found, place, **SEPARATED, margin=near - far, tolerance=1e-5)


@dtype_of
def test_long_rows_of_equal_attention(dtype):
    """The first 32 of 500 equal weights, where partial selection has the most freedom."""
    v = torch.randn(1, 500, 1, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    v[0, :32, 0] = torch.tensor([1.0, 0.0]) + 0.01 * v[0, :32, 0]
    pattern = torch.full((1, 1, 1, 500), 1 / 512, dtype=dtype)
    equal = separability(pattern, v, top_n=(4, 32))
    y = v[0, :, 0].double().numpy() / 512
    for place, n in enumerate((4, 32)):
        exact = literal.clusters(y, range(n), range(n, 500))[0]
        assert equal.margin[0, 0, 0, place].item() == pytest.approx(exact.margin, rel=1e-4)
        assert equal.inversions[0, 0, 0, place] == exact.inversions


# -- bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("rank_by", ["attention", "value_weighted", "random"])
def test_inversions_bound_the_other_scores(rank_by, distance):
    top_n = (1, 2, 3, 5, 8)
    n = torch.tensor(top_n, dtype=torch.float64)

    @profile
    @given(layers(dtypes=(*DTYPES, torch.bfloat16), longest=16))
    def run(rows):
        made = rows.made
        scores = separability(
            made.pattern, made.v, available=made.available,
            top_n=top_n, distance=distance, rank_by=rank_by, repeats=1,
        )  # fmt: skip
        known = ~scores.f_score.isnan()
        precision, recall, f_score, margin, inversions = (
            getattr(scores, name).double() for name in literal.FIELDS
        )
        wrong, missed = n / precision - n, n * (1 - recall)
        bounds = inversion_bounds(scores.inversions, top_n)
        for bound, value in zip(bounds, (precision, recall, f_score), strict=True):
            assert torch.equal(bound.isnan(), ~known)
            assert (value - bound >= -1e-6)[known].all()
        assert (torch.maximum(wrong, missed) <= inversions + 1e-4)[known].all()
        assert (inversions <= wrong * missed + 1e-4)[known].all()
        for perfect in (margin > 0, f_score == 1, (precision == 1) & (recall == 1)):
            assert torch.equal(perfect[known], (inversions == 0)[known])

    run()


def test_bounds_follow_the_formula():
    top_n = (1, 2, 4, 32)
    inversions = torch.arange(0, 40, dtype=torch.float64)
    bounds = inversion_bounds(inversions[:, None].expand(-1, 4), top_n)
    for (g, k), value in np.ndenumerate(bounds[2].numpy()):
        expected = literal.inversion_bounds(inversions[g].item(), top_n[k])
        found = [bound[g, k].item() for bound in bounds]
        assert found == pytest.approx(expected)
        precision, recall = found[:2]
        harmonic = 2 * precision * recall / (precision + recall)
        assert value == pytest.approx(harmonic if recall > 0 else 0)
    narrow = inversion_bounds(torch.tensor([[0.0], [1.0], [math.nan]]), 2)
    assert all(bound[:2].shape == (2, 1) and bound[2].isnan().all() for bound in narrow)
    assert narrow[2].dtype == torch.float32
