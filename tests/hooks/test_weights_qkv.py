"""Projections to queries, keys and values, against what the hooks show of a forward."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch
from zoo.architectures import HOOKED, build_bridge, build_hooked

from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.weights import per_head_bias

# One of each way to store the projections; the others are Llama's.
ARCHITECTURES = (
    *("gpt2", "llama", "gpt_neox", "phi", "phi3", "bloom", "falcon", "mpt", "gptj", "gpt_neo"),
    *("opt", "bert", "vit", "t5", "bart", "qwen3", "gemma3", "gemma4", "bitnet", "qwen3_next"),
)
GATED = {"qwen3_next"}  # its W_Q makes the gates as well
OLD_T5 = importlib.metadata.version("transformer-lens").startswith("3.")
# Values pass through something else before hook_v shows them.
CHANGED = {
    "gemma4": {"V"},  # a norm of the values
    "bitnet": {"Q", "K", "V"},  # weights and inputs are rounded in the forward
}


def inputs_of(model):
    if getattr(model.cfg, "is_visual_model", False):
        return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    return torch.arange(3, 21).view(2, 9)


def forward(model, sites):
    """Inputs of the attention modules by kind, and what their hooks show of queries, keys, values."""
    inputs, seen = {}, {}

    def keep(site):
        def before(module, args, kwargs):
            named = {n: x for n, x in kwargs.items() if isinstance(x, torch.Tensor)}
            first = next((x for x in args if isinstance(x, torch.Tensor)), None)
            hidden = named.get("hidden_states", first)
            context = named.get("key_value_states", hidden)
            inputs[site.name] = {
                "Q": named.get("query_input", hidden),
                "K": named.get("key_input", context),
                "V": named.get("value_input", context),
            }

        return site.module.register_forward_pre_hook(before, with_kwargs=True)

    handles = [keep(site) for site in sites]
    names = [f"{site.name}.hook_{kind}" for site in sites for kind in "qkv"]
    hooks = [(n, lambda x, hook, n=n: seen.__setitem__(n, x.detach().clone())) for n in names]
    with torch.no_grad():
        model.run_with_hooks(inputs_of(model), fwd_hooks=hooks)
    for handle in handles:
        handle.remove()
    return inputs, seen


def check(model, kinds="QKV", tolerance=2e-5):
    sites = attention_sites(model)
    inputs, seen = forward(model, sites)
    for site in sites:
        for kind in kinds:
            W = getattr(site, f"W_{kind}")
            heads = site.n_heads if kind == "Q" else site.n_kv_heads
            assert W.shape == (heads, site.d_model, site.d_head)
            bias = per_head_bias(site.module, kind, heads)
            expected = torch.einsum("bpm,hmd->bphd", inputs[site.name][kind], W)
            expected = expected if bias is None else expected + bias
            found = seen[f"{site.name}.hook_{kind.lower()}"].reshape(expected.shape)
            error = (found - expected).abs().max() / expected.abs().max()
            assert error < tolerance, (site.name, kind, float(error))


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_input_times_matrix_is_what_bridges_show(arch):
    if arch == "t5" and OLD_T5:
        pytest.skip("the T5 bridge of TransformerLens 3 does not run with transformers 5")
    unlike = CHANGED.get(arch, set()) | ({"Q"} if arch in GATED else set())
    check(build_bridge(arch), [kind for kind in "QKV" if kind not in unlike])


@pytest.mark.hooked
@pytest.mark.parametrize("arch", HOOKED)
def test_input_times_matrix_is_what_hooked_transformers_show(arch):
    check(build_hooked(arch))


@pytest.mark.hooked
def test_ungrouped_heads_have_a_matrix_each():
    model = build_hooked("llama")
    grouped = attention_sites(model)[0].W_V
    model.set_ungroup_grouped_query_attention(True)
    site = attention_sites(model)[0]
    assert grouped.shape[0] == 2
    assert torch.equal(site.W_V, grouped.repeat_interleave(2, 0))
    check(model)


@pytest.mark.hooked
def test_processed_weights_are_read_as_they_are():
    model = build_hooked("gpt2")
    raw = attention_sites(model)[1].W_V.clone()
    model.load_and_process_state_dict(model.state_dict())
    assert not torch.allclose(attention_sites(model)[1].W_V, raw)
    check(model)


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["gpt2", "llama", "gpt_neox"])
def test_bridges_in_compatibility_mode(arch):
    model = build_bridge(arch)
    model.enable_compatibility_mode(disable_warnings=True)
    check(model)


@pytest.mark.bridge
def test_fused_projections_are_those_of_the_checkpoint():
    """GPT-2 stores [in, q k v]; NeoX stores [head q k v, in]."""
    model = build_bridge("gpt2")
    fused = model.original_model.transformer.h[1].attn.original_component.c_attn.weight.detach()
    site = attention_sites(model)[1]
    for place, kind in enumerate("QKV"):
        flat = getattr(site, f"W_{kind}").transpose(0, 1).flatten(1)
        assert torch.equal(flat, fused[:, 32 * place : 32 * (place + 1)])
    model = build_bridge("gpt_neox")
    layer = model.original_model.gpt_neox.layers[1].attention.original_component
    fused = layer.query_key_value.weight.detach().reshape(4, 3, 8, 32)
    site = attention_sites(model)[1]
    for place, kind in enumerate("QKV"):
        assert torch.equal(getattr(site, f"W_{kind}"), fused[:, place].transpose(1, 2))


@pytest.mark.bridge
@pytest.mark.parametrize("kind", "QKV")
def test_latent_attention_has_no_matrices(kind):
    site = attention_sites(build_bridge("deepseek_v3"))[0]
    with pytest.raises(ValueError, match=f"MLAAttentionBridge has no matrix W_{kind}"):
        getattr(site, f"W_{kind}")


@pytest.mark.bridge
def test_gates_in_the_same_matrix_are_refused():
    site = attention_sites(build_bridge("qwen3_next"))[0]
    with pytest.raises(ValueError, match=r"W_Q has 64 outputs, .* 4 heads of 8"):
        _ = site.W_Q
    assert site.W_K.shape == site.W_V.shape == (2, 32, 8)
