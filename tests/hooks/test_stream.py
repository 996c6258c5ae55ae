"""The residual stream around a block, and what its attention reads, on many architectures."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from analysis_data.reference import tokens
from zoo.architectures import HOOKED, build_bridge, build_hooked, enlarge

from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.hooks.stream import stream_points

BRIDGES = ("gpt2", "llama", "mistral", "qwen3", "gemma2", "gemma3", "gpt_oss", "gpt_neox", "phi",
           "bloom", "opt", "gptj", "gpt_neo", "falcon", "mpt", "olmo", "olmo2", "exaone4",
           "granite", "cohere", "stablelm", "bert")  # fmt: skip


def collect(model, *inputs, **arguments):
    """By site: (before, after, attended) and the values of one forward."""
    found, values = {}, {}

    def keep(site, *stream):
        found[site.name] = [x.clone() for x in stream]

    def look(site, pattern, v, z):
        values[site.name] = v.clone()

    sites = attention_sites(model)
    hooks = capture_hooks(model, sites, look, keep)
    with torch.no_grad():
        model.run_with_hooks(*inputs, fwd_hooks=hooks, **arguments)
    assert list(found) == [site.name for site in sites]
    return sites, found, values


def projected(site, x):
    """Values of what the attention reads, one per value head."""
    W, b = site.module.W_V.detach(), site.b_V
    heads = len(W) // site.n_kv_heads
    W = W[::heads]
    v = torch.einsum("bpm,hmd->bphd", x, W)
    return v if b is None else v + b


def assert_chain(model, *inputs, **arguments):
    sites, found, values = collect(model, *inputs, **arguments)
    assert len(sites) == 2
    for site in sites:
        before, after, attended = found[site.name]
        assert before.shape == after.shape == attended.shape
        torch.testing.assert_close(
            projected(site, attended), values[site.name], rtol=1e-4, atol=1e-4
        )
    first, second = (found[site.name] for site in sites)
    torch.testing.assert_close(first[1], second[0], rtol=0, atol=0)
    assert not torch.equal(first[0], first[1])


@pytest.mark.hooked
@pytest.mark.parametrize("arch", HOOKED)
def test_hooked_transformers(arch):
    assert_chain(build_hooked(arch), tokens(2, 7))


@pytest.mark.bridge
@pytest.mark.parametrize("arch", BRIDGES)
def test_bridges(arch):
    assert_chain(build_bridge(arch), tokens(2, 7))


@pytest.mark.hooked
def test_a_norm_called_ln1_that_follows_the_attention():
    """HookedTransformer's OLMo 2: the attention reads the bare stream."""
    pytest.importorskip(
        "transformer_lens.utilities.architectures", reason="TransformerLens 2 knows no OLMo 2"
    )
    model = build_hooked("llama", original_architecture="Olmo2ForCausalLM")
    assert attention_sites(model)[1].post_norm is model.blocks[1].ln1
    assert stream_points(model, attention_sites(model)[1]).norm is None
    assert_chain(model, tokens(2, 7))


@pytest.mark.hooked
def test_folded_norms_fire_no_hook_of_their_own():
    model = build_hooked("gpt2")
    model.process_weights_()
    assert type(model.blocks[0].ln1).__name__ == "LayerNormPre"
    seen = []

    def note(x, hook):
        seen.append(1)

    model.add_hook("blocks.1.ln1.hook_normalized", note, is_permanent=True)
    with torch.no_grad():
        model(tokens(2, 7))
    plain = len(seen)
    assert_chain(model, tokens(2, 7))
    assert len(seen) == 2 * plain


@pytest.mark.hooked
def test_an_encoder_that_norms_after_the_sum():
    from transformer_lens import HookedEncoder, HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=2, d_model=32, n_heads=4, d_head=8, d_mlp=48, d_vocab=50, n_ctx=64, act_fn="gelu",
        normalization_type="LN", attention_dir="bidirectional", device="cpu",
    )  # fmt: skip
    assert_chain(enlarge(HookedEncoder(config)).eval(), tokens(2, 7))


@pytest.mark.bridge
def test_two_attentions_of_one_block_share_its_stream():
    model = build_bridge("bart")
    sites, found, values = collect(model, tokens(2, 7), decoder_input=tokens(2, 5, seed=1))
    assert len(sites) == 6
    for site in sites:
        before, after, attended = found[site.name]
        length = 7 if site.name.startswith("encoder") else 5
        assert before.shape == after.shape == attended.shape == (2, length, 32)
        if not site.cross:
            torch.testing.assert_close(
                projected(site, attended), values[site.name], rtol=1e-4, atol=1e-4
            )
    own, across = (found[f"decoder_blocks.1.{name}"] for name in ("self_attn", "cross_attn"))
    assert torch.equal(own[0], across[0])
    assert torch.equal(own[1], across[1])


def test_what_it_hooks_exists(tiny_model):
    points = {point.name for point in tiny_model.hook_dict.values()}
    sites = attention_sites(tiny_model)
    picked = set()
    for name, _ in capture_hooks(tiny_model, sites, lambda *_: None, lambda *_: None):
        canonical = tiny_model.hook_dict[name].name if isinstance(name, str) else None
        picked |= {canonical} if canonical else set(filter(name, points))
    expected = [n for site in sites for n in stream_points(tiny_model, site).names.values()]
    expected += [n for site in sites for n in (site.v_hook, site.pattern_hook, site.z_hook)]
    assert picked == {tiny_model.hook_dict[name].name for name in expected}
    assert len(picked) == len(expected)


def test_nothing_is_changed(tiny_model):
    with torch.no_grad():
        plain = tiny_model(tokens(2, 7))
        hooks = capture_hooks(tiny_model, attention_sites(tiny_model), lambda *_: None,
                              lambda *_: torch.zeros(1))  # fmt: skip
        assert torch.equal(tiny_model.run_with_hooks(tokens(2, 7), fwd_hooks=hooks), plain)
    assert not any(point.fwd_hooks for point in tiny_model.hook_dict.values())


@pytest.mark.parametrize("place", ["blocks.0.attn.hook_z", "blocks.1.hook_resid_pre"])
def test_a_forward_that_broke_off_is_not_mixed_with_the_next(tiny_model, place):
    found = []
    hooks = capture_hooks(
        tiny_model,
        attention_sites(tiny_model),
        lambda *_: None,
        lambda *stream: found.append(stream),
    )

    def stop(x, hook):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        tiny_model.run_with_hooks(tokens(2, 7), fwd_hooks=[*hooks, (place, stop)])
    del found[:]
    ids = tokens(2, 7, seed=1)
    tiny_model.run_with_hooks(ids, fwd_hooks=hooks)
    _, expected, _ = collect(tiny_model, ids)
    assert [site.name for site, *_ in found] == list(expected)
    for site, *stream in found:
        for one, other in zip(stream, expected[site.name], strict=True):
            assert torch.equal(one, other)


def test_a_model_without_a_stream_is_refused(tiny_model):
    class Bare:
        hook_dict: ClassVar = {}

    site = attention_sites(tiny_model)[1]
    with pytest.raises(
        ValueError, match=r"layer 1: .* no hooks of the residual stream around blocks\.1"
    ):
        stream_points(Bare(), site)
