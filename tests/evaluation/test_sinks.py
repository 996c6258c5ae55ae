"""Interventions on sinks: losses by hand, and the geometry behind each edit against a literal layer."""

from __future__ import annotations

import inspect

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
from tl_geometry.hooks import attention_sites

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


def test_resumed_equals_uninterrupted(tiny_model, tmp_path):
    tokens, mask, _ = corpus((9, 9, 9))
    options = {"batch_size": 1, **FEW}
    whole = sink_interventions(tiny_model, (tokens, mask), **options)
    path = tmp_path / "sinks.json"
    first = sink_interventions(tiny_model, (tokens, mask), checkpoint=path, **options)
    again = sink_interventions(tiny_model, (tokens, mask), checkpoint=path, resume=True, **options)
    for name in whole.data_vars:
        np.testing.assert_array_equal(whole[name], first[name])
        np.testing.assert_array_equal(whole[name], again[name])
    with pytest.raises(ValueError, match="factor"):
        sink_interventions(
            tiny_model, (tokens, mask), checkpoint=path, resume=True, factor=5.0, **options
        )


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
