"""The matrix of architectures: verdicts, and all numbers against Hugging Face's own attentions and weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_layer, numbers, over_documents
from literal import (
    contributions as literal_contributions,
    regimes as literal_regimes,
    separability as literal_separability,
)
from zoo.cases import Case, case
from zoo.matrix import runs

import tl_geometry as tlg
from tl_geometry.hooks import attention_sites, doctor

TOP_N = (1, 2, 4)
UNREAD = ("deepseek_v3",)  # latent attention: no projection gives the values alone


def _runs(wanted):
    return [
        pytest.param(
            (entry.arch, kind),
            id=f"{entry.arch}-{kind}",
            marks=getattr(pytest.mark, kind),
        )
        for entry, kind in runs()
        if wanted(entry, kind)
    ]


def _has_attention(entry, kind):
    return entry.arch != "mamba"


def _supported(entry, kind):
    return entry.supported


def _refused(entry, kind):
    return not entry.supported and entry.arch != "mamba"


@pytest.fixture
def run(request) -> Case:
    return case(*request.param)


def over(wanted):
    return pytest.mark.parametrize("run", _runs(wanted), indirect=True)


@over(_has_attention)
def test_verdict(run):
    entry, report = run.entry, run.doctor
    assert len(report.layers) == len(run.sites)
    for index, layer in enumerate(report.layers):
        assert layer.verdict == entry.verdict
        assert entry.reason in layer.reason
        assert bool(layer.reason) == (not entry.supported)
        assert layer.edits == entry.edits(run.kind)
        if entry.arch not in UNREAD:
            assert layer.causal == run.causal(index)
            assert run.sites[index].cross == run.cross(index)
            assert layer.window == run.window(index)
        late = layer.fire_order.index("pattern") > layer.fire_order.index("z")
        assert late == (not entry.edits(run.kind)["pattern"])
        if layer.supported:
            assert max(layer.decomposition_error, layer.output_error) < 1e-5
            lossy = entry.arch in ("gpt_oss", "learned_sinks") and not entry.deviating(run.kind)
            assert layer.rows_sum_to_one == (not lossy)
    assert report.ok == entry.supported
    assert report.warnings == ()
    bridge = run.kind == "bridge"
    assert report.processing["backend"] == ("TransformerBridge" if bridge else "HookedTransformer")


@over(lambda entry, kind: _has_attention(entry, kind) and entry.arch not in UNREAD)
def test_reference_is_what_hugging_face_adds_to_its_stream(run):
    """In the reference itself attention @ values = z and z W_O + b_O = output, or the refusal is right."""
    for layer in run.expected:
        out = torch.einsum("bqhd,hdm->bqm", layer.z, layer.W_O)
        out = out if layer.b_O is None else out + layer.b_O
        torch.testing.assert_close(out, layer.out, rtol=1e-4, atol=1e-5)
        error = (layer.mixed - layer.z).abs().max() / layer.z.abs().max()
        clipped = run.entry.verdict == "clipped"  # Hugging Face clips in place: its hooks show it
        assert (error < 1e-5) == (run.entry.supported or clipped)


@over(lambda entry, kind: _has_attention(entry, kind) and entry.arch not in UNREAD)
def test_hooks_show_what_hugging_face_computes(run):
    alike = True
    for index, (shown, layer) in enumerate(zip(run.shown, run.expected, strict=True)):
        torch.testing.assert_close(shown.site.W_O, layer.W_O, rtol=0, atol=0)
        same = _close(shown.pattern, layer.attention)
        alike = alike and same
        if run.entry.verdict != "clipped" and (alike or index == 0):
            assert _close(shown.v, layer.v)
    assert alike == (not run.entry.deviating(run.kind))


def _close(found, expected):
    return bool((found - expected).abs().max() <= 1e-5 * (1 + expected.abs().max()))


def _weights_and_factors(run, index, mode):
    layer = run.reference[index]
    given = (layer.attention, layer.v, layer.W_O)
    options = {"mode": mode, "available": run.available(index)}
    return (
        literal_contributions.contribution_weights(*given, **options),
        literal_contributions.contribution_factors(*given, **options),
    )


@over(_supported)
def test_contribution_weights_and_their_factors(run):
    for index, shown in enumerate(run.shown):
        mine = (shown.pattern, shown.v, shown.site.W_O)
        for mode in ("intra", "inter"):
            options = {"mode": mode, "available": run.available(index)}
            expected, factors = run.once(_weights_and_factors, index, mode)
            found = tlg.contribution_weights(*mine, **options).numpy()
            scale = 1 + np.abs(expected).sum(-1, keepdims=True)
            assert np.isfinite(expected).all()
            np.testing.assert_array_less(np.abs(found - expected) / scale, 1e-5)
            total = found.sum(-1) if mode == "intra" else found.sum((1, -1))
            np.testing.assert_allclose(total, 1, atol=2e-5 * float(scale.max()))
            measured = tlg.contribution_factors(*mine, **options)
            names = ("attention", "relative_norm", "cosine")
            for name, values in zip(names, factors, strict=True):
                np.testing.assert_allclose(
                    getattr(measured, name).numpy(), values, rtol=1e-4, atol=1e-5, err_msg=name
                )


def _separability(run, index):
    layer, available = run.reference[index], run.available(index)
    return literal_separability.separability(
        layer.attention, layer.v, top_n=TOP_N, available=available, eps=2.0**-23
    )


@over(_supported)
def test_separability_and_regimes(run):
    for index, (shown, layer) in enumerate(zip(run.shown, run.reference, strict=True)):
        available = run.available(index)
        expected = run.once(_separability, index)
        found = tlg.separability(shown.pattern, shown.v, top_n=TOP_N, available=available)
        for name in ("precision", "recall", "f_score", "inversions", "margin"):
            np.testing.assert_allclose(
                getattr(found, name).numpy(), expected[name], rtol=1e-4, atol=1e-5, err_msg=name
            )
        options = {"available": available, "cross": run.cross(index)}
        position, category = literal_regimes.source_winners(layer.attention, layer.v, **options)
        winners = tlg.source_winners(shown.pattern, shown.v, **options)
        assert winners.position.tolist() == position.tolist()
        assert winners.category.tolist() == category.tolist()
        if run.cross(index):
            assert not (category == literal_regimes.SELF).any()
        labels = [
            row[0] for row in literal_regimes.head_regimes(layer.attention, layer.v, **options)
        ]
        assert list(tlg.head_regimes(shown.pattern, shown.v, **options).labels) == labels


def _variables(run, index):
    """One document after the other; what Granite adds to its stream is the output times a constant."""
    layer, scale = run.reference[index], 0.3 if run.entry.verdict == "scaled" else 1.0
    return over_documents(
        [
            numbers(
                layer.attention[row : row + 1],
                layer.v[row : row + 1],
                scale * layer.W_O,
                run.available(index),
                cross=run.cross(index),
            )
            for row in range(len(layer.attention))
        ]
    )


@over(_supported)
def test_a_probe_finds_every_variable(run):
    """The public path: hooks, masks, windows and weights as the package finds them by itself."""
    probe = tlg.Probe(run.model, [tlg.Contributions(), tlg.Regimes(), tlg.Sinks(tail_queries=16)])
    run.run(probe.hooks())
    ds = probe.result()
    for index, site in enumerate(run.sites):
        assert_layer(ds, site.layer, run.once(_variables, index), 1e-4)


@over(lambda entry, kind: _supported(entry, kind) and entry.arch in ("llama", "gpt_oss", "gemma3"))
@pytest.mark.parametrize("mode", ["intra", "inter"])
def test_matrices_of_a_prompt(run, mode):
    found = tlg.prompt_contributions(run.model, run.args[0][0], mode=mode)
    for index, layer in enumerate(run.reference):
        expected = literal_contributions.contribution_weights(
            layer.attention[:1],
            layer.v[:1],
            layer.W_O,
            mode=mode,
            available=run.available(index),
        )
        np.testing.assert_allclose(found[index].values, expected[0], rtol=1e-4, atol=1e-4)


@over(_refused)
@pytest.mark.parametrize("on_unsupported", ["raise", "skip"])
def test_analyze_refuses_with_the_reason(run, on_unsupported):
    """Where no layer can be measured, there is nothing left after skipping."""
    with pytest.raises(ValueError, match="can't be measured") as error:
        tlg.analyze(run.model, run.args[0], on_unsupported=on_unsupported, progress=False)
    reason = run.doctor.layers[0].reason
    assert reason in str(error.value)
    assert run.entry.reason in reason


@pytest.mark.bridge
def test_analyze_skips_the_layers_that_it_refuses():
    from zoo.architectures import build_bridge

    model = build_bridge("llama", std=0.15)
    attention_sites(model)[0].module.original_component.sliding_window = 4  # the pattern keeps none
    reasons = {0: doctor(model).layers[0].reason}
    tokens = case("llama", "bridge").args[0]
    with pytest.raises(ValueError, match="declares a window of 4"):
        tlg.analyze(model, tokens, "regimes", progress=False)
    ds = tlg.analyze(model, tokens, "regimes", on_unsupported="skip", progress=False)
    whole = tlg.analyze(case("llama", "bridge").model, tokens, "regimes", progress=False)
    assert ds.attrs["skipped_layers"] == {str(k): v for k, v in reasons.items()}
    assert ds.layer.values.tolist() == [1]
    assert ds.regime[0].values.tolist() == whole.regime[1].values.tolist()


@pytest.mark.bridge
def test_a_model_without_attention_is_refused():
    model = case("mamba", "bridge").model
    for call in (doctor, lambda m: tlg.analyze(m, torch.arange(9), progress=False)):
        with pytest.raises(ValueError, match="has no attention layer"):
            call(model)
