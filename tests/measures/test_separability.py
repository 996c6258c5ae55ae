"""Separability against its definition, row by row, under every option."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from literal import separability as literal
from literal.masks import all_masks, available_mask, causal, padded, token_mask
from literal.problems import problem
from literal.rows import Rows, layers, profile

from tl_geometry import separability, sink_aware_certificate

TOP_N = (1, 2, 3, 4, 6, 8)
HALF = (torch.bfloat16, torch.float16)
MASKS = all_masks(batch=2, heads=4, length=6)


def close(actual, expected, tolerance=1e-6):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_same_scores(left, right, tolerance=1e-6):
    for name in literal.FIELDS:
        close(getattr(left, name), getattr(right, name), tolerance)


def real_rows(scores, mask):
    """(document, place in the result, query) of every row of a real query."""
    real = mask.any((1, 3))
    for b in range(mask.shape[0]):
        for place, query in enumerate(scores.query[b].tolist()):
            if real[b, query]:
                yield b, place, query


def compare(rows, *, top_n=TOP_N, distance="euclidean", **options):
    """All queries of a layer; returns how many rows were compared and how many were ambiguous."""
    made, counts = rows.made, Counter()
    tensors = made.pattern, made.v, made.W_O if options.get("space") == "model" else None
    fixed = {"available": made.available, **options}
    scores = separability(*tensors, top_n=top_n, distance=distance, **fixed)
    mask = available_mask(made.pattern, made.available)
    reference = literal.rows(*tensors, **fixed)
    found = {name: getattr(scores, name).double().numpy() for name in literal.FIELDS}
    assert all(values.shape == (*made.pattern.shape[:3], len(top_n)) for values in found.values())
    seen = np.zeros(found["margin"].shape, dtype=bool)
    for b, place, query in real_rows(scores, mask):
        for h in range(mask.shape[1]):
            for k, n in enumerate(top_n):
                seen[b, h, place, k] = True
                actual = {name: values[b, h, place, k] for name, values in found.items()}
                compare_row(reference[b, h, query], n, actual, distance, rows.eps, counts)
    assert all(np.isnan(values[~seen]).all() for values in found.values())
    return counts


def compare_row(row, n, actual, distance, eps, counts):
    """Between the extremes that rounding allows, which are one and the same but for rare rows."""
    exact, best, worst = row.scores_of(n, distance=distance, eps=eps)
    if np.isnan(exact.f_score):
        assert np.isnan(list(actual.values())).all(), (n, actual)
        return
    counts["rows"] += 1
    if row.uncertain(n, eps):
        counts["unranked"] += 1
        return
    counts["ambiguous"] += best != worst
    for name in ("precision", "recall", "f_score"):
        least, most = getattr(worst, name), getattr(best, name)
        assert least - 1e-6 <= actual[name] <= most + 1e-6, (name, n, actual, exact)
    assert best.inversions <= actual["inversions"] <= worst.inversions, (n, actual, exact)
    assert abs(actual["margin"] - exact.margin) <= exact.margin_error, (n, actual, exact)
    perfect = {actual["margin"] > 0, actual["inversions"] == 0, actual["f_score"] == 1}
    assert len(perfect) == 1, actual


SINGLE, ORDINARY = {"dtypes": (torch.float32,)}, {"exponents": (0, -20, 20)}
RUNS = {
    "float64": ({}, {}),
    "float32": (SINGLE, {}),
    "half": ({"dtypes": HALF}, {}),
    "float64, cosine": (ORDINARY, {"distance": "cosine"}),
    "float32, cosine": (SINGLE | ORDINARY, {"distance": "cosine"}),
    "float64, model space": ({}, {"space": "model"}),
    "float32, model space": (SINGLE, {"space": "model"}),
    "float64, cosine, model space": (ORDINARY, {"distance": "cosine", "space": "model"}),
    "float64, value-weighted": ({}, {"rank_by": "value_weighted"}),
    "float32, value-weighted": (SINGLE, {"rank_by": "value_weighted"}),
    "float64, no sink": ({}, {"exclude_sink": True}),
    "half, no sink": ({"dtypes": HALF}, {"exclude_sink": True}),
}


@pytest.mark.parametrize("name", RUNS)
def test_fast_form_equals_the_definition(name):
    drawn, options = RUNS[name]
    total = Counter()

    @profile
    @given(layers(**drawn))
    def run(rows):
        counts = compare(rows, **options)
        # Steep softmax rows hold weights of any size, also such that differ by a few ulp of 1.
        if rows.eps == literal.DOUBLE and rows.kinds[1] != "sharp" and "cosine" not in name:
            assert not counts["ambiguous"] + counts["unranked"]
        total.update(counts)

    run()
    assert total["rows"] > 1500
    # How rare such rows are is a matter of the inputs drawn, not of the form under test; none of them
    # is left out above. A sum that cancels leaves its direction uncertain, and values that a small
    # W_O maps to a line have cosines of 1 or -1 that tie up to rounding.
    rare = (0.04 if "model" in name else 0.03) if "cosine" in name else 0.01
    assert total["ambiguous"] + total["unranked"] <= rare * total["rows"], total


@pytest.mark.parametrize("space", ["head", "model"])
@pytest.mark.parametrize("name", MASKS)
def test_every_mask(name, space):
    made = problem(available=MASKS[name], dtype=torch.float64, seed=1)
    assert compare(Rows(made, (name, "", ""), 1.0), space=space)["rows"] > 0


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (5, 7), (7, 5), (1, 6)])
def test_default_mask(queries, keys):
    """Causal if nothing lies above the diagonal of a square pattern, else everything."""
    for mask in (None, causal(6)[None] if queries == keys else None):
        made = problem(available=mask, queries=queries, keys=keys, dtype=torch.float64)
        made = Rows(type(made)(*made.tensors, None), ("", "", ""), 1.0)
        assert compare(made, exclude_sink=True)["rows"] > 0


SINKS = {
    "third": 2,
    "two": [0, 2],
    "tensor b k": torch.tensor([[0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0]], dtype=torch.bool),
    "tensor b h k": torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(1)) < 0.3,
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("mask", ["causal: 1 q k", "causal, left: b q k", "full: b q k"])
def test_excluded_sinks(sink, mask):
    made = problem(available=MASKS[mask], dtype=torch.float64, seed=2)
    for rank_by in ("attention", "value_weighted"):
        options = {"sink": SINKS[sink], "exclude_sink": True, "rank_by": rank_by}
        assert compare(Rows(made, (mask, "", ""), 1.0), **options)["rows"] > 0


def test_an_excluded_sink_is_like_a_key_that_cannot_be_seen():
    made = problem(available=MASKS["full: b q k"], seed=3)
    hidden = MASKS["full: b q k"].clone()
    hidden[..., 1] = False
    left = separability(*made.tensors, available=made.available, sink=1, exclude_sink=True)
    assert_same_scores(left, separability(*made.tensors, available=hidden))


def test_rows_of_realistic_length():
    made = problem(
        available=causal(150)[None],
        batch=1,
        heads=2,
        kv_heads=1,
        queries=150,
        d_head=64,
        d_model=96,
        seed=4,
    )
    sizes, places = (1, 4, 16, 32), [3, 40, 149]
    scores = separability(
        *made.tensors, top_n=sizes, queries=torch.tensor(places), available=made.available
    )
    short = type(made)(made.pattern[:, :, places], *made.tensors[1:], made.available[:, places])
    reference = literal.rows(short.pattern, short.v, available=short.available)
    counts = Counter()
    for (b, h, i), row in reference.items():
        for k, n in enumerate(sizes):
            actual = {name: getattr(scores, name)[b, h, i, k].item() for name in literal.FIELDS}
            compare_row(row, n, actual, "euclidean", 2.0**-23, counts)
    assert counts["rows"] == 2 * (1 + 4 + 4)
    assert counts["ambiguous"] <= 1


# -- which queries -----------------------------------------------------------------------------------


def picked(made, queries, **options):
    """Scores of some queries beside those of all, gathered by the positions they report."""
    some = separability(*made.tensors, queries=queries, available=made.available, **options)
    every = separability(*made.tensors, available=made.available, **options)
    for name in literal.FIELDS:
        values = getattr(every, name)
        places = some.query[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[3])
        chosen, expected = getattr(some, name), values.gather(2, places)
        known = ~chosen.isnan()
        close(chosen[known], expected[known])
    return some


@pytest.mark.parametrize("side", ["left", "right", "both", "gaps"])
@pytest.mark.parametrize("count", [1, 3, 5, 9, 40])
def test_evenly_spaced_queries(side, count):
    tokens = token_mask(side, 2, 9)
    made = problem(queries=9, available=padded(causal(9), tokens), seed=5)
    scores = picked(made, count, top_n=(1, 2))
    for b in range(2):
        wanted = literal.evenly_spaced(tokens[b].nonzero()[:, 0].tolist(), count)
        seen = {
            query
            for query, value in zip(scores.query[b], scores.f_score[b, 0, :, 0], strict=True)
            if not value.isnan()
        }
        # A query that sees a single key has no score.
        assert {int(q) for q in seen} == {q for q in wanted if made.available[b, q].sum() > 1}


@pytest.mark.parametrize("side", ["left", "right", "both", "gaps"])
def test_last_query(side):
    tokens = token_mask(side, 2, 6)
    made = problem(available=padded(causal(6), tokens), seed=6)
    scores = picked(made, "last", top_n=(1, 2))
    assert scores.query.tolist() == [[int(row.nonzero()[-1])] for row in tokens]
    assert not scores.f_score.isnan().any()


def test_queries_by_position():
    made = problem(available=MASKS["causal, left: b q k"], seed=7)
    scores = picked(made, torch.tensor([5, 2, 0]), top_n=(1, 2))
    assert scores.query.tolist() == [[5, 2, 0]] * 2
    assert scores.f_score[:, :, 2].isnan().all()  # padding
    each = torch.tensor([[5, 3], [4, 2]], dtype=torch.int32)
    assert picked(made, each, top_n=(1, 2)).query.tolist() == each.tolist()


def test_sizes_come_back_in_the_order_given():
    made = problem(available=causal(6)[None], seed=8)
    mixed = separability(*made.tensors, top_n=(4, 1, 4, 2))
    sorted_ = separability(*made.tensors, top_n=(1, 2, 4))
    for name in literal.FIELDS:
        close(getattr(mixed, name), getattr(sorted_, name)[..., [2, 0, 2, 1]])
    one = separability(*made.tensors, top_n=2)
    close(one.f_score, sorted_.f_score[..., 1:2])


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("function", [separability, sink_aware_certificate])
def test_a_value_that_is_no_number_gives_no_number(function, distance):
    """Comparisons with it are false, which must not be counted as separated or as inversions."""
    options = {"top_n": (1, 2), "queries": torch.tensor([6, 7])}
    if function is separability:
        options["distance"] = distance
    made = problem(queries=8, available=causal(8)[None], seed=4)
    v = made.v.clone()
    v[0, 3, 0, 1] = torch.nan
    found = function(made.pattern, v, made.W_O, available=made.available, **options)
    usual = function(*made.tensors, available=made.available, **options)
    for name in ("precision", "recall", "f_score", "inversions"):
        spoilt, expected = getattr(found, name), getattr(usual, name)
        assert spoilt[0, :2].isnan().all()  # the heads that read these values
        torch.testing.assert_close(spoilt[0, 2:], expected[0, 2:])
        torch.testing.assert_close(spoilt[1], expected[1])


def test_derivatives_of_the_margin():
    """By finite differences, with N = 1 too, where a distance is exactly zero."""
    made = problem(queries=6, available=causal(6)[None], batch=1, seed=4).to(torch.float64)
    v = made.v.clone().requires_grad_()

    def run(v):
        queries = torch.tensor([5])
        return separability(made.pattern, v, top_n=(2, 1), queries=queries).margin[..., 0]

    assert torch.autograd.gradcheck(run, (v,))
