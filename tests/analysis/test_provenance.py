"""What a result says about itself, and weight processing, which changes contributions but not outputs."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import numpy as np
import pytest
import torch
from analysis_data.reference import allowed, assert_equal, record, soften, tokens
from literal import contributions as literal
from zoo.architectures import build_bridge

import tl_geometry
from tl_geometry import (
    Contributions,
    Probe,
    Regimes,
    Sinks,
    analyze,
    load,
    prompt_contributions,
    save,
)

ATTRIBUTES = {
    "created", "tl_geometry", "python", "torch", "transformers", "transformer_lens", "model_name",
    "model_class", "model_dtype", "device", "weight_processing", "sink", "value_bias", "output",
    "documents", "tokens", "rows", "measures", "skipped_layers", "skipped_rows", "warnings",
    "n_ctx", "prepend_bos", "bos_rule", "seed", "skipped_documents",
}  # fmt: skip


def three():
    return [Contributions(), Regimes(), Sinks()]


@pytest.fixture
def model(backend, request):
    return soften(request.getfixturevalue(f"tiny_{backend}")())


def plain(value):
    """Whether a value is made of what JSON holds, with no numpy or torch inside."""
    if isinstance(value, dict):
        return all(type(key) is str and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool)


def test_the_attributes_of_an_analysis(model):
    ids = tokens(3, 12)
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[0, 8:] = 0
    ds = analyze(model, (ids, mask), measures=three(), progress=False, n_ctx=32, seed=7)
    assert set(ds.attrs) >= ATTRIBUTES
    assert plain(ds.attrs)
    assert json.loads(json.dumps(ds.attrs)) == ds.attrs
    assert ds.attrs["model_class"] == type(model).__name__
    assert ds.attrs["model_dtype"] == "float32"
    assert ds.attrs["torch"] == torch.__version__
    assert ds.attrs["documents"] == 3
    assert ds.attrs["tokens"] == ds.attrs["rows"] == 32
    assert ds.attrs["n_ctx"] == 32
    assert ds.attrs["seed"] is None  # these measures draw nothing from it
    default = analyze(model, (ids, mask), progress=False, n_ctx=32, seed=7)
    assert default.attrs["seed"] == default.attrs["measures"]["Separability"]["seed"] == 7
    assert ds.attrs["sink"] == "first"
    assert ds.attrs["prepend_bos"] is False
    assert list(ds.attrs["measures"]) == ["Contributions", "Regimes", "Sinks"]
    age = datetime.now(timezone.utc) - datetime.fromisoformat(ds.attrs["created"])
    assert 0 <= age.total_seconds() < 60
    assert tl_geometry.__version__


@pytest.mark.parametrize(
    "sink", [0, 3, [0, 2], (1, 2), torch.tensor([0, 1]), torch.ones(2, 9, dtype=torch.bool).tril()]
)
def test_every_sink_rule_is_recorded_in_plain_values(model, sink):
    probe = Probe(model, three(), sink=sink)
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    attrs = probe.result().attrs
    assert json.loads(json.dumps(attrs)) == attrs | {"sink": json.loads(json.dumps(attrs["sink"]))}
    wanted = sink.tolist() if isinstance(sink, torch.Tensor) else sink
    assert attrs["sink"] in (wanted, list(wanted) if isinstance(wanted, tuple) else wanted)


def test_options_are_recorded(model):
    ds = analyze(
        model, tokens(2, 9), measures=three(), progress=False, value_bias="remove", output="raw"
    )
    assert ds.attrs["value_bias"] == "remove"
    assert ds.attrs["output"] == "raw"


def test_a_result_survives_saving_and_loading(model, tmp_path):
    ds = analyze(model, tokens(3, 12), measures=three(), progress=False, keep_examples=2)
    save(ds, tmp_path / "run.nc")
    again = load(tmp_path / "run.nc")
    assert again.identical(ds)
    assert again.attrs == ds.attrs
    for name in ds.variables:
        assert again[name].dtype == ds[name].dtype


@pytest.mark.bridge
def test_labels_of_several_stacks_survive_saving(tmp_path):
    bart = build_bridge("bart")
    probe = Probe(bart, three())
    bart.run_with_hooks(tokens(2, 9), decoder_input=tokens(2, 7), fwd_hooks=probe.hooks())
    ds = probe.result()
    save(ds, tmp_path / "run.nc")
    assert load(tmp_path / "run.nc").identical(ds)


# -- weight processing ---------------------------------------------------------------------------------

NOTHING = {
    "fold_ln": False,
    "center_writing_weights": False,
    "center_unembed": False,
    "fold_value_biases": False,
    "refactor_factored_attn_matrices": False,
}


@pytest.fixture
def processed(tiny_hooked):
    """The same raw weights, processed as asked."""
    raw = soften(tiny_hooked())

    def process(**steps):
        norm = "LNPre" if steps.get("fold_ln") else "LN"
        model = tiny_hooked(normalization_type=norm)
        state = {name: value.clone() for name, value in raw.state_dict().items()}
        model.load_and_process_state_dict(state, **{**NOTHING, **steps})
        return model.eval()

    return raw, process


def weights(model, **options):
    """Contribution weights of layer 1, ``batch head query key``."""
    layer = record(model, tokens(2, 11))[1]
    return literal.contribution_weights(layer.pattern, layer.v, layer.W_O, **options)


def run(model, **options):
    probe = Probe(model, three(), **options)
    model.run_with_hooks(tokens(2, 11), fwd_hooks=probe.hooks())
    return probe.result()


def log_probabilities(model):
    with torch.no_grad():
        return model(tokens(2, 11)).log_softmax(-1)


@pytest.mark.hooked
def test_processing_changes_contributions_but_not_predictions(processed):
    raw, process = processed
    full = process(
        fold_ln=True, center_writing_weights=True, center_unembed=True, fold_value_biases=True
    )
    torch.testing.assert_close(log_probabilities(raw), log_probabilities(full), atol=1e-4, rtol=0)
    before, after = run(raw), run(full)
    for name in ("contribution_sink", "contribution_self", "sink_norm", "output_norm"):
        assert float(abs(before[name] - after[name]).max()) > 0.01, name
    np.testing.assert_allclose(before.sink_rate.values, after.sink_rate.values, atol=1e-4)
    matrices = [prompt_contributions(model, tokens(2, 11)[0]) for model in (raw, full)]
    assert float(abs(matrices[0] - matrices[1]).max()) > 0.05
    steps = ("folded_layer_norm", "folded_value_biases", "centered_writing_weights")
    assert [before.attrs["weight_processing"][step] for step in steps] == [False] * 3
    assert [after.attrs["weight_processing"][step] for step in steps] == [True] * 3
    assert [matrices[1].attrs["weight_processing"][step] for step in steps] == [True] * 3


@pytest.mark.hooked
def test_removing_the_bias_undoes_the_folding_of_value_biases_alone(processed):
    raw, process = processed
    folded = process(fold_value_biases=True)
    without, as_folded = run(raw, value_bias="remove"), run(folded)
    for name in without.data_vars:
        if "spearman" not in name and name != "regime":
            np.testing.assert_allclose(
                without[name].values,
                as_folded[name].values,
                rtol=1e-4,
                atol=allowed(name, 1e-5),
                err_msg=name,
            )
    assert without.regime.values.tolist() == as_folded.regime.values.tolist()
    assert float(abs(run(raw).contribution_sink - without.contribution_sink).max()) > 0.01
    assert as_folded.attrs["weight_processing"]["folded_value_biases"] is True
    assert without.attrs["weight_processing"]["folded_value_biases"] is False
    assert_equal(run(folded, value_bias="remove"), as_folded, 1e-6)  # nothing left to remove


@pytest.mark.hooked
def test_folding_the_norm_alone_changes_nothing(processed):
    """The norm's scale and shift go into W_V and b_V: the values stay what they are."""
    raw, process = processed
    folded = process(fold_ln=True)
    left, right = run(raw), run(folded)
    for name in ("contribution_sink", "contribution_negative", "sink_norm_ratio", "self_share"):
        np.testing.assert_allclose(left[name].values, right[name].values, rtol=1e-4, atol=1e-5)
    assert right.attrs["weight_processing"]["folded_layer_norm"] is True


@pytest.mark.hooked
def test_removing_the_bias_does_not_undo_the_folding_of_norm_and_biases(processed):
    """The shift of the norm has become a part of the folded bias, which raw weights hold elsewhere."""
    raw, process = processed
    both = process(fold_ln=True, fold_value_biases=True)
    without, as_folded = run(raw, value_bias="remove"), run(both)
    assert float(abs(without.contribution_sink - as_folded.contribution_sink).max()) > 1e-3
    shift = raw.blocks[1].ln1.b @ raw.blocks[1].attn.W_V  # query heads, two of each
    bias = (raw.blocks[1].attn.b_V + shift.reshape(4, -1)).detach()[::2]
    expected = weights(raw, value_bias="remove", b_V=bias)
    np.testing.assert_allclose(weights(both), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.hooked
def test_centring_changes_lengths_and_so_contributions(processed):
    """Centred output weights project every vector off the direction of ones; nothing else happens."""
    raw, process = processed
    centred = process(center_writing_weights=True)
    layer = record(raw, tokens(2, 11))[1]
    W_O = layer.W_O - layer.W_O.mean(-1, keepdim=True)
    expected = literal.contribution_weights(layer.pattern, layer.v, W_O)
    np.testing.assert_allclose(weights(centred), expected, rtol=1e-3, atol=1e-4)
    found = prompt_contributions(centred, tokens(2, 11)[0], layers=[1])
    np.testing.assert_allclose(found.values[0], expected[0], rtol=1e-3, atol=1e-4)
    assert np.abs(weights(raw) - expected).max() > 1e-3
    steps = run(centred).attrs["weight_processing"]
    assert steps["centered_writing_weights"] is True
    assert steps["folded_value_biases"] is False
    torch.testing.assert_close(
        log_probabilities(raw), log_probabilities(centred), atol=1e-4, rtol=0
    )


@pytest.mark.bridge
def test_a_bridge_in_compatibility_mode_says_so(tiny_bridge):
    model = soften(tiny_bridge("gpt2", n_embd=32, n_head=4, n_layer=2, n_positions=64))
    before = run(model)
    outputs = log_probabilities(model)
    model.enable_compatibility_mode()
    after = run(model)
    torch.testing.assert_close(log_probabilities(model), outputs, atol=1e-3, rtol=0)
    assert before.attrs["weight_processing"]["compatibility_mode"] is False
    assert after.attrs["weight_processing"]["compatibility_mode"] is True
    assert after.attrs["weight_processing"]["folded_value_biases"] is True
    assert float(abs(before.contribution_sink - after.contribution_sink).max()) > 1e-3
    np.testing.assert_allclose(before.sink_rate.values, after.sink_rate.values, atol=1e-4)
