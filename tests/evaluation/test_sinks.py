"""Interventions on sinks: losses by hand, and the geometry behind each edit against a literal layer."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
from evaluation_data.reference import corpus, document_loss, left_over_hooks
from literal.cone import lowest_quartile, semantic_alignment
from zoo.architectures import build_bridge

from tl_geometry import (
    remove_sinks,
    replace_sink_values,
    rescale_sink_values,
    sink_interventions,
    zero_sink_values,
)
from tl_geometry.data import bigram_backcopy
from tl_geometry.evaluation import runs
from tl_geometry.hooks import attention_sites
from tl_geometry.models import load_model

FEW = {"progress": False, "max_documents": None, "resamples": 200}


def nothing(model):
    return []


EDITS = {
    "none": nothing,
    "zero_value": zero_sink_values,
    "renormalize": lambda model: remove_sinks(model, renormalize=True),
    "rescale": lambda model: rescale_sink_values(model, 3.0),
    "mean": replace_sink_values,
}


def layers_behind(model, ids, edits):
    """Pattern and values of one document behind the edits."""
    kept = {}
    hooks = list(edits)
    for site in attention_sites(model):
        for name in (site.pattern_hook, site.v_hook):

            def keep(x, hook, name=name):
                kept[name] = x.detach()

            hooks.append((name, keep))
    with torch.no_grad():
        model.run_with_hooks(ids[None], fwd_hooks=hooks)
    return {s.layer: (kept[s.pattern_hook], kept[s.v_hook], s.W_O) for s in attention_sites(model)}


@pytest.fixture(scope="module", params=["left", "right"])
def side(request):
    return request.param


def test_losses_and_geometry_are_those_of_each_document_alone(tiny_model, side):
    tokens, mask, documents = corpus((10, 7, 10), side=side)
    ds = sink_interventions(tiny_model, (tokens, mask), factor=3.0, **FEW)
    assert ds.intervention.values.tolist() == list(EDITS)
    assert left_over_hooks(tiny_model) == 0
    count = sum(len(ids) - 1 for ids in documents)
    norms = np.full((len(EDITS), len(documents), 2, 4), np.nan)
    alignment = norms.copy()
    for e, make in enumerate(EDITS.values()):
        edits = make(tiny_model)
        loss = sum(document_loss(tiny_model, ids, edits) for ids in documents) / count
        assert float(ds.nll[e]) == pytest.approx(loss, rel=2e-5)
        assert float(ds.perplexity[e]) == pytest.approx(np.exp(loss), rel=1e-4)
        for d, ids in enumerate(documents):
            for layer, (pattern, v, W_O) in layers_behind(tiny_model, ids, edits).items():
                available = torch.ones(pattern.shape[-2:], dtype=torch.bool).tril()
                found = semantic_alignment(pattern, v, W_O, available=available)
                norms[e, d, layer] = np.nanmean(found["norm"][0], -1)
                alignment[e, d, layer] = np.nanmean(found["alignment"][0], -1)
    np.testing.assert_allclose(ds.output_norm, norms.mean(1), rtol=1e-3)
    np.testing.assert_allclose(ds.cone_alignment, alignment.mean(1), atol=1e-3)
    np.testing.assert_allclose(
        ds.output_norm_se, norms.std(1, ddof=1) / np.sqrt(len(documents)), rtol=2e-2, atol=1e-4
    )
    low = np.array([lowest_quartile(row) for row in norms[0].mean(0)])
    np.testing.assert_array_equal(ds.low_norm, low)
    relative = norms / norms[:1]
    for g, chosen in enumerate((low, ~low)):
        np.testing.assert_allclose(
            ds.group_cone_alignment[:, g], alignment[:, :, chosen].mean((1, 2)), atol=1e-3
        )
        np.testing.assert_allclose(
            ds.group_output_norm[:, g], relative[:, :, chosen].mean((1, 2)), rtol=1e-3
        )
    np.testing.assert_allclose(ds.delta_nll, ds.nll - ds.nll[0], atol=1e-12)
    np.testing.assert_allclose(ds.delta_perplexity, ds.perplexity - ds.perplexity[0], atol=1e-9)
    for name in ("nll", "delta_perplexity", "group_cone_alignment"):
        assert (ds[f"{name}_low"] <= ds[name] + 1e-9).all()
        assert (ds[name] <= ds[f"{name}_high"] + 1e-9).all()


def attention_given(model, ids, edits):
    """Each layer's mean attention to the first token, read in front of the edits and behind them."""
    kept = {}
    hooks = []
    for place in ("front", "behind"):
        for site in attention_sites(model):

            def keep(x, hook, at=(place, site.index)):
                kept[at] = x.detach()[0, :, 1:, 0].mean(-1).numpy()

            hooks.append((site.pattern_hook, keep))
        if place == "front":
            hooks += edits
    with torch.no_grad():
        model.run_with_hooks(ids[None], fwd_hooks=hooks)
    return [
        np.stack([kept[place, site.index] for site in attention_sites(model)])
        for place in ("front", "behind")
    ]


@pytest.mark.parametrize("heads", [None, [(0, 0), (1, 3)]])
def test_the_sink_rate_is_the_attention_that_stays_when_values_change(tiny_model, side, heads):
    """Some values are edited at the pattern, which still is no change of the attention."""
    tokens, mask, documents = corpus((10, 7, 10), side=side)
    ds = sink_interventions(tiny_model, (tokens, mask), factor=3.0, heads=heads, **FEW)
    for name, make in EDITS.items():
        limits = {} if name == "none" else {"heads": heads}
        if name == "rescale":
            edits = rescale_sink_values(tiny_model, 3.0, **limits)
        elif name == "renormalize":
            edits = remove_sinks(tiny_model, renormalize=True, **limits)
        else:
            edits = make(tiny_model, **limits)
        found = [attention_given(tiny_model, ids, edits) for ids in documents]
        front, behind = np.mean(found, 0)
        expected = behind if name == "renormalize" else front
        np.testing.assert_allclose(ds.sink_rate.sel(intervention=name), expected, atol=1e-5)
        if name == "mean":
            assert np.abs(front - behind).max() > 0.01
    first = ds.sink_rate.sel(layer=0)
    for name in ("zero_value", "rescale", "mean"):  # nothing before it changed
        np.testing.assert_allclose(
            first.sel(intervention=name), first.sel(intervention="none"), atol=1e-6
        )


def test_sinks_that_attention_tells_are_found_in_front_of_the_edits():
    toy = load_model("toy")
    rows = bigram_backcopy(seed=0).sample(3, 40)
    told = sink_interventions(toy, rows, sink="auto", **FEW)
    given = sink_interventions(toy, rows, **FEW)
    for name in ("sink_rate", "output_norm", "cone_tightness", "cone_alignment"):
        np.testing.assert_allclose(told[name], given[name], atol=2e-5)
    assert float(told.sink_rate.sel(intervention="zero_value").squeeze()) > 0.5


@pytest.mark.bridge
def test_a_delegated_bridge_takes_what_goes_through_values():
    model = build_bridge("gptj")
    tokens, mask, documents = corpus((8, 8))
    ds = sink_interventions(model, (tokens, mask), ["zero_value", "rescale"], **FEW)
    expected = (
        np.mean([document_loss(model, ids, zero_sink_values(model)) for ids in documents]) / 7
    )
    assert float(ds.nll.sel(intervention="zero_value")) == pytest.approx(expected, rel=2e-5)
    with pytest.raises(ValueError, match="needs its attention weights"):
        sink_interventions(model, (tokens, mask), **FEW)


def test_resumed_equals_uninterrupted(tiny_model, tmp_path, monkeypatch):
    data = corpus((9, 8, 9))[2]
    options = {"batch_size": 1, **FEW}
    whole = sink_interventions(tiny_model, data, **options)
    path = tmp_path / "sinks.json"
    scored, calls = runs._Runner._score, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return scored(*arguments)

    monkeypatch.setattr(runs._Runner, "_score", killed)
    with pytest.raises(KeyboardInterrupt):
        sink_interventions(tiny_model, data, checkpoint=path, **options)
    assert len(json.loads(path.read_text())["units"]) == 7
    for _ in range(2):  # the second finds all scores
        again = sink_interventions(tiny_model, data, checkpoint=path, resume=True, **options)
        for name in whole.data_vars:
            np.testing.assert_array_equal(whole[name], again[name])
    assert len(calls) == 8 + 15 - 7
    with pytest.raises(ValueError, match=r"settings\.factor was 2\.0, now 5\.0"):
        sink_interventions(tiny_model, data, checkpoint=path, resume=True, factor=5.0, **options)


def test_the_change_of_alignment_is_paired(tiny_model):
    """Resampled as differences of the same documents, here from runs of one document each."""
    documents = corpus((10, 7, 9, 8))[2]
    ds = sink_interventions(tiny_model, documents, seed=3, **FEW)
    assert ds.delta_group_cone_alignment.dims == ("intervention", "group")
    level, delta = ds.group_cone_alignment, ds.delta_group_cone_alignment
    np.testing.assert_allclose(delta, level - level[0], atol=1e-12)
    for end in ("", "_low", "_high"):
        assert (ds[f"delta_group_cone_alignment{end}"][0] == 0).all()
    chosen = {"low norm": ds.low_norm == 1, "other": ds.low_norm == 0}
    alone = [sink_interventions(tiny_model, [ids], **FEW).cone_alignment for ids in documents]
    draws = np.random.default_rng(3).multinomial(4, [0.25] * 4, size=200) / 4
    for g, heads in enumerate(chosen.values()):
        of_document = np.array([each.where(heads).mean(("layer", "head")) for each in alone])
        samples = draws @ (of_document - of_document[:, :1])
        low, high = np.quantile(samples, (0.025, 0.975), axis=0)
        np.testing.assert_allclose(ds.delta_group_cone_alignment_low[:, g], low, atol=1e-5)
        np.testing.assert_allclose(ds.delta_group_cone_alignment_high[:, g], high, atol=1e-5)
        wide = (ds.group_cone_alignment_high - ds.group_cone_alignment_low)[1:, g]
        assert (high - low)[1:].max() > 1e-4
        assert not np.allclose(wide, (high - low)[1:], atol=1e-5)  # that of the levels is another
    assert "minus" in delta.attrs["long_name"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interventions": ["erase"]}, "interventions"),
        ({"interventions": []}, "interventions must be one or more"),
        ({"factor": float("nan")}, "factor must be a finite number"),
        ({"heads": [(0, 9)]}, "heads 0 to 3"),
        ({"sink": 40}, "40"),
    ],
)
def test_wrong_options_are_refused(tiny_model, options, said):
    tokens, mask, _ = corpus((8, 8))
    with pytest.raises(ValueError, match=said):
        inspect.unwrap(sink_interventions)(tiny_model, (tokens, mask), **{**FEW, **options})
