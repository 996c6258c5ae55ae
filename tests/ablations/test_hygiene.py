"""What an ablation must leave as it was: tensors, weights, data types, gradients."""

from __future__ import annotations

import pytest
import torch
from ablations.every import ablations_for, edited, made
from ablations.runs import bridged, build, hooked, logits, look, model_of
from analysis_data.reference import tokens

from tl_geometry.ablations import (
    mask_entries,
    mix_pattern,
    remove_heads,
    zero_sink_values,
)
from tl_geometry.hooks import attention_sites

CASES = [*hooked("llama"), *bridged("llama", "opt")]


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_edited_in_place(case):
    """What our functions are given keeps its numbers; what they return is another tensor."""
    model = model_of(case)
    sites = attention_sites(model)
    names = {model.hook_dict[n].name for s in sites for n in (s.v_hook, s.pattern_hook, s.z_hook)}
    for name in ablations_for(case):
        given = []

        def keep(x, hook, given=given):
            given.append((x, x.detach().clone()))

        logits(model, tokens(2, 9), hooks=[(names.__contains__, keep), *made(case, name)])
        assert len(given) == 6
        assert all(torch.equal(x, before) for x, before in given), name


@pytest.mark.parametrize("case", CASES)
def test_the_models_weights_stay(case):
    model = model_of(case)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for name in ablations_for(case):
        logits(model, tokens(2, 9), hooks=made(case, name))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case.values[0], dtype, marks=case.marks, id=f"{case.id} {dtype}")
        for cases, dtypes in (
            (hooked("llama"), (torch.float16, torch.bfloat16, torch.float64)),
            (bridged("opt"), (torch.bfloat16,)),
        )
        for case in cases
        for dtype in dtypes
    ],
)
def test_data_types_stay(case, dtype):
    """And the numbers are those of the model in full precision, as far as half of it goes."""
    model = build(case, dtype)
    error = 1e-5 if dtype == torch.float64 else 3e-2
    for name, ablation in ablations_for(case).items():
        found = look(case, ablation(model), model=model)[0]
        assert found.edited_pattern.dtype == found.pattern.dtype, name
        assert found.edited_v.dtype == found.v.dtype == found.z.dtype == dtype, name
        close(edited(case, name)[0], found, name, error)


@pytest.mark.parametrize("case", CASES)
def test_patterns_are_mixed_in_double_precision(case):
    model = build(case, torch.float64)
    layer = look(case, mix_pattern(model, 0.6, "uniform"), model=model)[0]
    v = layer.v.repeat_interleave(layer.n_heads // layer.v.shape[2], 2)
    attended = torch.einsum("bhqk,bkhd->bqhd", layer.pattern, v)
    so_far = v.cumsum(1) / torch.arange(1, v.shape[1] + 1)[:, None, None]
    mixed = 0.4 * attended + 0.6 * so_far
    assert layer.z.dtype == torch.float64
    torch.testing.assert_close(layer.z, mixed, rtol=0, atol=1e-13 * float(mixed.abs().max()))


def close(exact, found, name, error):
    """z of the first layer, but for shares of entries: near-ties fall the other way."""
    if name not in ("attention", "contribution"):
        scale = float(exact.z.abs().max())
        assert torch.allclose(found.z.float(), exact.z, atol=error * scale), name


@pytest.mark.parametrize("case", CASES)
def test_inside_an_autocast_region(case):
    for name in ablations_for(case):
        with torch.autocast("cpu", torch.bfloat16):
            found = look(case, made(case, name))[0]
            assert torch.is_autocast_enabled("cpu")
        close(edited(case, name)[0], found, name, 3e-2)


def by_hand(case, name):
    """The same edits written as a user would."""
    site = attention_sites(model_of(case))[0]

    def no_sink(v, hook):
        keep = torch.ones_like(v)
        keep[:, 0] = 0
        return v * keep

    def no_column(pattern, hook):
        keep = torch.ones_like(pattern)
        keep[..., 0] = 0
        return pattern * keep

    def no_head(z, hook):
        keep = torch.ones_like(z)
        keep[:, :, 2] = 0
        return z * keep

    return {
        "values": [(site.v_hook, no_sink)],
        "weights": [(site.pattern_hook, no_column)],
        "heads": [(site.z_hook, no_head)],
    }[name]


@pytest.mark.parametrize("name", ["values", "weights", "heads"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_edited_run(case, name):
    if (case[1], name) == ("opt", "weights"):
        name = "values"
    model = build(case)
    column = torch.zeros(9, 9, dtype=torch.bool)
    column[:, 0] = True
    ours = {
        "values": lambda: zero_sink_values(model, layers=[0]),
        "weights": lambda: mask_entries(model, column, layers=[0]),
        "heads": lambda: remove_heads(model, [(0, 2)]),
    }[name]()
    gradients = []
    for hooks in (ours, by_hand(case, name)):
        model.zero_grad()
        out = model.run_with_hooks(tokens(2, 9), fwd_hooks=hooks)
        out.logsumexp(-1).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) > 10
    for found, expected in zip(*gradients, strict=True):
        assert torch.allclose(found, expected, atol=1e-4 * max(1, float(expected.abs().max())))


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("opt")])
def test_every_ablation_passes_gradients_on(case):
    model = build(case)
    for name, ablation in ablations_for(case).items():
        model.zero_grad()
        out = model.run_with_hooks(tokens(1, 6), fwd_hooks=ablation(model))
        out.logsumexp(-1).sum().backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(found) > 10
        assert all(bool(gradient.isfinite().all()) for gradient in found), name
        assert float(found[0].abs().max()) > 0, name  # embeddings
