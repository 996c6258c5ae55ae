"""delta NLL of single heads, against forwards with hooks of the test's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import plain_package
from evaluation_data.reference import BlockCounter, corpus, document_loss, mean_loss, zero_heads

from tl_geometry import load, save
from tl_geometry.ablations import remove_heads
from tl_geometry.evaluation.sensitivity import head_sensitivity, outlying
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.examined import examined


def sensitivity(model, data, **options):
    options = {"max_documents": None, "n_ctx": 64, "progress": False, **options}
    return head_sensitivity(model, data, **options)


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_head_equals_a_run_without_it(tiny_model, side):
    tokens, mask, documents = corpus(side=side)
    ds = sensitivity(tiny_model, (tokens, mask))
    full = mean_loss(tiny_model, documents)
    assert float(ds.nll) == pytest.approx(full, rel=1e-5)
    assert ds.delta_nll.dims == ("layer", "head")
    assert ds.delta_nll.shape == (2, 4)
    for layer in range(2):
        for head in range(4):
            hooks = zero_heads([(layer, head)])
            expected = mean_loss(tiny_model, documents, hooks) - full
            found = float(ds.delta_nll.sel(layer=layer, head=head))
            assert found == pytest.approx(expected, abs=2e-5)
            for row, ids in enumerate(documents):
                change = document_loss(tiny_model, ids, hooks) - document_loss(tiny_model, ids)
                one = float(ds.delta_nll_document.sel(layer=layer, head=head)[row])
                assert one == pytest.approx(change / (len(ids) - 1), abs=3e-5)
    assert (ds.delta_nll_low <= ds.delta_nll + 1e-9).all()
    assert (ds.delta_nll <= ds.delta_nll_high + 1e-9).all()
    assert float(abs(ds.delta_nll).max()) > 1e-3


def test_means_in_place_of_heads(tiny_model):
    tokens, mask, documents = corpus()
    ds = sensitivity(tiny_model, (tokens, mask), mode="mean", heads=[(1, 2)])
    expected = mean_loss(tiny_model, documents, remove_heads(tiny_model, [(1, 2)], "mean"))
    found = float(ds.delta_nll.sel(layer=1, head=2) + ds.nll)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.hooked
@pytest.mark.parametrize(("layers", "heads"), [(4, 4), (6, 2)])
def test_the_cost_is_below_seven_tenths_of_plain_forwards(tiny_hooked, layers, heads):
    model = tiny_hooked(n_layers=layers, n_heads=heads, n_key_value_heads=1)
    tokens, mask, _ = corpus((12, 12))
    examined(model, attention_sites(model))  # what every ablation needs to know, once
    with BlockCounter(model) as counter:
        sensitivity(model, [(tokens, mask), (tokens, mask)])
    probing = 3 * layers  # is it causal (two forwards), is it a model that can be measured (one)
    found = counter.count - probing
    one_batch = layers + heads * layers * (layers + 1) // 2
    assert found == 2 * one_batch + 1  # and one block to see that a start midway works
    assert found <= 0.7 * 2 * layers * heads * layers


@pytest.mark.hooked
def test_prefixes_change_no_number(tiny_hooked, monkeypatch):
    from tl_geometry.evaluation import runs

    model = tiny_hooked(n_layers=3)
    tokens, mask, _ = corpus(side="left")
    found = sensitivity(model, (tokens, mask))
    monkeypatch.setattr(runs, "can_start_at_layer", lambda model: False)
    full = sensitivity(model, (tokens, mask))
    assert found.delta_nll.values.tobytes() == full.delta_nll.values.tobytes()


def test_heads_and_layers_that_are_left_out_are_nan(tiny_model):
    data = corpus()[:2]
    whole = sensitivity(tiny_model, data)
    some = sensitivity(tiny_model, data, heads=[(1, 3), (1, 0)])
    assert some.layer.values.tolist() == [1]
    assert some.delta_nll.isnull().values.tolist() == [[False, True, True, False]]
    np.testing.assert_array_equal(
        some.delta_nll.sel(layer=1, head=[0, 3]), whole.delta_nll.sel(layer=1, head=[0, 3])
    )
    layer = sensitivity(tiny_model, data, layers=0)
    np.testing.assert_array_equal(layer.delta_nll.sel(layer=0), whole.delta_nll.sel(layer=0))
    assert not some.outlier.values[0, 1]


def test_a_head_that_writes_much_is_an_outlier(tiny_hooked):
    model = tiny_hooked(n_layers=3)
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            for head in range(4):
                block.attn.W_O[head] *= 3 if (layer, head) == (1, 2) else 0
    ds = sensitivity(model, corpus()[:2])
    assert ds.attrs["outliers"] == ["L1H2"]
    assert np.argwhere(ds.outlier.values).tolist() == [[1, 2]]
    assert "5 * 1.4826" in ds.attrs["outlier_rule"]


def test_the_rule_for_outliers():
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0])  # median 2, MAD 1: the edge is at 7.413 from 2
    for far, expected in ((9.41, False), (9.42, True), (-5.41, False), (-5.42, True)):
        mixed = np.append(values, [2.0, 2.0, far])
        distances = sorted(abs(mixed - np.median(mixed)))
        edge = 5 * 1.4826 * (distances[3] + distances[4]) / 2
        assert outlying(mixed)[-1] == (abs(far - 2) > edge) == expected
    assert not outlying(np.array([3.0])).any()
    assert not outlying(np.zeros(6)).any()


def test_one_document_has_no_interval(tiny_model):
    ds = sensitivity(tiny_model, corpus((9,))[0])
    assert ds.delta_nll.notnull().all()
    assert ds.delta_nll_low.isnull().all()
    assert ds.nll_high.isnull()


def test_the_result_can_be_stored(tiny_model, tmp_path):
    ds = sensitivity(tiny_model, corpus()[:2])
    assert load(save(ds, tmp_path / "run.nc")).identical(ds)
    assert ds.attrs["settings"] == {"evaluation": "head_sensitivity", "mode": "zero"}
    for name in ds.data_vars:
        assert ds[name].attrs["long_name"], name


def test_both_classes_agree(tiny_bridge, tiny_hooked):
    """The same Llama weights in a bridge and in a HookedTransformer made from it."""
    from tl_geometry.models.convert import hooked_from_llama

    bridge = tiny_bridge(attention_bias=False)
    data = corpus()[:2]
    hf = bridge.original_model
    hooked = hooked_from_llama(
        hf, None, name="tiny", processing=False, device=torch.device("cpu"), dtype=torch.float32
    )
    one, other = sensitivity(bridge, data), sensitivity(hooked, data)
    np.testing.assert_allclose(one.delta_nll, other.delta_nll, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": []}, "heads is empty"),
        ({"heads": [(0, 4)]}, "no head 4 in layer 0"),
        ({"heads": [(7, 0)]}, "layers: \\[7\\]"),
        ({"heads": [3]}, "pairs"),
        ({"layers": [2]}, "layers: \\[2\\]"),
        ({"mode": "half"}, "mode must be one of 'zero', 'mean'"),
        ({"confidence": 2.0}, "confidence must lie between 0 and 1, got 2.0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**64}, "seed must be less than"),
    ],
)
def test_refusals_come_before_the_first_forward(tiny_hooked, options, words, monkeypatch):
    model = tiny_hooked()
    monkeypatch.setattr(model, "forward", None)
    with plain_package():
        from tl_geometry.evaluation.sensitivity import head_sensitivity as plain

        with pytest.raises(ValueError, match=words):
            plain(model, corpus()[0], n_ctx=64, progress=False, **options)


def test_resuming_needs_a_checkpoint(tiny_model):
    with pytest.raises(ValueError, match="checkpoint="):
        sensitivity(tiny_model, corpus()[0], resume=True)
