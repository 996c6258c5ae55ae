"""Separability over a corpus: literal means per document, the control, and what must not matter."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from analysis_data.reference import document, record, soften, tokens
from literal import certificate as literal_certificate, separability as literal

from tl_geometry import Probe, Separability, analyze

TOP_N = (1, 2, 4, 8)
SCORES = ("precision", "recall", "f_score")
PADDING = {
    "none": [[1] * 19] * 3,
    "right": [[1] * 19, [1] * 6 + [0] * 13, [1] * 17 + [0] * 2],
    "left": [[0] * 13 + [1] * 6, [1] * 19, [0] * 1 + [1] * 18],
    "both": [[0, 0] + [1] * 15 + [0, 0], [0] + [1] * 18, [1] * 10 + [0] * 9],
    "gaps": [[1, 0, 0, *[1] * 16], [1] * 8 + [0] * 3 + [1] * 8, [1] * 17 + [0, 1]],
}


@pytest.fixture
def factory(backend, request):
    """Small models of each class, with soft attention."""
    build = request.getfixturevalue(f"tiny_{backend}")
    return lambda **options: soften(build(**options))


def sides(backend):
    """Where padding may lie in float64: empty rows of a bridge are NaN there."""
    return ("left", "right") if backend == "hooked" else ("right",)


def measured(model, ids, mask=None, groups=None, sink="first", **options):
    """A probe's result; ``groups`` are the batches, by document."""
    mask = torch.ones_like(ids) if mask is None else mask
    probe = Probe(model, [Separability(**options)], sink=sink)
    for rows in groups or [list(range(len(ids)))]:
        model.run_with_hooks(
            ids[rows],
            attention_mask=mask[rows],
            fwd_hooks=probe.hooks(mask[rows], documents=rows),
        )
    return probe.result()


def mean(values):
    kept = [x for x in values if not np.isnan(x)]
    return sum(kept) / len(kept) if kept else np.nan


def one_document(layer, row, real, top_n, queries, sink=0, eps=literal.DOUBLE):
    """Literal means over evenly spaced queries, ``head top_n``."""
    pattern, v, seen = document(layer, row, real)
    places = literal.evenly_spaced(range(pattern.shape[2]), queries)
    options = {"top_n": top_n, "available": seen, "sink": sink, "eps": eps}
    found = literal.separability(pattern, v, **options)
    without = literal.separability(pattern, v, exclude_sink=True, **options)
    certified = literal_certificate.certificate(pattern, v, **options)["f_score"]
    result = {}

    def put(name, head, k, values):
        result.setdefault(name, np.full((pattern.shape[1], len(top_n)), np.nan))[head, k] = values

    for head in range(pattern.shape[1]):
        for k, n in enumerate(top_n):
            for name in SCORES:
                put(name, head, k, mean([found[name][0, head, i, k] for i in places]))
                no_sink = [without[name][0, head, i, k] for i in places]
                put(f"{name}_no_sink", head, k, mean(no_sink))
            inversions = [found["inversions"][0, head, i, k] for i in places]
            known = [g for g in inversions if not np.isnan(g)]
            put("separable_share", head, k, mean([float(g == 0) for g in known]))
            bounds = [literal.inversion_bounds(g, n)[2] for g in known]
            put("inversion_bound", head, k, mean(bounds))
            put("certificate", head, k, mean([certified[0, head, i, k] for i in places]))
            put("separability_rows", head, k, len(known))
    return result


def over_documents(documents):
    """Means and standard errors over the documents that define a number; rows are added."""
    result = {}
    for name in documents[0]:
        values = np.stack([found[name] for found in documents])
        if name == "separability_rows":
            result[name] = values.sum(0)
            continue
        n = (~np.isnan(values)).sum(0)
        total = np.nansum(values, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            result[name] = total / n
            variance = np.nansum((values - result[name]) ** 2, 0) / (n - 1)
            result[f"{name}_se"] = np.where(n > 1, np.sqrt(variance / n), np.nan)
    return result


@pytest.mark.parametrize("kind", PADDING)
def test_means_equal_the_literal_ones(factory, backend, kind):
    if backend == "bridge" and kind in ("left", "both"):
        pytest.skip("empty rows of a bridge are NaN in float64")
    model = factory(dtype=torch.float64)
    ids, mask = tokens(3, 19), torch.tensor(PADDING[kind])
    for queries, sink in ((64, 0), (5, 2)):
        ds = measured(model, ids, mask, top_n=TOP_N, queries=queries, sink=sink)
        assert ds.f_score.dims == ("layer", "head", "top_n")
        assert ds.top_n.values.tolist() == list(TOP_N)
        names = set()
        for label, layer in enumerate(record(model, ids, attention_mask=mask)):
            expected = over_documents(
                [
                    one_document(layer, row, mask[row].bool(), TOP_N, queries, sink)
                    for row in range(3)
                ]
            )
            for name, values in expected.items():
                np.testing.assert_allclose(
                    ds[name].values[label], values, rtol=1e-6, atol=1e-7, err_msg=name
                )
            names |= set(expected)
        assert names <= set(ds.data_vars)
        control = {f"{name}_random{se}" for name in SCORES for se in ("", "_se")}
        assert set(ds.data_vars) - names == control


def test_single_precision_stays_close(factory):
    model = factory()
    ids, mask = tokens(3, 19), torch.tensor(PADDING["left"])
    ds = measured(model, ids, mask, top_n=TOP_N)
    for label, layer in enumerate(record(model, ids, attention_mask=mask)):
        documents = [
            one_document(layer, row, mask[row].bool(), TOP_N, 64, eps=2.0**-23) for row in range(3)
        ]
        for name, values in over_documents(documents).items():
            # The certificate widens measured cosines by their rounding.
            tolerance = 0.02 if "certificate" in name else 1e-4
            np.testing.assert_allclose(ds[name].values[label], values, atol=tolerance, err_msg=name)


def equal(left, right, tolerance=1e-6):
    assert set(left.data_vars) == set(right.data_vars)
    for name in left.data_vars:
        np.testing.assert_allclose(
            left[name].values, right[name].values, rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("queries", [3, 16])
def test_batches_and_their_order_change_nothing(factory, backend, queries):
    model = factory(dtype=torch.float64)
    ids = tokens(4, 19)
    mask = torch.tensor([*PADDING[sides(backend)[0]], PADDING["right"][1]])
    options = {"top_n": TOP_N, "queries": queries}
    together = measured(model, ids, mask, **options)
    for groups in ([[0], [1], [2], [3]], [[0, 1], [2, 3]], [[3, 1], [2], [0]]):
        equal(measured(model, ids, mask, groups, **options), together)


@pytest.mark.parametrize("length", [6, 11, 18])
@pytest.mark.parametrize("queries", [3, 16])
def test_the_control_of_a_document_is_the_same_in_any_batch(factory, backend, length, queries):
    """Alone, and padded on the left or right beside a longer document."""
    model = factory(dtype=torch.float64)
    document_, other = tokens(1, length), tokens(1, 19, seed=1)
    options = {"top_n": (2, 3), "queries": queries}
    results = []
    for side in sides(backend):
        left = 19 - length if side == "left" else 0
        ids, mask = torch.full((2, 19), 3), torch.zeros(2, 19, dtype=torch.long)
        ids[0, left : left + length], mask[0, left : left + length] = document_[0], 1
        ids[1], mask[1] = other[0], 1
        results.append(measured(model, ids, mask, **options))
    probe = Probe(model, [Separability(**options)])
    for text in (document_, other):
        model.run_with_hooks(text, fwd_hooks=probe.hooks())
    apart = probe.result()
    for result in results:
        equal(result, apart)


def test_the_control_is_seeded(factory):
    model, ids = factory(dtype=torch.float64), tokens(2, 19)
    state = torch.random.get_rng_state()
    one, again, other = (measured(model, ids, top_n=(2, 4), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    equal(one, again, 0)
    assert abs(one.f_score_random - other.f_score_random).values.max() > 0.01
    np.testing.assert_array_equal(one.f_score.values, other.f_score.values)
    # Documents and layers draw sets of their own: the same document twice is not one draw twice.
    twin = measured(model, ids[[0, 0]], top_n=(2, 4))
    assert (twin.f_score_random_se.values > 0).any()
    assert (twin.f_score_se.values < 1e-12).all()


def test_the_control_averages_over_all_sets(factory):
    """With many repeats the mean comes close to that over every set of N available keys."""
    model, ids = factory(dtype=torch.float64), tokens(1, 9)
    repeats, queries = 300, 3
    ds = measured(model, ids, top_n=(2, 3), queries=queries, repeats=repeats)
    for label, layer in enumerate(record(model, ids)):
        pattern, v, seen = document(layer, 0, torch.ones(9, dtype=torch.bool))
        rows = literal.rows(pattern, v, available=seen)
        for head in range(4):
            for k, n in enumerate((2, 3)):
                means, variance = [], 0.0
                for i in literal.evenly_spaced(range(9), queries):
                    row = rows[0, head, i]
                    if n >= len(row.order):
                        continue
                    scores = []
                    for chosen in combinations(row.order, n):
                        others = [j for j in row.order if j not in chosen]
                        scores.append(literal.clusters(row.y, chosen, others)[0].f_score)
                    means.append(np.mean(scores))
                    variance += np.var(scores) / repeats
                error = np.sqrt(variance) / len(means)
                found = float(ds.f_score_random[label, head, k])
                assert abs(found - np.mean(means)) < 5 * error + 1e-9


def test_sizes_beyond_the_document_are_missing(factory):
    ds = measured(factory(), tokens(2, 6), top_n=(2, 6, 32))
    for name in ("f_score", "f_score_random", "certificate", "separable_share"):
        assert not np.isnan(ds[name].values[..., 0]).any()
        assert np.isnan(ds[name].values[..., 1:]).all()
    # Sizes below the number of keys of a row: queries 2 to 5 for N = 2.
    assert (ds.separability_rows.values == [8, 0, 0]).all()


def test_several_sinks_have_no_certificate(factory):
    """The certificate holds for one sink; for more there must be no number at all."""
    model, ids = factory(dtype=torch.float64), tokens(2, 12)
    ds = measured(model, ids, top_n=(2, 3), sink=[0, 1])
    assert "certificate" not in ds or np.isnan(ds.certificate.values).all()
    assert not np.isnan(ds.f_score_no_sink.values).any()


def test_a_default_measure_of_analyze(factory):
    model = factory()
    ids = tokens(3, 40)
    ds = analyze(model, ids, top_n=(2, 4), queries=8, progress=False)
    assert ds.f_score.dims == ("layer", "head", "top_n")
    assert ds.top_n.values.tolist() == [2, 4]
    assert (ds.separability_rows.values == 3 * 8).all()
    probe = measured(model, ids, top_n=(2, 4), queries=8)
    np.testing.assert_allclose(ds.f_score.values, probe.f_score.values, rtol=1e-5)
    np.testing.assert_allclose(ds.f_score_random.values, probe.f_score_random.values, rtol=1e-5)
    default = analyze(model, tokens(1, 40), progress=False)
    assert default.top_n.values.tolist() == [1, 2, 4, 8, 16, 32]
    text = str(default.attrs)
    assert "queries" in text
    assert "repeats" in text


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"top_n": ()}, "top_n"),
        ({"top_n": (0, 2)}, "top_n"),
        ({"queries": 0}, "queries"),
        ({"repeats": 0}, "repeats"),
    ],
    ids=str,
)
def test_wrong_settings(options, name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        Separability(**options)
