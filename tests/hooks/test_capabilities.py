from __future__ import annotations

import math
import time

import pytest
import torch
from zoo.architectures import build_bridge, build_hooked, enlarge
from zoo.matrix import BY_ARCH

from tl_geometry import Probe
from tl_geometry.hooks import attention_sites, doctor


@pytest.mark.bridge
def test_scale_of_granite_and_hidden_row_mass_of_gpt_oss():
    assert doctor(build_bridge("granite")).layers[1].output_scale == pytest.approx(0.3)
    layer = doctor(build_bridge("gpt_oss")).layers[0]
    assert not layer.rows_sum_to_one
    assert 0 < layer.row_sum_min < 1


@pytest.mark.bridge
def test_bert_is_exact_although_its_output_hook_lies_after_the_residual():
    for layer in doctor(build_bridge("bert")).layers:
        assert layer.verdict == "exact"
        assert "shows the LayerNorm of the residual stream" in layer.note


@pytest.mark.bridge
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "granite"])
def test_verdicts_do_not_depend_on_the_data_type(arch, dtype):
    report = doctor(build_bridge(arch, dtype=dtype))
    assert {layer.verdict for layer in report.layers} == {BY_ARCH[arch].verdict}
    assert all(layer.rows_sum_to_one for layer in report.layers)


@pytest.mark.hooked
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_hooked_transformers(dtype):
    report = doctor(build_hooked("llama", dtype=dtype))
    assert report.ok
    assert all(layer.edits["pattern"] for layer in report.layers)


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["opt", "bert", "vit", "bart"])
def test_attention_that_is_not_eager_is_named_and_the_remedy_works(arch):
    model = build_bridge(arch, attn="sdpa")
    layer = doctor(model).layers[0]
    assert layer.verdict == "unsupported"
    assert "hook_pattern never fired: attention runs as 'sdpa'" in layer.reason
    assert layer.edits["pattern"] is None
    remedy = layer.reason.partition("eager attention: ")[2]
    assert remedy == 'model.original_model.set_attn_implementation("eager")'
    model.original_model.set_attn_implementation("eager")
    assert doctor(model).ok


@pytest.mark.bridge
def test_bridges_that_rebuild_attention_need_no_eager_model():
    assert doctor(build_bridge("mistral", attn="sdpa")).ok


@pytest.mark.bridge
@pytest.mark.parametrize(
    ("arch", "overrides"), [("gpt2", {}), ("llama", {"attention_dropout": 0.2}), ("opt", {})]
)
def test_active_dropout_is_refused_without_running_the_model(arch, overrides):
    model = build_bridge(arch, **overrides).train()
    state = torch.random.get_rng_state()
    report = doctor(model)
    assert torch.equal(state, torch.random.get_rng_state())
    assert not report.ok
    assert "dropout is active" in report.layers[0].reason
    assert report.layers[0].reason.endswith("call model.eval() first")
    assert model.training
    assert doctor(model.eval()).ok


@pytest.mark.bridge
def test_train_mode_without_dropout_is_fine():
    model = build_bridge("llama").train()
    assert doctor(model).ok
    assert model.training


@pytest.mark.bridge
def test_clipping_is_refused_even_if_the_probe_stays_below_it():
    layer = doctor(build_bridge("olmo", clip_qkv=1000.0)).layers[0]
    assert layer.decomposition_error < 1e-5
    assert layer.verdict == "clipped"
    assert "clipped to +-1000 after hook_v" in layer.reason


@pytest.mark.bridge
def test_nan_is_reported():
    model = build_bridge("llama")
    site = attention_sites(model)[1]
    with torch.no_grad():
        site.module.v.original_component.weight[0, 0] = float("nan")
    first, second = doctor(model).layers
    assert first.verdict == "exact"
    assert second.reason.startswith("NaN or infinity in hook_v, hook_z")


@pytest.mark.bridge
def test_window_that_the_pattern_does_not_keep_is_refused():
    model = build_bridge("llama")
    attention_sites(model)[0].module.original_component.sliding_window = 4
    layer = doctor(model).layers[0]
    assert layer.verdict == "unsupported"
    assert "declares a window of 4, but keys further back get weight" in layer.reason


@pytest.mark.hooked
def test_keys_hidden_by_another_mask_are_noted():
    model = build_hooked("gpt2")
    mask = torch.zeros(12, 12)
    mask[6:, :6] = float("-inf")  # chunks of six
    model.blocks[0].attn.hook_attn_scores.add_hook(lambda scores, **_: scores + mask)
    report = doctor(model)
    assert report.layers[0].verdict == "exact"
    assert "the mask may hide more" in report.layers[0].note
    assert [layer.hides_more for layer in report.layers] == [True, False]
    assert "layers 0: the mask may hide more" in report.warnings[0]
    with pytest.warns(UserWarning, match="chunks, prefixes"):
        Probe(model)
    model.reset_hooks()


@pytest.mark.bridge
@pytest.mark.parametrize("chunk", [4, 32])
def test_attention_in_chunks_is_refused_even_if_the_probe_is_shorter(chunk):
    model = build_bridge("llama", num_hidden_layers=1)
    config = model.blocks[0].attn.original_component.config
    config.layer_types, config.attention_chunk_size = ["chunked_attention"], chunk
    layer = doctor(model).layers[0]
    assert layer.verdict == "unsupported"
    assert f"chunks of {chunk} tokens" in layer.reason


@pytest.mark.bridge
def test_a_constant_behind_the_output_hook_is_known():
    """As in Falcon-H1, whose blocks weigh attention against a state-space branch."""
    model = build_bridge("llama", num_hidden_layers=1)
    model.blocks[0].original_component.attn_out_multiplier = 0.5
    layer = doctor(model).layers[0]
    assert (layer.verdict, layer.output_scale) == ("scaled", 0.5)


PROCESSING = ("folded_layer_norm", "folded_value_biases", "centered_writing_weights")


@pytest.mark.hooked
def test_weight_processing_of_hooked_transformers():
    raw = doctor(build_hooked("gpt2")).processing
    assert [raw[key] for key in PROCESSING] == [False, False, False]
    state = build_hooked("gpt2").state_dict()
    folded = build_hooked("gpt2", normalization_type="LNPre")
    folded.cfg.normalization_type = "LN"
    folded.load_and_process_state_dict({k: v.clone() for k, v in state.items()})
    assert [doctor(folded).processing[key] for key in PROCESSING] == [True, True, True]
    assert doctor(build_hooked("attention_only")).processing["folded_layer_norm"] is None


@pytest.mark.bridge
@pytest.mark.parametrize(
    ("arch", "raw", "processed"),
    [
        ("gpt2", [False, False, False], [True, True, True]),
        ("llama", [False, None, False], [True, None, False]),
        ("qwen2", [False, False, False], [True, True, False]),
        ("gemma2", [False, None, False], [True, None, False]),
        ("olmo", [None, None, False], [None, None, False]),
    ],
)
def test_weight_processing_of_bridges(arch, raw, processed):
    model = build_bridge(arch)
    found = doctor(model).processing
    assert [found[key] for key in PROCESSING] == raw
    assert found["compatibility_mode"] is False
    if arch == "olmo":
        return
    _enable_compatibility(model)
    found = doctor(model).processing
    assert [found[key] for key in PROCESSING] == processed
    assert found["compatibility_mode"] is True


def _enable_compatibility(model, **options):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.enable_compatibility_mode(**options)


@pytest.mark.bridge
def test_folded_value_biases_beside_learned_sinks_warn_and_the_remedy_works():
    model = build_bridge("gpt_oss")
    _enable_compatibility(model)
    (warning,) = doctor(model).warnings
    assert "sum to less than 1" in warning
    assert "fold_value_biases=False" in warning
    model = build_bridge("gpt_oss")
    _enable_compatibility(model, fold_value_biases=False)
    report = doctor(model)
    assert report.warnings == ()
    assert report.processing["folded_value_biases"] is False


@pytest.mark.bridge
def test_nothing_is_left_behind_even_when_the_forward_fails():
    model = build_bridge("llama")
    calls = []
    own = model.hook_dict["blocks.0.attn.hook_pattern"]
    own.add_hook(lambda *_, **__: calls.append(1))
    doctor(model)
    before = len(calls)
    assert before == 4  # one plain forward, three with an edit
    assert _hook_count(model) == 1
    with pytest.raises((IndexError, RuntimeError)):
        doctor(model, inputs=torch.full((1, 5), 999))
    assert _hook_count(model) == 1
    with torch.no_grad():
        model(torch.arange(5)[None])
    assert len(calls) > before


def _hook_count(model):
    points = {id(p): p for p in model.hook_dict.values()}.values()
    return sum(len(point.fwd_hooks) + len(point.bwd_hooks) for point in points)


@pytest.mark.hooked
def test_gradients_and_random_state_are_left_alone():
    model = build_hooked("llama")
    state = torch.random.get_rng_state()
    doctor(model)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.bridge
def test_inputs_of_the_caller():
    model = build_bridge("bart")
    tokens = torch.arange(3, 17).view(2, 7)
    assert doctor(model, inputs=tokens).ok
    assert doctor(model, inputs={"input_ids": tokens, "decoder_input": tokens[:, :4]}).ok


@pytest.mark.bridge
def test_a_model_that_cannot_run_on_made_up_tokens_says_what_to_give():
    model = build_bridge("llama")
    model.cfg.d_vocab = 5000
    with pytest.raises(ValueError, match=r"inputs: .* does not run on made-up tokens.*inputs="):
        doctor(model)


@pytest.mark.bridge
def test_layers_and_edits_can_be_left_out():
    model = build_bridge("llama", num_hidden_layers=4)
    report = doctor(model, layers=[2], edits=False)
    assert [layer.layer for layer in report.layers] == [2]
    assert report.layers[0].edits == {"pattern": None, "v": None, "z": None}
    with pytest.raises(ValueError, match=r"layers: \[9\] given"):
        doctor(model, layers=[9])


@pytest.mark.bridge
def test_table_and_dataframe():
    report = doctor(build_bridge("qwen3_next"))
    text = repr(report)
    assert "0 of 1 attention layers supported" in text
    assert "layer 1: pattern @ v differs from z" in text
    assert "backend: TransformerBridge" in text
    frame = report.to_dataframe()
    assert frame.index.name == "layer"
    assert frame.loc[1, "verdict"] == "gated"
    assert bool(frame.loc[1, "edit_pattern"])
    assert math.isnan(frame.loc[1, "output_error"])
    page = report._repr_html_()
    assert "<table>" in page
    assert "<td><bdi>gated</bdi></td>" in page
    assert "a gate between 0 and 1" in page


@pytest.mark.bridge
def test_equal_remarks_are_shown_once():
    text = repr(doctor(build_bridge("opt", attn="sdpa", num_hidden_layers=8)))
    assert text.count("hook_pattern never fired") == 1
    assert "layers 0, 1, 2, 3, ..., 7: hook_pattern never fired" in text


@pytest.mark.bridge
def test_thirty_layers_cost_a_few_short_forwards():
    model = build_bridge("llama", num_hidden_layers=30)
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        model(tokens)
        start = time.perf_counter()
        for _ in range(4):
            model(tokens)
        plain = time.perf_counter() - start
    start = time.perf_counter()
    assert doctor(model).ok
    assert time.perf_counter() - start < 10 * plain + 1.0


def _native_bridge():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    config = TransformerBridgeConfig(
        n_layers=2,
        d_model=32,
        n_heads=4,
        d_head=8,
        d_mlp=48,
        d_vocab=50,
        n_ctx=64,
        act_fn="gelu",
        normalization_type="LN",
        architecture="TransformerLensNative",
    )
    model = TransformerBridge.boot_native(config)
    enlarge(model.original_model)
    return model.eval()


@pytest.mark.bridge
@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor")
@pytest.mark.parametrize("arch", ["native", "llama", "opt", "gpt_neo", "gemma2", "bloom"])
def test_edits_that_work_are_those_that_change_the_logits(arch):
    model = _native_bridge() if arch == "native" else build_bridge(arch)
    layer = doctor(model).layers[0]
    site = attention_sites(model)[0]
    tokens = torch.arange(3, 13)[None]
    with torch.no_grad():
        plain = model(tokens)
        for kind, name in (
            ("pattern", site.pattern_hook),
            ("v", site.v_hook),
            ("z", site.z_hook),
        ):
            # no uniform factor: a norm after attention would swallow it
            hook = (name, lambda x, **_: x * torch.linspace(0.2, 1.0, x.shape[-1]))
            edited = model.run_with_hooks(tokens, fwd_hooks=[hook])
            assert layer.edits[kind] == (not torch.allclose(plain, edited, atol=1e-4))
