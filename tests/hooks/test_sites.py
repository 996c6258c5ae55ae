from __future__ import annotations

import importlib.metadata

import pytest
import torch
from zoo.architectures import BRIDGES, HOOKED, build_bridge, build_hooked

from tl_geometry.hooks import attention_sites, select_sites

WITHOUT_ATTENTION = {"mamba"}
LATENT = {"deepseek_v3"}  # its hooks do not show heads of one size
OLD_T5 = importlib.metadata.version("transformer-lens").startswith("3.")


@pytest.mark.bridge
@pytest.mark.parametrize("arch", [a for a in BRIDGES if a not in WITHOUT_ATTENTION | LATENT])
def test_counts_are_those_of_the_live_hooks_on_bridges(arch):
    if arch == "t5" and OLD_T5:
        pytest.skip("the T5 bridge of TransformerLens 3 does not run with transformers 5")
    model = build_bridge(arch)
    _check_against_live_shapes(model, _input_of(model))


@pytest.mark.hooked
@pytest.mark.parametrize("arch", HOOKED)
def test_counts_are_those_of_the_live_hooks_on_hooked_transformers(arch):
    model = build_hooked(arch)
    _check_against_live_shapes(model, _input_of(model))


def _input_of(model):
    if getattr(model.cfg, "is_visual_model", False):
        return torch.randn(2, 3, 12, 12)
    return torch.arange(3, 21).view(2, 9)


def _check_against_live_shapes(model, value):
    seen = {}
    sites = attention_sites(model)
    hooks = [
        (name, lambda x, name=name, **_: seen.__setitem__(name, x.detach()))
        for site in sites
        for name in (site.pattern_hook, site.v_hook, site.z_hook)
    ]
    with torch.no_grad():
        model.run_with_hooks(value, fwd_hooks=hooks)
    for site in sites:
        pattern, v, z = (seen[n] for n in (site.pattern_hook, site.v_hook, site.z_hook))
        assert pattern.shape[1] == site.n_heads == z.shape[2]
        assert tuple(v.shape[2:]) == (site.n_kv_heads, site.d_head)
        assert z.shape[3] == site.d_head
        assert site.W_O.shape == (site.n_heads, site.d_head, site.d_model)
        assert site.b_O is None or site.b_O.shape == (site.d_model,)
        assert site.b_V is None or site.b_V.shape == (site.n_kv_heads, site.d_head)
        assert site.dtype == v.dtype
        assert site.device == v.device


@pytest.mark.bridge
def test_weights_are_those_of_the_hugging_face_modules():
    model = build_bridge("qwen2")
    for site, layer in zip(attention_sites(model), model.original_model.model.layers, strict=True):
        attention = layer.self_attn.original_component
        flat = attention.o_proj.original_component.weight.T
        torch.testing.assert_close(site.W_O.flatten(0, 1), flat.detach(), rtol=0, atol=0)
        bias = attention.v_proj.original_component.bias.detach()
        torch.testing.assert_close(site.b_V.flatten(), bias, rtol=0, atol=0)
        assert site.b_O is None


@pytest.mark.bridge
def test_conv1d_weights_are_not_transposed():
    model = build_bridge("gpt2")
    projection = model.original_model.transformer.h[1].attn.original_component.c_proj
    weight = projection.weight.detach()
    torch.testing.assert_close(attention_sites(model)[1].W_O.flatten(0, 1), weight)


@pytest.mark.hooked
def test_value_bias_of_grouped_heads_is_not_repeated():
    site = attention_sites(build_hooked("llama"))[0]
    assert site.n_kv_heads == 2
    torch.testing.assert_close(site.b_V, site.module._b_V.detach())
    assert site.module.b_V.shape[0] == 4  # HookedTransformer's own property repeats


@pytest.mark.hooked
def test_ungrouped_model_shows_a_value_head_per_query_head():
    model = build_hooked("llama")
    model.set_ungroup_grouped_query_attention(True)
    site = attention_sites(model)[0]
    assert site.n_kv_heads == 4
    torch.testing.assert_close(site.b_V, site.module._b_V.detach().repeat_interleave(2, 0))
    _check_against_live_shapes(model, _input_of(model))


@pytest.mark.hooked
def test_weights_are_read_live():
    model = build_hooked("gpt2")
    site = attention_sites(model)[0]
    with torch.no_grad():
        model.blocks[0].attn.W_O.mul_(2.0)
    torch.testing.assert_close(site.W_O, model.blocks[0].attn.W_O.detach())
    model.to(torch.float64)
    assert site.dtype == torch.float64


WINDOWS = {
    "llama": (None, None),
    "mistral": (5, 5),
    "qwen2_window": (None, 5),
    "gemma2": (5, None),
    "gemma3": (5, None),
    "gpt_oss": (5, None),
    "gpt_neo": (None, 5),
    "olmo3": (5, 5),
    "exaone4": (5, None),
}


@pytest.mark.bridge
@pytest.mark.parametrize("arch", WINDOWS)
def test_windows_on_bridges(arch):
    assert tuple(s.window for s in attention_sites(build_bridge(arch))) == WINDOWS[arch]


@pytest.mark.hooked
def test_windows_on_hooked_transformers():
    assert [s.window for s in attention_sites(build_hooked("window"))] == [None, 5]


@pytest.mark.bridge
def test_labels_of_one_stack_are_block_numbers():
    sites = attention_sites(build_bridge("llama"))
    assert [(s.index, s.layer, s.name) for s in sites] == [
        (0, 0, "blocks.0.attn"),
        (1, 1, "blocks.1.attn"),
    ]
    assert [s.out_hook for s in sites] == ["blocks.0.hook_attn_out", "blocks.1.hook_attn_out"]


@pytest.mark.bridge
def test_layers_without_attention_keep_their_number_free():
    sites = attention_sites(build_bridge("qwen3_next"))
    assert [(s.index, s.layer) for s in sites] == [(0, 1)]


@pytest.mark.bridge
def test_more_than_nine_blocks_stay_in_order():
    sites = attention_sites(build_bridge("llama", num_hidden_layers=12))
    assert [s.layer for s in sites] == list(range(12))


@pytest.mark.bridge
def test_two_stacks_are_labelled_by_name_in_forward_order():
    sites = attention_sites(build_bridge("bart"))
    assert [s.layer for s in sites] == [
        "encoder_blocks.0.attn",
        "encoder_blocks.1.attn",
        "decoder_blocks.0.self_attn",
        "decoder_blocks.0.cross_attn",
        "decoder_blocks.1.self_attn",
        "decoder_blocks.1.cross_attn",
    ]
    assert [s.cross for s in sites] == [False, False, False, True, False, True]


@pytest.mark.bridge
@pytest.mark.parametrize(
    ("arch", "attribute"),
    [("gemma2", "post_attention_layernorm"), ("olmo2", "post_attention_layernorm")],
)
def test_post_norm_is_the_norm_between_attention_and_residual(arch, attribute):
    model = build_bridge(arch)
    site = attention_sites(model)[0]
    layer = model.original_model.model.layers[0]
    assert site.post_norm.original_component is getattr(layer, attribute).original_component
    assert attention_sites(build_bridge("llama"))[0].post_norm is None


@pytest.mark.bridge
def test_model_without_attention_is_refused_by_name():
    with pytest.raises(ValueError, match="model: TransformerBridge has no attention layer"):
        attention_sites(build_bridge("mamba"))


def test_other_objects_are_refused_by_name():
    with pytest.raises(ValueError, match="model: Linear has no attention layer"):
        attention_sites(torch.nn.Linear(2, 2))


@pytest.mark.bridge
def test_selection_by_label():
    sites = attention_sites(build_bridge("llama", num_hidden_layers=4))
    assert select_sites(sites, None) == sites
    assert [s.layer for s in select_sites(sites, [3, 1])] == [1, 3]
    assert [s.layer for s in select_sites(sites, 2)] == [2]
    with pytest.raises(ValueError, match=r"layers: \[7\] given, .* are \[0, 1, 2, 3\]"):
        select_sites(sites, [0, 7])
    with pytest.raises(ValueError, match=r"layers: \[\] given"):
        select_sites(sites, [])
