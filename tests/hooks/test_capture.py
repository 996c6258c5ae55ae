"""Layers are handed over complete, once each, in whatever order their tensors fire."""

from __future__ import annotations

import pytest
import torch
from analysis_data.reference import record, tokens
from zoo.architectures import build_bridge, build_hooked

from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.capture import capture_hooks


@pytest.fixture
def model(backend):
    return build_hooked() if backend == "hooked" else build_bridge("llama")


def collect(model, *inputs, sites=None, before=(), after=(), **arguments):
    sites = attention_sites(model) if sites is None else sites
    found = []
    hooks = capture_hooks(model, sites, lambda *layer: found.append(layer))
    model.run_with_hooks(*inputs, fwd_hooks=[*before, *hooks, *after], **arguments)
    return found


def test_every_layer_comes_once_with_its_own_tensors(model):
    ids = tokens(2, 7)
    found = collect(model, ids)
    assert [site.layer for site, *_ in found] == [0, 1]
    for (_, pattern, v, z), layer in zip(found, record(model, ids), strict=True):
        assert torch.equal(pattern, layer.pattern)
        assert torch.equal(v, layer.v)
        assert torch.equal(z, layer.z)


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["opt", "bart", "gptj", "bert", "gpt2", "gemma2"])
def test_architectures_whose_tensors_fire_in_another_order(arch):
    model = build_bridge(arch)
    arguments = {"decoder_input": tokens(2, 5)} if arch == "bart" else {}
    found = collect(model, tokens(2, 7), **arguments)
    layers = {layer.name: layer for layer in record(model, tokens(2, 7), **arguments)}
    assert [site.name for site, *_ in found] == list(layers)
    for site, pattern, v, z in found:
        assert torch.equal(pattern, layers[site.name].pattern)
        assert torch.equal(v, layers[site.name].v)
        assert torch.equal(z, layers[site.name].z)


def test_only_the_chosen_layers(model):
    sites = attention_sites(model)[1:]
    assert [site.layer for site, *_ in collect(model, tokens(2, 7), sites=sites)] == [1]


def test_what_it_hooks_exists(model):
    """Names, or filters that pick three points of each layer and nothing else."""
    points = {point.name for point in model.hook_dict.values()}
    picked = set()
    for name, _ in capture_hooks(model, attention_sites(model), lambda *_: None):
        picked |= (
            {model.hook_dict[name].name} if isinstance(name, str) else set(filter(name, points))
        )
    assert len(picked) == 6
    assert picked <= points


def test_nothing_is_changed(model):
    with torch.no_grad():
        plain = model(tokens(2, 7))
        hooks = capture_hooks(model, attention_sites(model), lambda *_: torch.zeros(1))
        assert torch.equal(model.run_with_hooks(tokens(2, 7), fwd_hooks=hooks), plain)


def test_no_gradients_and_no_autocast_where_layers_are_consumed(model):
    seen = []

    def consume(site, pattern, v, z):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        assert not any(x.requires_grad for x in (pattern, v, z))
        assert (v.float() @ v.float().transpose(-1, -2)).dtype == torch.float32

    hooks = capture_hooks(model, attention_sites(model), consume)
    with torch.autocast("cpu", torch.bfloat16):
        model.run_with_hooks(tokens(2, 7), fwd_hooks=hooks)
        assert torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert seen == [(False, False)] * 2


def test_edits_listed_before_are_seen_and_edits_after_are_not(model):
    name = "blocks.1.attn.hook_v"

    def clear(x, hook):
        return torch.zeros_like(x)

    zero = (name, clear)
    assert float(collect(model, tokens(2, 7), before=[zero])[1][2].abs().max()) == 0
    assert float(collect(model, tokens(2, 7), after=[zero])[1][2].abs().max()) > 0


@pytest.mark.parametrize("kind", ["v", "pattern", "z"])
def test_a_forward_that_broke_off_is_not_mixed_with_the_next(model, kind):
    """The tensors of the broken forward are of another batch, and of the same shape."""
    found = []
    hooks = capture_hooks(model, attention_sites(model), lambda *layer: found.append(layer))

    def stop(x, hook):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        model.run_with_hooks(tokens(2, 7), fwd_hooks=[*hooks, (f"blocks.0.attn.hook_{kind}", stop)])
    del found[:]
    ids = tokens(2, 7, seed=1)
    model.run_with_hooks(ids, fwd_hooks=hooks)
    assert [site.layer for site, *_ in found] == [0, 1]
    for (_, pattern, v, z), layer in zip(found, record(model, ids), strict=True):
        assert torch.equal(v, layer.v)
        assert torch.equal(z, layer.z)
        assert torch.equal(pattern, layer.pattern)


def test_an_exception_of_the_consumer_reaches_the_caller(model):
    def consume(*layer):
        raise LookupError("from the consumer")

    with pytest.raises(LookupError, match="from the consumer"):
        model.run_with_hooks(
            tokens(2, 7), fwd_hooks=capture_hooks(model, attention_sites(model), consume)
        )
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_one_list_for_several_forwards(model):
    found = []
    hooks = capture_hooks(
        model, attention_sites(model), lambda *layer: found.append(layer[1].shape)
    )
    for rows, length in ((2, 7), (1, 3), (2, 7)):
        model.run_with_hooks(tokens(rows, length), fwd_hooks=hooks)
    assert [tuple(shape) for shape in found] == [
        (2, 4, 7, 7), (2, 4, 7, 7), (1, 4, 3, 3), (1, 4, 3, 3), (2, 4, 7, 7), (2, 4, 7, 7)
    ]  # fmt: skip
