"""What follows W_O: norms, constants, weight processing; and learned sinks, which take attention to no key."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from literal import contributions as literal
from zoo.architectures import build_bridge, build_huggingface
from zoo.cases import STD, case, huggingface
from zoo.conversions import build_converted
from zoo.huggingface import inputs, read
from zoo.matrix import BY_ARCH, LINE

import tl_geometry as tlg
from tl_geometry.measures.geometry import AttentionGeometry

NORMED = [
    pytest.param(arch, kind, id=f"{arch}-{kind}", marks=getattr(pytest.mark, kind))
    for arch in ("gemma2", "gemma3", "olmo2", "olmo3", "exaone4")
    for kind in ("hooked", "bridge")
    if LINE in getattr(BY_ARCH[arch], kind)
]


def through(model, given, suffix):
    """Inputs and outputs of the modules with this name at their end, in forward order."""
    seen = []
    handles = [
        module.register_forward_hook(lambda _, args, result: seen.append((args[0], result)))
        for name, module in model.named_modules()
        if name.endswith(suffix)
    ]
    with torch.no_grad():
        model(**given)
    for handle in handles:
        handle.remove()
    return seen


def frozen(layer, factor, mode):
    """c_ij where every term is multiplied by what the norm multiplies this row by, entry for entry."""
    group = layer.attention.shape[1] // layer.v.shape[2]
    values = layer.v.double().repeat_interleave(group, 2)
    projected = torch.einsum("bkhd,hdm->bhkm", values, layer.W_O.double())
    terms = torch.einsum("bhqk,bhkm,bqm->bhqkm", layer.attention.double(), projected, factor)
    output = (
        terms.sum(3) if mode == "intra" else terms.sum((1, 3))[:, None].expand_as(terms[..., 0, :])
    )
    return torch.einsum("bhqm,bhqkm->bhqk", output, terms) / output.square().sum(-1)[..., None]


@pytest.mark.parametrize(("arch", "kind"), NORMED)
def test_behind_a_norm_weights_are_those_of_its_frozen_factors(arch, kind):
    run, model = case(arch, kind), huggingface(arch)
    norms = through(model, inputs(arch), "post_attention_layernorm")
    tokens = run.args[0][0]
    raw = tlg.prompt_contributions(run.model, tokens)
    for mode in ("intra", "inter"):
        found = tlg.prompt_contributions(run.model, tokens, mode=mode, output="normed")
        for index, (layer, (before, after)) in enumerate(zip(run.expected, norms, strict=True)):
            torch.testing.assert_close(before, layer.out)  # the norm reads what W_O writes
            expected = frozen(layer, after.double() / before.double(), mode)[0]
            scale = 1 + expected.abs().sum(-1, keepdim=True)
            error = (torch.from_numpy(found[index].values) - expected).abs() / scale
            assert error.max() < 1e-5
            if mode == "intra":
                assert np.abs(raw[index].values - expected.numpy()).max() > 1e-2


@pytest.mark.bridge
@pytest.mark.parametrize(("output", "remark"), [("raw", True), ("normed", False)])
def test_a_run_says_that_a_norm_follows(output, remark):
    run = case("gemma2", "bridge")
    notes = tlg.analyze(run.model, run.args[0], "regimes", output=output, progress=False).warnings
    said = [note for note in notes if "a norm follows the attention of the layers [0, 1]" in note]
    assert len(said) == remark
    assert all('output="normed"' in note for note in said)


@pytest.mark.bridge
def test_lengths_on_granite_are_those_in_the_residual_stream():
    """With one head, what the layer adds to the stream is that head's output."""
    one = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model, given = build_huggingface("granite", std=STD, **one), inputs("granite")
    stream = [x for x, _ in through(model, given, "input_layernorm")]
    middle = [x for x, _ in through(model, given, "post_attention_layernorm")]
    added = [
        (after - before).norm(dim=-1).mean() for before, after in zip(stream, middle, strict=True)
    ]
    bridge = build_bridge("granite", std=STD, **one)
    ds = tlg.analyze(bridge, given["input_ids"], ["contributions", "sinks"], progress=False)
    np.testing.assert_allclose(ds.output_norm[:, 0], added, rtol=1e-4)
    layer = read("granite", model, given)[1]
    lengths = (0.3 * layer.v[:, 0, 0] @ layer.W_O[0]).norm(dim=-1).mean()
    np.testing.assert_allclose(ds.sink_norm_model[1, 0], lengths, rtol=1e-4)
    (note,) = [text for text in ds.warnings if "multiplied by 0.3 behind W_O" in text]
    assert "layers [0, 1]" in note


def compatible(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.enable_compatibility_mode(**options)
    return model


ALL = {
    "fold_ln": True,
    "center_writing_weights": True,
    "center_unembed": True,
    "fold_value_biases": True,
}


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        pytest.param(arch, kind, marks=getattr(pytest.mark, kind))
        for arch in ("gpt2", "qwen2", "llama")
        for kind in ("hooked", "bridge")
    ],
)
def test_default_processing_moves_values_and_weights_as_it_should(arch, kind):
    """Attention stays Hugging Face's; values lose what depends on no token; LayerNorm models are centred."""
    model = huggingface(arch)
    made = {
        "hooked": lambda: build_converted(arch, model, **ALL),
        "bridge": lambda: compatible(build_bridge(arch, std=STD)),
    }
    processed = made[kind]()
    tokens = inputs(arch)["input_ids"]
    for index, layer in enumerate(case(arch, kind).expected):
        if arch == "gpt2":
            block = model.transformer.h[index]
            constant = block.attn.c_attn(block.ln_1.bias)[-layer.v.shape[2] * 8 :]
        else:
            constant = model.model.layers[index].self_attn.v_proj(torch.zeros(32))
        v = layer.v - constant.detach().view(layer.v.shape[2:])
        W_O = layer.W_O - layer.W_O.mean(-1, keepdim=True) if arch == "gpt2" else layer.W_O
        for mode in ("intra", "inter"):
            found = tlg.prompt_contributions(processed, tokens[0], mode=mode)[index].values
            expected = literal.contribution_weights(layer.attention[:1], v[:1], W_O, mode=mode)[0]
            scale = 1 + np.abs(expected).sum(-1, keepdims=True)
            np.testing.assert_array_less(np.abs(found - expected) / scale, 1e-5)
        same = tlg.prompt_contributions(processed, tokens[0], mode="attention")[index]
        np.testing.assert_allclose(same, layer.attention[0], atol=1e-5)
        if arch != "llama":  # its values have no bias
            raw = literal.contribution_weights(layer.attention[:1], layer.v[:1], layer.W_O)[0]
            assert np.abs(raw - expected).max() > 1e-2


NO_SINKS = pytest.mark.skipif(LINE == "2.18", reason="TransformerLens 2 knows no learned sinks")
LEARNED = [
    pytest.param("hooked", marks=[pytest.mark.hooked, NO_SINKS]),
    pytest.param("bridge", marks=pytest.mark.bridge),
]


def with_biases(kind, *, fold):
    if kind == "bridge":
        return compatible(build_bridge("gpt_oss", std=STD), fold_value_biases=fold)
    return build_converted("gpt_oss", huggingface("gpt_oss"), fold_value_biases=fold)


@pytest.mark.parametrize("kind", LEARNED)
def test_value_biases_folded_beside_learned_sinks_are_said_and_the_fix_works(kind, tmp_path):
    model, tokens = with_biases(kind, fold=True), inputs("gpt_oss")["input_ids"]
    (text,) = tlg.doctor(model).warnings
    assert "fold_value_biases=False" in text
    with pytest.warns(UserWarning, match="give fold_value_biases=False"):
        ds = tlg.analyze(model, tokens, ["contributions", "sinks"], progress=False)
    assert text in ds.attrs["warnings"]
    assert "fold_value_biases=False" in tlg.report(ds, tmp_path / "report.html").read_text()
    with pytest.warns(UserWarning, match="give fold_value_biases=False"):
        tlg.Probe(model, "regimes")
    with pytest.warns(UserWarning, match="give fold_value_biases=False"):
        c = tlg.prompt_contributions(model, tokens[0])
    assert c.attrs["warnings"] == [text]
    with pytest.warns(UserWarning, match="give fold_value_biases=False"):
        tlg.views.contributions(model, tokens[0], layer=1)
    right = with_biases(kind, fold=False)
    assert tlg.doctor(right).warnings == ()
    assert text not in tlg.analyze(right, tokens, "regimes", progress=False).attrs["warnings"]
    with torch.no_grad():  # the warning is true, and so is the fix
        expected = huggingface("gpt_oss")(input_ids=tokens).logits.log_softmax(-1)
        folded, kept = (m(tokens).log_softmax(-1) for m in (model, right))
    assert (folded - expected).abs().max() > 0.05
    assert (kept - expected).abs().max() < 1e-3


@pytest.mark.parametrize("kind", LEARNED)
def test_the_rest_of_each_row_is_the_null_sinks(kind):
    """Its share is e^sink over the sum of all exponentials, which Hugging Face's attention leaves over."""
    run = case("gpt_oss", kind)
    found = tlg.prompt_contributions(run.model, run.args[0][0], mode="attention")
    for index, (shown, layer) in enumerate(zip(run.shown, run.expected, strict=True)):
        expected = 1 - layer.attention.sum(-1)
        assert expected.max() > 0.1
        null = tlg.null_sink_rate(shown.pattern, available=run.available(index))
        torch.testing.assert_close(null, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.null_attention[index], expected[0], rtol=1e-4, atol=1e-5)
        page = tlg.views.contributions(run.model, run.args[0][0], layer=index, heads=[2]).html
        assert f"It takes on average: L{index}H2 {expected[0, 2].mean():.2f}." in page


def rows(first):
    """Five rows that give the first key ``first`` of their attention, and the others nothing."""
    pattern = torch.zeros(1, 1, 5, 5)
    pattern[..., 0] = first
    return pattern


def test_a_null_sink_takes_part_in_every_measure_of_sinks():
    pattern = rows(torch.tensor([0.05, 0.05, 0.05, 0.1, 0.1]))
    v, W_O = torch.ones(1, 5, 1, 2), torch.eye(2)[None]
    null = tlg.null_sink_rate(pattern)
    torch.testing.assert_close(null[0, 0], torch.tensor([0.95, 0.95, 0.95, 0.9, 0.9]))
    found = tlg.dormant_heads(pattern, v, W_O)
    assert found.null_sink_rate.item() == pytest.approx(0.925)
    assert found.sink_rate.item() == pytest.approx(0.075)
    assert found.by_rate.item()  # it rests, if on no token
    assert not tlg.dormant_heads(pattern, v, W_O, rate=1).by_rate.item()
    rates = tlg.switch_rates(pattern, v, W_O, fractions=(0.07,))
    assert rates.off_rate.item() == 0.5
    assert rates.null_sink_rate_off.item() == pytest.approx(0.95)
    assert rates.null_sink_rate_on.item() == pytest.approx(0.9)


@pytest.mark.hooked
def test_attention_that_an_edit_takes_is_no_null_sinks():
    model = case("gpt2", "hooked").model
    tokens = torch.arange(3, 43)[None] % 50
    hooks = tlg.mask_entries(model, importance="attention", fraction=0.5)
    probe = tlg.Probe(model, [tlg.Sinks(), tlg.Switches()])
    model.run_with_hooks(tokens, fwd_hooks=[*hooks, *probe.hooks()])
    ds = probe.result()
    assert (ds.null_sink_rate == 0).all()
    assert float(ds.null_sink_rate_on.max()) == 0
    assert ds.sink_rate.max() < 1


@pytest.mark.bridge
def test_a_constant_is_not_rounded_to_the_models_data_type():
    from zoo.architectures import build_bridge

    model = build_bridge("granite", dtype=torch.bfloat16)
    probe = tlg.Probe(model, [tlg.Contributions()])
    for factors in probe.reader.factors.values():
        torch.testing.assert_close(factors, torch.full_like(factors, 0.3), rtol=1e-2, atol=0)
        assert factors.dtype == torch.float32
    constants = {report.output_scale for report in probe.diagnosis.layers}
    assert {float(f[0]) for f in probe.reader.factors.values()} == {
        float(torch.tensor(c)) for c in constants
    }


def test_dormancy_and_null_sinks_are_of_the_same_rows():
    pattern = rows(torch.tensor([0.0, 0.7, 0.7, 0.7, 0.7]))
    pattern[0, 0, 0, 0] = 0.1  # the sink's own row does not count
    pattern[0, 0, torch.arange(1, 5), torch.arange(1, 5)] = 0.25
    v, W_O = torch.ones(1, 5, 1, 2), torch.eye(2)[None]
    found = tlg.dormant_heads(pattern, v, W_O)
    assert found.null_sink_rate.item() == pytest.approx(0.05)
    sinks = tlg.Sinks()
    sinks.bind(2, 1)
    sinks.update(0, AttentionGeometry(pattern, v, W_O))
    assert sinks.compute()["null_sink_rate"][0].item() == pytest.approx(0.05)
    derived = sinks.derived(sinks.compute())
    assert bool(derived["dormant_by_rate"][1][0]) == bool(found.by_rate)


def test_rows_without_a_real_query_have_no_null_sink():
    seen = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    seen[:, :2] = False
    null = tlg.null_sink_rate(rows(0.5), available=seen)
    assert null[0, 0].isnan().tolist() == [True, True, False, False, False]
    plain = torch.ones(1, 1, 3, 3).tril() / torch.arange(1, 4)[:, None]
    assert tlg.null_sink_rate(plain).abs().max() < 1e-6
    with pytest.raises(ValueError, match="available"):
        tlg.null_sink_rate(plain, available=torch.ones(1, 2, 2, dtype=torch.bool))
