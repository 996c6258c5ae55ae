"""Denser and sparser attention: losses and token similarity of each document alone, with patterns mixed by hand."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
import xarray as xr
from analysis_data.reference import plain_package
from evaluation_data.reference import BlockCounter, corpus, document_loss, left_over_hooks
from literal import similarity as literal
from zoo.architectures import build_bridge

from tl_geometry import Smoothing, analyze, mix_pattern, pattern_mixing
from tl_geometry.evaluation import runs

FEW = {"progress": False, "max_documents": None, "resamples": 200}
TARGETS = ("identity", "uniform", "sink")
TS = (0.3, 1.0)


def goal(target, n):
    """The pattern of a causal model's document without padding, written out."""
    found = torch.zeros(n, n)
    for i in range(n):
        if target == "identity":
            found[i, i] = 1
        elif target == "sink":
            found[i, 0] = 1
        else:
            found[i, : i + 1] = 1 / (i + 1)
    return found


def by_hand(target, t):
    """Hooks that mix the patterns of both layers."""

    def edit(pattern, hook):
        return (1 - t) * pattern + t * goal(target, pattern.shape[-1])

    return [(f"blocks.{layer}.attn.hook_pattern", edit) for layer in range(2)]


def around_layers(model, ids, hooks):
    """Similarity and residual at input and output of both layers: ``measure end layer``."""
    seen = {}
    reading = []
    for layer in range(2):
        for end, name in enumerate(("hook_resid_pre", "hook_resid_post")):

            def keep(x, hook, place=(end, layer)):
                seen[place] = x.detach()

            reading.append((f"blocks.{layer}.{name}", keep))
    with torch.no_grad():
        model.run_with_hooks(ids[None], fwd_hooks=[*hooks, *reading])
    found = np.empty((2, 2, 2))
    for place, x in seen.items():
        found[(0, *place)] = literal.token_similarity(x)[0]
        found[(1, *place)] = literal.relative_residual(x)[0]
    return found


def resampled(values, seed=0, resamples=200):
    """Ends of the interval of a mean over documents (the last axis), resample by resample."""
    n = values.shape[-1]
    draws = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=resamples)
    means = np.array([(values * draw).sum(-1) / n for draw in draws])
    return np.quantile(means, [0.025, 0.975], axis=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_numbers_are_those_of_each_document_alone(tiny_model, side):
    tokens, mask, documents = corpus((10, 7, 10, 8), side=side)
    ds = pattern_mixing(tiny_model, (tokens, mask), TARGETS, TS, **FEW)
    assert left_over_hooks(tiny_model) == 0
    assert ds.target.values.tolist() == list(TARGETS)
    assert ds.t.values.tolist() == [0, *TS]
    assert ds.layer.values.tolist() == [0, 1]
    count = sum(len(ids) - 1 for ids in documents)
    for target in TARGETS:
        plain = np.stack([around_layers(tiny_model, ids, []) for ids in documents], -1)
        for t in (0.0, *TS):
            hooks = by_hand(target, t) if t else []
            here = ds.sel(target=target, t=t)
            loss = sum(document_loss(tiny_model, ids, hooks) for ids in documents) / count
            assert float(here.nll) == pytest.approx(loss, rel=2e-5)
            assert float(here.perplexity) == pytest.approx(np.exp(loss), rel=1e-4)
            found = np.stack([around_layers(tiny_model, ids, hooks) for ids in documents], -1)
            for m, measure in enumerate(("similarity", "residual")):
                out, change = found[m, 1], found[m, 1] - plain[m, 1]
                expected = {
                    f"{measure}_in": found[m, 0],
                    f"{measure}_out": out,
                    f"delta_{measure}_out": change,
                    f"{measure}_mean": out.mean(0),
                    f"delta_{measure}_mean": change.mean(0),
                }
                for name, values in expected.items():
                    low, high = resampled(values)
                    for suffix, number in (("", values.mean(-1)), ("_low", low), ("_high", high)):
                        np.testing.assert_allclose(
                            here[name + suffix], number, atol=2e-5, err_msg=f"{name}{suffix} {t}"
                        )
    np.testing.assert_allclose(ds.delta_nll, ds.nll - ds.nll.sel(t=0), atol=1e-12)
    np.testing.assert_allclose(
        ds.delta_perplexity, ds.perplexity - ds.perplexity.sel(t=0), atol=1e-9
    )
    moved = abs(ds.delta_similarity_out.sel(t=1))
    assert (moved.sel(target=["identity", "uniform"]) > 1e-3).all()


def test_t_0_is_the_plain_run(tiny_model):
    tokens, mask, _ = corpus((9, 6, 9))
    ds = pattern_mixing(tiny_model, (tokens, mask), **FEW)
    assert ds.t.values.tolist() == [0, 0.25, 0.5, 1]
    plain = analyze(tiny_model, (tokens, mask), measures=[Smoothing()], progress=False)
    for target in ("identity", "uniform"):
        here = ds.sel(target=target, t=0)
        for name in ("similarity_in", "similarity_out", "residual_in", "residual_out"):
            np.testing.assert_allclose(here[name], plain[name], rtol=1e-6)
        for name in ds.data_vars:
            if name.startswith("delta_"):
                assert (here[name] == 0).all(), name


def test_shares_and_targets_in_any_order(tiny_model):
    data = corpus((9, 6))[:2]
    ds = pattern_mixing(tiny_model, data, ["uniform", "uniform"], [1, 0, 0.5, 0.5], **FEW)
    assert ds.t.values.tolist() == [0, 0.5, 1]
    assert ds.target.values.tolist() == ["uniform"]
    assert ds.attrs["settings"]["ts"] == [0.5, 1]
    alone = pattern_mixing(tiny_model, data, ["uniform"], [1], **FEW)
    np.testing.assert_array_equal(ds.similarity_out.sel(t=[0, 1]), alone.similarity_out)


def test_some_layers_and_heads(tiny_model):
    data = corpus((9, 6, 9))[:2]
    upper = pattern_mixing(tiny_model, data, ts=[1.0], layers=[1], **FEW)
    assert upper.attrs["settings"]["heads"] == [[1, [0, 1, 2, 3]]]
    assert (upper.delta_similarity_out.sel(layer=0) == 0).all()
    assert (upper.delta_similarity_out.sel(layer=1, t=1) != 0).all()
    head = pattern_mixing(tiny_model, data, ts=[1.0], heads=[(0, 2)], **FEW)
    assert head.attrs["settings"]["heads"] == [[0, [2]]]
    ids = corpus((9, 6, 9))[2]
    for target in ("identity", "uniform"):
        edits = mix_pattern(tiny_model, 1.0, target, heads=[(0, 2)])
        expected = np.mean([around_layers(tiny_model, each, edits) for each in ids], 0)[0, 1]
        found = head.similarity_out.sel(target=target, t=1)
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_permuted_weights_are_those_of_the_document(tiny_model):
    data = corpus((9, 6, 9))[2]
    options = {"targets": ["permuted"], "ts": [1.0], **FEW}
    whole = pattern_mixing(tiny_model, data, **options)
    single = pattern_mixing(tiny_model, data, batch_size=1, **options)
    for name in ("nll", "similarity_out"):
        np.testing.assert_allclose(single[name], whole[name], rtol=1e-5)
    other = pattern_mixing(tiny_model, data, seed=1, **options)
    assert abs(other.nll - whole.nll).sel(t=1).max() > 1e-4


@pytest.mark.bridge
def test_a_delegated_bridge_is_mixed_through_z():
    model = build_bridge("gptj")
    tokens, mask, documents = corpus((8, 8))
    ds = pattern_mixing(model, (tokens, mask), ["uniform"], [0.5], **FEW)
    edits = mix_pattern(model, 0.5, "uniform")
    expected = np.mean([document_loss(model, ids, edits) for ids in documents]) / 7
    assert float(ds.nll.sel(t=0.5)[0]) == pytest.approx(expected, rel=2e-5)
    similarity = np.mean([around_layers(model, ids, edits) for ids in documents], 0)[0, 1]
    np.testing.assert_allclose(
        ds.similarity_out.sel(target="uniform", t=0.5), similarity, atol=2e-5
    )
    with BlockCounter(model) as counter, pytest.raises(ValueError, match="permuting a row"):
        pattern_mixing(model, (tokens, mask), ["uniform", "permuted"], **FEW)
    assert counter.count == 0


@pytest.mark.hooked
def test_one_forward_for_loss_and_similarity(tiny_hooked):
    model, data = tiny_hooked(), corpus((9, 9, 9))[2]
    counts = []
    mix_pattern(model, 1.0)  # the model is examined once
    for ts in ([1.0], [0.25, 0.5, 1.0]):
        with BlockCounter(model) as counter:
            pattern_mixing(model, data, ["uniform"], ts, batch_size=1, **FEW)
        counts.append(counter.count)
    assert counts[1] - counts[0] == 2 * 3 * 2  # variants, batches, layers


def test_resumed_equals_uninterrupted(tiny_model, tmp_path, monkeypatch):
    data = corpus((9, 7, 9))[2]
    options = {"ts": (0.5, 1.0), "batch_size": 1, **FEW}
    whole = pattern_mixing(tiny_model, data, **options)
    path = tmp_path / "mixing.json"
    scored, calls = runs._Runner._score, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return scored(*arguments)

    monkeypatch.setattr(runs._Runner, "_score", killed)
    with pytest.raises(KeyboardInterrupt):
        pattern_mixing(tiny_model, data, checkpoint=path, **options)
    assert len(calls) == 8
    for _ in range(2):  # the second finds all scores
        again = pattern_mixing(tiny_model, data, checkpoint=path, resume=True, **options)
        for name in whole.data_vars:
            np.testing.assert_array_equal(again[name], whole[name])
    assert len(calls) == 8 + 15 - 7
    with pytest.raises(ValueError, match=r"settings\.ts was \[0\.5, 1\.0\]"):
        pattern_mixing(tiny_model, data, checkpoint=path, resume=True, **options | {"ts": [1.0]})


def test_documents_too_short_for_a_similarity(tiny_model):
    documents = corpus((9, 2, 8))[2]
    ds = pattern_mixing(tiny_model, documents, ["uniform"], [1.0], batch_size=1, **FEW)
    loss = sum(document_loss(tiny_model, ids) for ids in documents) / 16
    assert float(ds.nll.sel(t=0)[0]) == pytest.approx(loss, rel=2e-5)
    long = [around_layers(tiny_model, ids, []) for ids in (documents[0], documents[2])]
    np.testing.assert_allclose(ds.similarity_out.sel(t=0)[0], np.mean(long, 0)[0, 1], atol=2e-5)
    (warning,) = [text for text in ds.attrs["warnings"] if "fewer than 3" in text]
    assert warning.startswith("1 of 3 documents")
    with pytest.raises(ValueError, match="data: no document has 3 tokens"):
        pattern_mixing(tiny_model, [ids[:2] for ids in documents], **FEW)


def test_one_document_has_no_intervals(tiny_model):
    ds = pattern_mixing(tiny_model, corpus((9,))[:2], ts=[1.0], **FEW)
    for name in ("nll", "similarity_out", "delta_similarity_mean"):
        assert np.isfinite(ds[name]).all()
        assert np.isnan(ds[f"{name}_low"]).all()


def test_what_is_said_of_the_result(tiny_model):
    ds = pattern_mixing(tiny_model, corpus((9, 8))[:2], ts=[1.0], sink=1, seed=3, **FEW)
    assert ds.attrs["settings"] == {
        "evaluation": "pattern_mixing",
        "targets": ["identity", "uniform"],
        "ts": [1.0],
        "sink": 1,
        "heads": None,
        "seed": 3,
    }
    for name, variable in ds.data_vars.items():
        assert "2605.08453" in variable.attrs["source"], name
        assert variable.attrs["units"] == ("nat/token" if "nll" in name else "1")
        assert ("minus" in variable.attrs["long_name"]) == name.startswith("delta_")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"targets": ["dense"]}, "targets must be one of 'identity', 'uniform'"),
        ({"targets": []}, "targets must be one or more"),
        ({"targets": "uniform"}, "targets must be one or more"),
        ({"ts": []}, r"ts must be shares of the target in \[0, 1\]"),
        ({"ts": [0.0]}, "one of them above 0"),
        ({"ts": [0.5, 1.2]}, "ts must be shares"),
        ({"ts": [-0.1]}, "ts must be shares"),
        ({"ts": [float("nan"), 0.5]}, "ts must be shares"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"heads": [(0, 9)]}, "heads 0 to 3"),
        ({"layers": [7]}, "7"),
    ],
)
def test_wrong_options_are_refused(tiny_model, options, said):
    with pytest.raises(ValueError, match=said):
        inspect.unwrap(pattern_mixing)(tiny_model, corpus((8, 8))[:2], **{**FEW, **options})


def test_generators_and_numpy_integers_are_taken(tiny_model):
    data, names = corpus((9, 8))[:2], ("uniform", "sink", "uniform")
    expected = pattern_mixing(tiny_model, data, names, (0.5, 1.0), sink=1, seed=2, **FEW)
    with plain_package() as plain:  # without the tests' type checks
        found = plain.pattern_mixing(
            tiny_model,
            data,
            (name for name in names),
            (t for t in np.array([0.5, 1.0])),
            sink=np.int64(1),
            seed=np.int64(2),
            **FEW,
        )
    xr.testing.assert_equal(found, expected)
    assert found.target.values.tolist() == ["uniform", "sink"]
    assert json.dumps(found.attrs["settings"]) == json.dumps(expected.attrs["settings"])
