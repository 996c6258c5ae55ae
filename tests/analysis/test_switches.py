"""Every variable of the switches against a slow computation, and what must not change it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_equal, document, record, soften, spread, tokens
from literal import switches as literal
from zoo.architectures import build_bridge, build_hooked

from tl_geometry.analysis import Probe
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.sinks import Sinks
from tl_geometry.analysis.switches import Switches
from tl_geometry.hooks import attention_sites
from tl_geometry.measures import halfspace_margins

FRACTIONS = (0.3, 0.6, 1.0)
PER_ROW = (
    "mixing_ratio",
    "mixing_ratio_no_sink",
    "sink_logit_margin_min",
    "sink_logit_margin_mean",
)
VARIABLES = {
    *("off_rate", "sink_rate_off", "sink_rate_on", "null_sink_rate_off", "null_sink_rate_on"),
    *("diagonal_attention", *PER_ROW),
}
PADDING = {
    "none": [[1] * 19] * 3,
    "right": [[1] * 19, [1] * 11 + [0] * 8, [1] * 17 + [0] * 2],
    "left": [[0] * 6 + [1] * 13, [1] * 19, [0] * 1 + [1] * 18],
    "gaps": [[1, 0, 0, *[1] * 16], [1] * 8 + [0] * 3 + [1] * 8, [1] * 17 + [0, 1]],
}


def numbers(pattern, v, W_O, available, *, queries=64, sink=0, cross=False, **options):
    """The variables of one document: arrays over heads, and fractions."""
    given = {"available": available, "sink": sink}
    rates = literal.switch_rates(
        pattern, v, W_O, fractions=FRACTIONS, cross=cross, **given, **options
    )
    found = {name: values[0] for name, values in rates.items()}
    margins = literal.sink_logit_margin(pattern.double().log(), pattern=pattern, **given)
    rows = {
        "mixing_ratio": literal.mixing_ratio(pattern, v, W_O, cross=cross, **given, **options),
        "mixing_ratio_no_sink": literal.mixing_ratio(
            pattern, v, W_O, without_sink=True, cross=cross, **given, **options
        ),
        "sink_logit_margin_min": margins[0],
        "sink_logit_margin_mean": margins[1],
    }
    chosen = [i for i in spread(pattern.shape[2], queries) if cross or i != sink]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        return found | {name: np.nanmean(x[0][:, chosen], -1) for name, x in rows.items()}


def over_documents(documents):
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for name in documents[0]:
            values = np.stack([one[name] for one in documents])
            n = (~np.isnan(values)).sum(0)
            found[name] = np.nanmean(values, 0)
            error = np.nanstd(values, 0, ddof=1) / np.sqrt(n)
            found[f"{name}_se"] = np.where(n > 1, error, np.nan)
    return found


def expected(layer, mask, *, causal=True, window=None, **options):
    found = []
    for row in range(len(mask)):
        cut = document(layer, row, mask[row].bool(), causal=causal, window=window)
        pattern, v, seen = cut
        found.append(numbers(pattern, v, layer.W_O, seen, **options))
    return over_documents(found)


def assert_layer(ds, label, values, tolerance):
    assert set(ds.data_vars) == set(values) == VARIABLES | {f"{name}_se" for name in VARIABLES}
    for name, array in values.items():
        np.testing.assert_allclose(
            ds[name].sel(layer=label).values, array, rtol=tolerance, atol=tolerance,
            err_msg=f"{name}, layer {label}",
        )  # fmt: skip


def measured(model, ids, mask=None, queries=64, **options):
    probe = Probe(model, [Switches(FRACTIONS, queries=queries)], **options)
    arguments = {} if mask is None else {"attention_mask": mask}
    model.run_with_hooks(ids, fwd_hooks=probe.hooks(mask), **arguments)
    return probe.result()


@pytest.fixture
def factory(backend, request):
    """Small models of each class, with soft attention."""
    build = request.getfixturevalue(f"tiny_{backend}")
    return lambda **options: soften(build(**options))


def precise(backend, kind):
    """float64, but for bridges with padding on the left: their empty rows are NaN in float64."""
    return (torch.float32, 5e-5) if (backend, kind) == ("bridge", "left") else (torch.float64, 1e-6)


@pytest.mark.parametrize("kind", PADDING)
def test_every_variable_equals_the_literal_computation(factory, backend, kind):
    dtype, tolerance = precise(backend, kind)
    model = factory(dtype=dtype)
    ids, mask = tokens(3, 19), torch.tensor(PADDING[kind])
    layers = record(model, ids, attention_mask=mask)
    for queries in (64, 5):
        ds = measured(model, ids, mask, queries)
        assert ds.off_rate.dims == ("layer", "head", "fraction")
        assert ds.fraction.values.tolist() == list(FRACTIONS)
        for label, layer in enumerate(layers):
            assert_layer(ds, label, expected(layer, mask, queries=queries), tolerance)
    assert 0 < float(ds.off_rate.mean()) < 1


@pytest.mark.hooked
def test_windows_hide_the_sink():
    model = soften(build_hooked("window", dtype=torch.float64))
    ids, mask = tokens(3, 19), torch.ones(3, 19)
    ds = measured(model, ids)
    layers = record(model, ids)
    assert_layer(ds, 0, expected(layers[0], mask), 1e-6)
    assert_layer(ds, 1, expected(layers[1], mask, window=5), 1e-6)


@pytest.mark.hooked
def test_attention_both_ways():
    model = soften(build_hooked("bidirectional", dtype=torch.float64))
    ids, mask = tokens(2, 11), torch.ones(2, 11)
    ds = measured(model, ids)
    assert_layer(ds, 1, expected(record(model, ids)[1], mask, causal=False), 1e-6)


@pytest.mark.bridge
def test_rows_that_do_not_sum_to_one():
    """A null sink has no value and no logit among the keys."""
    model = soften(build_bridge("gpt_oss"))
    ids, mask = tokens(3, 19), torch.tensor(PADDING["right"])
    ds = measured(model, ids, mask)
    assert_layer(ds, 1, expected(record(model, ids, attention_mask=mask)[1], mask), 1e-4)


@pytest.mark.bridge
def test_attention_across_has_no_diagonal():
    model = soften(build_bridge("bart", dtype=torch.float64))
    ids, targets = tokens(3, 12), tokens(3, 9, seed=1)
    probe = Probe(model, [Switches(FRACTIONS)])
    model.run_with_hooks(ids, fwd_hooks=probe.hooks(), decoder_input=targets)
    ds = probe.result()
    for layer in record(model, ids, decoder_input=targets):
        if "cross" not in layer.name:
            continue
        found = []
        for row in range(3):
            pattern, v, seen = document(
                layer, row, torch.ones(9).bool(), keys=torch.ones(12).bool(), causal=False
            )
            found.append(numbers(pattern, v, layer.W_O, seen, cross=True))
        assert_layer(ds, layer.name, over_documents(found), 1e-6)
        across = ds.sel(layer=layer.name)
        assert np.isnan(across.mixing_ratio.values).all()
        assert not np.isnan(across.off_rate.values).any()


def test_another_sink_and_value_biases_removed(factory):
    model = factory(dtype=torch.float64)
    ids, mask = tokens(3, 19), torch.tensor(PADDING["right"])
    layer = record(model, ids, attention_mask=mask)[1]
    ds = measured(model, ids, mask, sink=2)
    assert_layer(ds, 1, expected(layer, mask, sink=2), 1e-6)
    b_V = model.blocks[1].attn.b_V.detach().reshape(-1, 8)
    b_V = b_V if len(b_V) == 2 else b_V[::2]
    ds = measured(model, ids, mask, value_bias="remove")
    assert_layer(ds, 1, expected(layer, mask, value_bias="remove", b_V=b_V), 1e-6)


@pytest.mark.bridge
def test_behind_the_norm():
    model = soften(build_bridge("olmo2", dtype=torch.float64))
    ids, mask = tokens(3, 19), torch.ones(3, 19)
    ds = measured(model, ids, output="normed")
    layer = record(model, ids)[1]
    scale = model.original_model.model.layers[1].post_attention_layernorm.weight.detach()
    assert_layer(ds, 1, expected(layer, mask, output="normed", norm_weight=scale), 1e-6)


@pytest.mark.parametrize("kind", ["left", "right"])
def test_padding_and_batches_change_nothing(factory, backend, kind):
    dtype, tolerance = precise(backend, kind)
    model = factory(dtype=dtype)
    ids, mask = tokens(3, 19), torch.tensor(PADDING[kind])
    together = measured(model, ids, mask, 5)
    alone, pairs = (Probe(model, [Switches(FRACTIONS, queries=5)]) for _ in range(2))
    for row in range(3):
        model.run_with_hooks(ids[row][mask[row].bool()][None], fwd_hooks=alone.hooks())
    assert_equal(alone.result(), together, tolerance)
    for rows in ([0, 1], [2]):
        hooks = pairs.hooks(mask[rows])
        model.run_with_hooks(ids[rows], attention_mask=mask[rows], fwd_hooks=hooks)
    assert_equal(pairs.result(), together, 2e-6)


def test_a_head_made_to_switch(factory):
    """Rows that attend to a sink without a value are off; the others keep to themselves."""
    model = factory(dtype=torch.float64)
    ids = tokens(2, 12)

    def to_sink_or_self(pattern, hook):
        edited = torch.zeros_like(pattern)
        edited[..., :6, 0] = 1
        edited[..., range(6, 12), range(6, 12)] = 1
        return edited

    def silence(v, hook):
        edited = v.clone()
        edited[:, 0] = 0
        return edited

    name = "blocks.1.attn.hook"
    probe = Probe(model, [Switches((0.1,))])
    edits = [(f"{name}_pattern", to_sink_or_self), (f"{name}_v", silence)]
    every = torch.ones(2, 12)  # weights are zero here that no padding explains
    model.run_with_hooks(ids, fwd_hooks=[*edits, *probe.hooks(every)])
    ds = probe.result().sel(layer=1, fraction=0.1)
    np.testing.assert_allclose(ds.off_rate.values, 5 / 11)
    np.testing.assert_allclose(ds.sink_rate_off.values, 1)
    np.testing.assert_allclose(ds.sink_rate_on.values, 0)
    np.testing.assert_allclose(ds.diagonal_attention.values, 6 / 11)
    np.testing.assert_allclose(ds.mixing_ratio.values, 0)  # undefined where the row is silent
    np.testing.assert_allclose(ds.mixing_ratio_no_sink.values, 0)
    assert np.isnan(ds.sink_logit_margin_min.values).all()


def test_alone_it_gives_what_it_gives_among_others(factory):
    model = factory()

    def run(measures):
        probe = Probe(model, measures)
        model.run_with_hooks(tokens(2, 12), fwd_hooks=probe.hooks())
        return probe.result()

    alone, among = run([Switches()]), run([Contributions(), Switches(), Sinks()])
    for name in alone.data_vars:
        np.testing.assert_array_equal(alone[name].values, among[name].values)
        assert "arXiv" in alone[name].attrs["source"]
        assert alone[name].attrs["long_name"]
    assert alone.attrs["measures"] == {
        "Switches": {"fractions": [0.05, 0.1, 0.2, 0.3], "queries": 64, "halfspace": False}
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fractions": ()}, "fractions"),
        ({"fractions": (0.1, -0.1)}, "fractions"),
        ({"fractions": (0.1, 0.1)}, "fractions must hold different"),
        ({"queries": 0}, "queries must be at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Switches(**options)


# -- values in a half-space --------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [256, 5])
def test_halfspace_of_the_projected_values(factory, limit):
    """In the residual stream itself, head by head, where the accumulator works in frames of heads."""
    model = factory(dtype=torch.float64)
    ids, mask = tokens(3, 19), torch.tensor(PADDING["gaps"])
    measure = Switches(halfspace=True, halfspace_tokens=limit, seed=4)
    probe = Probe(model, [measure])
    model.run_with_hooks(ids, fwd_hooks=probe.hooks(mask), attention_mask=mask)
    ds = probe.result()
    for label, layer in enumerate(record(model, ids, attention_mask=mask)):
        n_heads = len(layer.W_O)
        for head in range(n_heads):
            found = {}
            for v, real in zip(layer.v, mask.bool(), strict=True):
                x = v[real, head * v.shape[1] // n_heads] @ layer.W_O[head]
                if len(x) > limit:
                    x = x[[-(-k * len(x) // limit) for k in range(limit)]]
                one = halfspace_margins(x, None, control=False)
                rank = torch.linalg.matrix_rank(x.double(), rtol=1e-8)
                values = (one.origin_margin > 0, one.origin_margin / one.longest, rank, len(x))
                for name, value in zip(
                    ("feasible", "margin", "rank", "tokens"), values, strict=True
                ):
                    found.setdefault(name, []).append(float(value))
            for name, values in found.items():
                full = "value_rank" if name == "rank" else f"value_halfspace_{name}"
                here = float(ds[full].sel(layer=label, head=head))
                assert here == pytest.approx(np.mean(values), abs=1e-6), (full, label, head)
    if limit == 5:  # five values of eight dimensions
        assert (ds.value_rank == 5).all()
        assert (ds.value_halfspace_margin_random > 0).all()
    assert ds.attrs["measures"]["Switches"] == {
        "fractions": [0.05, 0.1, 0.2, 0.3], "queries": 64,
        "halfspace": True, "halfspace_tokens": limit, "seed": 4,
    }  # fmt: skip


def test_values_that_cancel_are_in_no_halfspace(tiny_model):
    """With the values of half of the tokens turned round the origin is among them."""
    ids = tokens(2, 40)

    def fold(v, hook):
        half = v[:, ::2]
        return torch.stack([half, -half], 2).flatten(1, 2)

    sites = attention_sites(tiny_model)
    probe = Probe(tiny_model, [Switches(halfspace=True)])
    folds = [(site.v_hook, fold) for site in sites]
    tiny_model.run_with_hooks(ids, fwd_hooks=[*folds, *probe.hooks()])
    ds = probe.result()
    assert (ds.value_halfspace_feasible == 0).all()
    assert (ds.value_halfspace_margin == 0).all()
    assert (ds.value_rank == 8).all()


def test_halfspace_is_left_out_by_default(tiny_model):
    ds = measured(tiny_model, tokens(2, 9))
    assert not any("halfspace" in name for name in ds.data_vars)
    with pytest.raises(ValueError, match="halfspace_tokens must be at least 1, got 0"):
        Switches(halfspace_tokens=0)
