"""Curves of NLL while heads are removed, against runs with hooks of the test's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from analysis_data.reference import plain_package
from evaluation_data.reference import corpus, document_loss, mean_loss, zero_heads

from tl_geometry import load, save
from tl_geometry.evaluation.head_orders import ORDERS
from tl_geometry.evaluation.sparsify import sparsify, sparsity_table

ALL_HEADS = [(layer, head) for layer in range(2) for head in range(4)]
SHARES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.0)


def curves(model, data, *arguments, **options):
    options = {"max_documents": None, "n_ctx": 64, "progress": False, **options}
    return sparsify(model, data, *arguments, **options)


def heads_gone(rank, count):
    return [head for head in ALL_HEADS if rank.sel(layer=head[0], head=head[1]) < count]


def test_every_point_equals_a_run_without_these_heads(tiny_model):
    tokens, mask, documents = corpus(side="left")
    ds = curves(tiny_model, (tokens, mask), retention=SHARES, repeats=2)
    assert ds.order.values.tolist() == list(ORDERS)
    assert ds.removed.values.tolist() == [0, 0, 2, 4, 6, 8]
    known = {}

    def loss(gone):
        key = tuple(gone)
        if key not in known:
            known[key] = mean_loss(tiny_model, documents, zero_heads(gone))
        return known[key]

    full = loss([])
    for order in ORDERS[:-1]:
        rank = ds["rank"].sel(order=order)
        assert sorted(rank.values.ravel().tolist()) == list(range(8))
        for share, count in zip(SHARES, ds.removed.values, strict=True):
            gone = heads_gone(rank, count)
            assert len(gone) == count
            found = ds.sel(order=order, retention=share)
            assert float(found.nll) == pytest.approx(loss(gone), rel=1e-5)
            assert float(found.delta_nll) == pytest.approx(loss(gone) - full, abs=3e-5)
            assert float(found.perplexity) == pytest.approx(math.exp(loss(gone)), rel=1e-4)
    for share, count in zip(SHARES, ds.removed.values, strict=True):
        each = [loss(heads_gone(ds.random_rank.sel(repeat=k), count)) for k in range(2)]
        found = ds.sel(order="random", retention=share)
        np.testing.assert_allclose(found.random_nll, each, rtol=1e-5)
        assert float(found.nll) == pytest.approx(np.mean(each), rel=1e-5)
        assert float(found.nll_spread) == pytest.approx(np.std(each, ddof=1), abs=2e-5)


@pytest.mark.parametrize(
    ("options", "ranked"),
    [
        ({"layers": [1]}, [(1, head) for head in range(4)]),
        ({"heads": [(0, 2), (1, 0), (1, 3)]}, [(0, 2), (1, 0), (1, 3)]),
        ({"layers": 1, "heads": [(1, 3), (1, 1)]}, [(1, 1), (1, 3)]),
    ],
)
def test_only_the_heads_that_are_named(tiny_model, options, ranked):
    tokens, mask, documents = corpus()
    data, half = (tokens, mask), (1.0, 0.5, 0.0)
    ds = curves(tiny_model, data, ["output_norm", "random"], half, repeats=1, **options)
    n = len(ranked)
    assert ds.removed.values.tolist() == [0, n // 2, n]
    norms = curves(tiny_model, data, ["output_norm"], half).output_norm
    least = sorted(ranked, key=lambda place: float(norms.sel(layer=place[0], head=place[1])))
    for ranks, known in ((ds["rank"][0], least), (ds.random_rank[0], None)):
        found = {
            (int(layer), int(head)): float(ranks.sel(layer=layer, head=head))
            for layer in ds["layer"]
            for head in ds["head"]
        }
        kept = sorted((r, place) for place, r in found.items() if not math.isnan(r))
        assert [r for r, _ in kept] == list(range(n))
        order = [place for _, place in kept]
        assert order == known if known else sorted(order) == ranked
        for share, count in zip(half, ds.removed.values, strict=True):
            name = "output_norm" if known else "random"
            loss = mean_loss(tiny_model, documents, zero_heads(order[:count]))
            nll = float(ds.nll.sel(order=name, retention=share))
            assert nll == pytest.approx(loss, rel=1e-5)
    assert ds.attrs["settings"]["heads"] == [list(place) for place in ranked]


def test_a_checkpoint_knows_the_heads(tiny_model, tmp_path):
    options = {"orders": ["random"], "repeats": 1, "checkpoint": tmp_path / "run.json"}
    curves(tiny_model, corpus()[:2], layers=[0], **options)
    with pytest.raises(ValueError, match=r"settings\.heads was \[\[0, 0\]"):
        curves(tiny_model, corpus()[:2], layers=[1], resume=True, **options)


def test_shares_of_heads_are_those_of_a_reader(tiny_hooked):
    """0.9 of 10 heads stay: one goes, though (1 - 0.9) * 10 is less than one in floating point."""
    model = tiny_hooked(n_heads=10, n_layers=1)
    shares = (0.9, 0.7, 0.4, 0.3, 0.29, 0.1)
    ds = curves(model, corpus((9, 8))[:2], ["output_norm"], shares)
    assert ds.removed.values.tolist() == [1, 3, 6, 7, 7, 9]


def test_every_pass_shows_its_progress(tiny_model, capsys):
    curves(tiny_model, corpus()[2], ["entropy"], (0.5,), progress=True, batch_size=1)
    shown = capsys.readouterr().err
    done = [line for line in shown.replace("\r", "\n").splitlines() if "100%" in line]
    assert any("4/4" in line and "batches" in line for line in done)  # the statistics
    assert any("8/8" in line and "runs" in line for line in done)
    curves(tiny_model, corpus()[:2], ["entropy"], (0.5,), progress=False)
    assert capsys.readouterr().err == ""


def test_ends_of_the_curve(tiny_model):
    tokens, mask, documents = corpus()
    ds = curves(tiny_model, (tokens, mask), retention=(0.0, 1.0), repeats=1)
    assert ds.retention.values.tolist() == [1.0, 0.0]
    assert (ds.delta_nll.sel(retention=1.0) == 0).all()
    assert (ds.delta_nll_low.sel(retention=1.0) == 0).all()
    nothing = mean_loss(tiny_model, documents, zero_heads(ALL_HEADS))
    np.testing.assert_allclose(ds.nll.sel(retention=0.0), nothing, rtol=1e-5)
    assert ds.nll_spread.isnull().all()  # one random order has no spread


def test_areas_are_trapezoids_under_the_curve(tiny_model):
    ds = curves(tiny_model, corpus()[:2], repeats=3)
    share = ds.removed.values / 8

    def area(height):
        steps = range(len(share) - 1)
        return sum((share[k + 1] - share[k]) * (height[k + 1] + height[k]) / 2 for k in steps)

    for order in ORDERS:
        found = float(ds.auc.sel(order=order))
        assert found == pytest.approx(area(ds.delta_nll.sel(order=order).values), abs=1e-12)
    full = float(ds.nll.sel(order="entropy", retention=1.0))
    areas = [area(row - full) for row in ds.random_nll.values]
    spread = float(ds.auc_spread.sel(order="random"))
    assert spread == pytest.approx(np.std(areas, ddof=1), rel=1e-9)


def test_a_curve_that_does_not_begin_at_all_heads(tiny_model):
    """Nothing removed is where every curve begins, whether it was asked for or not."""
    data = corpus()[:2]
    whole = curves(tiny_model, data, orders="entropy", retention=(1.0, 0.5, 0.0))
    some = curves(tiny_model, data, orders="entropy", retention=(0.5, 0.0))
    np.testing.assert_allclose(some.auc, whole.auc, rtol=1e-12)


def test_intervals_are_of_documents(tiny_model):
    """Each end is that of resampled documents, here by hand from losses of the test's own runs."""
    from tl_geometry.evaluation import Bootstrap

    tokens, mask, documents = corpus()
    ds = curves(tiny_model, (tokens, mask), orders=["output_norm"], retention=(0.5,), seed=5)
    gone = heads_gone(ds["rank"].sel(order="output_norm"), 4)
    boot = Bootstrap(np.array([len(ids) - 1 for ids in documents]), seed=5)
    losses, full = (
        np.array([document_loss(tiny_model, ids, hooks) for ids in documents])
        for hooks in (zero_heads(gone), [])
    )
    samples = [
        (counts @ (losses - full)) / (counts @ boot.targets) for counts in boot.draws.astype(float)
    ]
    low, high = np.percentile(samples, [2.5, 97.5])
    assert float(ds.delta_nll_low.squeeze()) == pytest.approx(low, abs=3e-5)
    assert float(ds.delta_nll_high.squeeze()) == pytest.approx(high, abs=3e-5)
    assert low < float(ds.delta_nll.squeeze()) < high


def test_the_table(tiny_model):
    ds = curves(tiny_model, corpus()[:2], orders=["entropy", "random"])
    table = sparsity_table(ds)
    assert table.columns.tolist() == ["90%", "75%", "50%", "25%"]
    assert table.index.tolist() == ["entropy", "random"]
    assert table.loc["random", "50%"] == float(ds.delta_nll.sel(order="random", retention=0.5))
    short = curves(tiny_model, corpus()[:2], orders=["entropy"], retention=(1.0, 0.5))
    assert sparsity_table(short).columns.tolist() == ["50%"]
    with pytest.raises(ValueError, match=r"retentions \[1.0\]"):
        sparsity_table(short.isel(retention=[0]))


def test_the_result_can_be_stored(tiny_model, tmp_path):
    ds = curves(tiny_model, corpus()[:2], orders=["mixer>reset>retriever", "random"])
    assert load(save(ds, tmp_path / "run.nc")).identical(ds)
    assert ds.attrs["settings"]["repeats"] == 3
    for name in ds.data_vars:
        assert ds[name].attrs["long_name"], name


def test_resuming_runs_nothing_twice(tiny_model, tmp_path):
    data = corpus()[:2]
    path = tmp_path / "run.json"
    whole = curves(tiny_model, data, orders=["entropy", "random"], checkpoint=path)
    again = curves(tiny_model, data, orders=["entropy", "random"], checkpoint=path, resume=True)
    assert again.assign_attrs(created=whole.attrs["created"]).identical(whole)
    with pytest.raises(ValueError, match=r"settings\.seed was 0, now 1"):
        curves(tiny_model, data, orders=["entropy", "random"], checkpoint=path, resume=True, seed=1)
    with pytest.raises(FileExistsError, match="resume=True"):
        curves(tiny_model, data, orders=["entropy", "random"], checkpoint=path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"orders": ["size"]}, "orders must be some of"),
        ({"retention": ()}, "retention must be shares"),
        ({"retention": (0.5, 1.1)}, "retention must be shares.*1.1"),
        ({"retention": (-0.1,)}, "retention must be shares"),
        ({"retention": (float("nan"),)}, "retention must be shares"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"layers": [5]}, "layers"),
        ({"heads": []}, "heads is empty"),
        ({"heads": [(0, 9)]}, "9"),
        ({"mode": "median"}, "mode must be one of"),
        ({"confidence": 2.0}, "confidence must lie between 0 and 1, got 2.0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**64}, "seed must be less than"),
    ],
)
def test_refusals_come_before_the_first_forward(tiny_hooked, options, words, monkeypatch):
    model = tiny_hooked()
    monkeypatch.setattr(model, "forward", None)
    with plain_package():
        from tl_geometry.evaluation.sparsify import sparsify as plain

        with pytest.raises(ValueError, match=words):
            plain(model, corpus()[0], n_ctx=64, progress=False, **options)
