"""Accumulators by themselves: options, statistics over documents, one probe each, no reuse."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_equal, document, numbers, record, soften, tokens
from zoo.architectures import build_bridge

from tl_geometry import Contributions, Probe, Regimes, Sinks
from tl_geometry.analysis import Accumulator, Variable


@pytest.fixture
def model(backend, request):
    return soften(request.getfixturevalue(f"tiny_{backend}")(dtype=torch.float64))


def run(model, measures, *batches, **options):
    probe = Probe(model, measures, **options)
    for ids in batches:
        model.run_with_hooks(ids, fwd_hooks=probe.hooks())
    return probe.result()


class RowCount(Accumulator):
    """The number of rows of each document, and of all of them."""

    variables: ClassVar = {
        "rows_per_document": Variable("rows", "rows"),
        "rows_in_all": Variable("rows", "rows", over="rows"),
        "parity": Variable("rows by parity", "rows", dims=("odd",), over="rows"),
    }
    coords: ClassVar = {"odd": ("no", "yes")}

    def measure(self, geometry):
        rows = geometry.rows.expand(-1, geometry.n_heads, -1)
        position = torch.arange(rows.shape[-1])
        odd = (rows & (position % 2 == 1)).sum(-1)
        count = rows.sum(-1)
        value = torch.where(count > 5, count.double(), torch.nan)
        return {
            "rows_per_document": value,
            "rows_in_all": count,
            "parity": torch.stack([count - odd, odd], -1),
        }


def test_means_errors_and_sums_of_a_new_measure(model):
    batches = [tokens(3, 8), tokens(1, 5), tokens(1, 15), tokens(2, 11)]
    ds = run(model, [RowCount()], *batches)
    lengths = [8, 8, 8, 15, 11, 11]  # the document of 5 rows defines nothing
    assert (ds.rows_per_document == np.mean(lengths)).all()
    np.testing.assert_allclose(
        ds.rows_per_document_se.values, np.std(lengths, ddof=1) / np.sqrt(6), rtol=1e-12
    )
    assert (ds.rows_in_all == sum(lengths) + 5).all()
    assert ds.parity.sel(odd="yes").values.tolist() == [[4 * 3 + 2 + 7 + 5 * 2] * 4] * 2
    assert "rows_in_all_se" not in ds
    assert ds.rows_per_document.attrs["units"] == "rows"
    assert set(ds.data_vars) == {
        "rows_per_document",
        "rows_per_document_se",
        "rows_in_all",
        "parity",
    }


def test_one_document_has_no_standard_error(model):
    ds = run(model, [Contributions(), Regimes(), Sinks()], tokens(1, 12))
    for name in ds.data_vars:
        if name.endswith("_se"):
            assert np.isnan(ds[name].values).all(), name
    assert not np.isnan(ds.sink_rate.values).any()


def test_equal_documents_have_the_standard_error_zero(model):
    ds = run(model, [Contributions(), Sinks()], tokens(1, 12).repeat(3, 1))
    for name in ("output_norm_se", "sink_rate_se", "sink_cosine_model_se"):
        base = abs(ds[name.removesuffix("_se")])
        assert (ds[name] <= 1e-7 * base).all(), name


@pytest.mark.parametrize("measure", [Contributions, Regimes, Sinks])
def test_one_measure_alone_gives_what_it_gives_among_others(model, measure):
    alone = run(model, [measure()], tokens(2, 12))
    among = run(model, [Sinks(), Contributions(), Regimes()], tokens(2, 12))
    for name in alone.data_vars:
        assert alone[name].dtype == among[name].dtype
        assert alone[name].values.tolist() == among[name].values.tolist() or np.array_equal(
            alone[name].values, among[name].values, equal_nan=True
        )
    assert list(alone.attrs["measures"]) == [measure.__name__]


def reference(model, ids, **options):
    layer = record(model, ids)[1]
    found = [
        numbers(*pick(document(layer, row, torch.ones(ids.shape[1]).bool()), layer), **options)
        for row in range(len(ids))
    ]
    return {name: np.mean([f[name] for f in found], 0) for name in found[0]}


def pick(cut, layer):
    pattern, v, seen = cut
    return pattern, v, layer.W_O, seen


@pytest.mark.parametrize("count", [1, 3, 5, 40])
def test_rows_of_the_tail_correlations(model, count):
    ds = run(model, [Sinks(tail_queries=count)], tokens(2, 14))
    values = reference(model, tokens(2, 14), tail_queries=count)
    for name in ("attention", "relative_norm", "cosine"):
        found = ds[f"tail_spearman_{name}"].values[1]
        np.testing.assert_allclose(found, values[f"tail_spearman_{name}"], rtol=1e-6, atol=1e-6)


def test_winners_by_projected_values(model):
    ds = run(model, [Regimes(space="model")], tokens(2, 14))
    values = reference(model, tokens(2, 14), space="model")
    for name in ("self_share", "sink_share", "other_share", "winner_offset"):
        np.testing.assert_allclose(ds[name].values[1], values[name], atol=1e-6)
    head = run(model, [Regimes(space="head")], tokens(2, 14))
    assert not np.array_equal(ds.winner_offset.values, head.winner_offset.values)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.1, 1.0])
def test_the_threshold_of_the_sink_metric(model, epsilon):
    ids = tokens(2, 64)
    ds = run(model, [Sinks(epsilon=epsilon)], ids)
    received = record(model, ids)[1].pattern[..., 0].mean(-1)
    assert ds.sink_metric.values[1].tolist() == (received > epsilon).double().mean(0).tolist()


@pytest.mark.parametrize("options", [{"epsilon": -0.1}, {"epsilon": 1.5}, {"tail_queries": 0}])
def test_bad_options_of_sinks(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Sinks(**options)


def test_offsets_fall_in_bins_that_double(model):
    ds = run(model, [Regimes()], tokens(1, 12))
    labels = ds.offset_bin.values.tolist()
    assert labels[:6] == ["<0", "0", "1", "2-3", "4-7", "8-15"]
    assert labels[-2:] == ["2048-4095", "4096+"]
    sums = ds.winner_offset.sum("offset_bin").values
    np.testing.assert_allclose(sums, 1, atol=1e-6)
    np.testing.assert_allclose(
        ds.winner_offset.sel(offset_bin="0").values, ds.self_share.values, atol=1e-6
    )


def test_the_label_counts_rows_and_the_shares_average_documents(model):
    """Two short documents won by the query itself do not outvote a long one."""
    long, short = tokens(1, 40), tokens(2, 3)

    def to_self(pattern, hook):
        if pattern.shape[-1] == 3:
            return torch.eye(3, dtype=pattern.dtype).expand_as(pattern).clone()
        edited = torch.zeros_like(pattern)
        edited[..., 0] = 1
        return edited

    probe = Probe(model, [Regimes()])
    for ids in (long, short):
        edits = [("blocks.1.attn.hook_pattern", to_self)]
        model.run_with_hooks(ids, fwd_hooks=[*edits, *probe.hooks(torch.ones(ids.shape))])
    ds = probe.result().sel(layer=1)
    assert ds.regime.values.tolist() == ["mixer"] * 4
    np.testing.assert_allclose(ds.self_share.values, 2 / 3)
    assert ds.winner_count.values.tolist() == [[4, 39, 0]] * 4
    np.testing.assert_allclose(ds.regime_margin.values, (39 - 4) / 43)
    assert ds.regime_rows.values.tolist() == [43] * 4


def test_an_accumulator_belongs_to_one_probe(model):
    measure = Contributions()
    Probe(model, [measure])
    with pytest.raises(ValueError, match="this Contributions belongs to another Probe"):
        Probe(model, [measure])
    twice = Sinks()
    with pytest.raises(ValueError, match="written twice"):
        Probe(model, [twice, twice])
    Probe(model, [twice])


def test_a_probe_that_is_refused_leaves_its_accumulators_free(model):
    used, fresh = Sinks(), Contributions()
    Probe(model, [used])
    with pytest.raises(ValueError, match="belongs to another Probe"):
        Probe(model, [fresh, used])
    Probe(model, [fresh])
    other = Contributions()
    with pytest.raises(ValueError, match="layers"):
        Probe(model, [other], layers=[7])
    Probe(model, [other])


@pytest.mark.bridge
def test_a_refused_norm_leaves_the_accumulators_free(monkeypatch):
    """output="normed" behind a norm that centres is refused; the measures can go elsewhere."""
    model = build_bridge("olmo2")
    norm = model.original_model.model.layers[0].post_attention_layernorm
    inner = getattr(norm, "original_component", norm)
    plain = type(inner).forward
    monkeypatch.setattr(
        type(inner), "forward", lambda self, x: plain(self, x - x.mean(-1, keepdim=True) + 0.1)
    )
    measure = Contributions()
    with pytest.raises(ValueError):
        Probe(model, [measure], output="normed")
    monkeypatch.undo()
    Probe(model, [measure])


def test_two_of_a_kind_would_write_the_same_variable(model):
    with pytest.raises(ValueError, match=r"cone_alignment.*twice"):
        Probe(model, [Sinks(), Sinks(epsilon=0.1)])


def test_reset_starts_anew(model):
    probe = Probe(model, [Contributions(), Regimes(), Sinks()])
    model.run_with_hooks(tokens(3, 12, seed=5), fwd_hooks=probe.hooks())
    probe.reset()
    with pytest.raises(RuntimeError, match="no hook of this probe has fired"):
        probe.result()
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    fresh = run(model, [Contributions(), Regimes(), Sinks()], tokens(2, 9))
    assert_equal(probe.result(), fresh, 0)
    for key in ("documents", "tokens", "rows", "skipped_rows"):
        assert probe.result().attrs[key] == fresh.attrs[key]


def test_no_measures_at_all(model):
    ds = run(model, [], tokens(2, 9))
    assert not ds.data_vars
    assert ds.attrs["tokens"] == 18


def test_every_variable_is_described(model):
    ds = run(model, [Contributions(), Regimes(), Sinks()], tokens(2, 9))
    for name, variable in ds.data_vars.items():
        assert variable.dims[:2] == ("layer", "head")
        assert variable.attrs["long_name"]
        assert set(variable.attrs) == {"long_name", "units", "source"}
        assert "arXiv" in variable.attrs["source"], name
        if name.endswith("_se"):
            assert variable.attrs["long_name"].startswith("standard error over documents")
            assert variable.attrs["units"] == ds[name.removesuffix("_se")].attrs["units"]
