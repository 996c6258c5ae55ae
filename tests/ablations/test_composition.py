"""Ablations together, with hooks of the user, and with a probe; and edits of which nothing comes."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ablations.every import ANYWHERE, NEED_WEIGHTS, ablations_for
from ablations.runs import bridged, build, hooked, logits, look, model_of
from analysis_data.reference import tokens
from literal import ablations as literal
from zoo.architectures import build_hooked

from tl_geometry import Contributions, Probe, Sinks
from tl_geometry.ablations import (
    mask_entries,
    mask_tokens,
    mix_pattern,
    remove_heads,
    remove_sinks,
    rescale_sink_values,
    zero_sink_values,
)
from tl_geometry.hooks import attention_sites

CASES = [*hooked("llama"), *bridged("llama", "opt")]


@functools.cache
def flat():
    """A model whose attention is nearly uniform, so that many ablations do nearly the same."""
    model = build_hooked("llama")
    for name, parameter in model.named_parameters():
        if "W_Q" in name or "b_Q" in name:
            parameter.data.mul_(0.01)
    return model


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("opt")])
def test_any_two_in_any_order_without_a_false_alarm(case):
    model, ids = model_of(case), tokens(2, 6)
    alike = ("sink", "attention", "random", "permuted", "remove")  # others edit at the same place
    chosen = {name: a for name, a in ablations_for(case).items() if name not in alike}
    made, again = ({name: a(model) for name, a in chosen.items()} for _ in range(2))
    for first, second in itertools.product(made, again):
        found = logits(model, ids, hooks=[*made[first], *again[second]])
        assert bool(found.isfinite().all()), (first, second)


@pytest.mark.hooked
def test_no_false_alarm_where_attention_is_flat():
    model, ids = flat(), tokens(2, 6)
    names = ("identity", "uniform", "sink", "mean", "heads", "heads, mean", "rescale")
    made = {name: {**ANYWHERE, **NEED_WEIGHTS}[name](model) for name in names}
    for first, second in itertools.permutations(made, 2):
        logits(model, ids, hooks=[*made[first], *made[second]])
    everything = [(layer, head) for layer in (0, 1) for head in range(4)]
    loud = [*remove_heads(model, everything), *rescale_sink_values(model, 10)]
    logits(model, ids, hooks=loud)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("opt")])
def test_changes_below_rounding_are_no_false_alarm(case, dtype):
    model, ids = build(case, dtype), tokens(2, 9)
    for factor in (1 + 2**-20, 1 + 2**-9, 1 - 2**-7):
        logits(model, ids, hooks=rescale_sink_values(model, factor))
        if case[0] == "hooked":
            logits(model, ids, hooks=mix_pattern(model, 1 - factor if factor < 1 else factor - 1))


@pytest.mark.parametrize("case", CASES)
def test_two_edits_of_different_things_commute(case):
    model, ids = model_of(case), tokens(2, 9)
    first, second = zero_sink_values(model), remove_heads(model, [(0, 1), (1, 2)])
    one, other = (logits(model, ids, hooks=h) for h in ([*first, *second], [*second, *first]))
    assert torch.allclose(one, other, atol=1e-6)
    layer = look(case, [*first, *second])[1]
    pattern = literal.renormalized(layer.pattern, layer.columns([], []))
    pattern[:, :, :, 0] = 0
    pattern[:, 2] = 0
    layer.agrees(literal.mix(pattern, layer.v))


@pytest.mark.parametrize("case", CASES)
def test_edits_follow_one_another(case):
    layer = look(case, [*rescale_sink_values(model_of(case), 3)] * 2)[0]
    values = layer.v.clone()
    values[:, 0] *= 9
    layer.agrees(literal.mix(layer.pattern, values))
    hooks = [*rescale_sink_values(model_of(case), 3), *mix_pattern(model_of(case), 0.5, "uniform")]
    layer = look(case, hooks)[0]
    values = layer.v.clone()
    values[:, 0] *= 3
    goal = literal.target_pattern("uniform", layer.seen, None)
    pattern = literal.moved_towards(layer.pattern, goal, 0.5, range(4))
    layer.agrees(literal.mix(pattern, values))


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
def test_renormalizing_one_head_leaves_what_others_lost(case):
    model = model_of(case)
    hooks = [*mask_tokens(model, 3), *remove_sinks(model, True, heads=[(0, 2)])]
    hooks = [*mask_entries(model, torch.eye(9, dtype=torch.bool)), *hooks]
    layer = look(case, hooks)[0]
    pattern = layer.pattern.masked_fill(torch.eye(9, dtype=torch.bool), 0).double().numpy()
    pattern = literal.renormalized(pattern, layer.columns([0], [2]))
    values = layer.v.clone()
    values[:, 3] = 0
    layer.agrees(literal.mix(pattern, values))


@pytest.mark.parametrize("case", CASES)
def test_beside_hooks_of_the_user(case):
    """Theirs see what ours left and the other way round, in the order of the list, in both ways of running."""
    model, ids = model_of(case), tokens(2, 9)
    name = attention_sites(model)[1].v_hook
    seen = []

    def look_at(v, hook):
        seen.append(v.detach().clone())

    def double(v, hook):
        return 2 * v

    ours = rescale_sink_values(model, 5, layers=[1])
    plain, theirs, both, later = (
        (seen.clear(), logits(model, ids, hooks=[*h, (name, look_at)]), seen[0])[2]
        for h in ([], [(name, double)], [(name, double), *ours], [*ours, (name, double)])
    )
    assert torch.equal(theirs, 2 * plain)
    assert torch.allclose(both[:, 0], 10 * plain[:, 0])
    assert torch.equal(both[:, 1:], 2 * plain[:, 1:])
    assert torch.allclose(later, both)
    expected = logits(model, ids, hooks=ours)
    with torch.no_grad(), model.hooks(fwd_hooks=ours):
        assert torch.equal(model(ids), expected)
    model.add_hook(name, double)
    try:
        more = logits(model, ids, hooks=ours)
    finally:
        model.reset_hooks()
    assert torch.allclose(more, logits(model, ids, hooks=[(name, double), *ours]))


SEEN_BY_PROBES = {
    **{
        name: ANYWHERE[name]
        for name in ("zero", "rescale", "reference", "remove", "tokens", "heads")
    },
    **NEED_WEIGHTS,
    **{name: ANYWHERE[name] for name in ("heads, mean", "identity", "uniform", "sink")},
    "random": lambda m: mask_entries(m, importance="random", fraction=0.3),
    "permuted": lambda m: mix_pattern(m, 0.8, "permuted"),
}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case.values[0], name, marks=case.marks, id=f"{case.id} {name}")
        for case in (*hooked("llama"), *bridged("llama"))
        for name in SEEN_BY_PROBES
        if case.values[0][0] == "hooked" or name in ("zero", "renormalize", "heads", "contribution")
    ],
)
def test_a_probe_reads_what_an_ablation_leaves(case, name):
    model, ids = model_of(case), tokens(2, 9)
    hooks = SEEN_BY_PROBES[name](model)
    probe = Probe(model, [Contributions(), Sinks()])
    logits(model, ids, hooks=[*hooks, *probe.hooks()])
    found = probe.result()
    for label, layer in look(case, hooks).items():
        z = np.einsum("bqhd,hdm->bhqm", layer.z.double().numpy(), layer.W_O.double().numpy())
        norms = np.linalg.norm(z, axis=-1)
        defined = ~np.isclose(norms, 0, atol=1e-6)
        expected = [
            np.mean(
                [row[kept].mean() for row, kept in zip(norms[:, h], defined[:, h], strict=True)]
            )
            if defined[:, h].any(-1).all()
            else np.nan
            for h in range(4)
        ]
        np.testing.assert_allclose(found.output_norm.sel(layer=label), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["zero", "remove", "heads"])
@pytest.mark.parametrize("case", [*hooked("bidirectional"), *bridged("opt", "gpt_oss")])
def test_a_probe_takes_no_token_that_was_removed_for_padding(case, name):
    model, ids = model_of(case), tokens(2, 9)
    probe = Probe(model, [Contributions()])
    logits(model, ids, hooks=[*ANYWHERE[name](model), *probe.hooks()])
    assert probe.result().attrs["tokens"] == 18


@pytest.mark.parametrize("case", hooked("bidirectional"))
@pytest.mark.parametrize("remove", [remove_sinks, functools.partial(mask_tokens, positions=[3])])
def test_a_probe_asks_where_moved_attention_looks_like_padding(case, remove):
    model, ids = build(case), tokens(2, 9)
    model.tokenizer = SimpleNamespace(pad_token_id=49, bos_token_id=None, padding_side="right")
    hooks = remove(model, renormalize=True)
    probe = Probe(model, [Contributions()])
    logits(model, ids, hooks=[*hooks, *probe.hooks()])
    with pytest.raises(ValueError, match=r"2 positions get no attention .*attention_mask"):
        probe.result()
    probe = Probe(model, [Contributions()])
    logits(model, ids, hooks=[*hooks, *probe.hooks(attention_mask=torch.ones(2, 9))])
    assert probe.result().attrs["tokens"] == 18


@pytest.mark.parametrize(
    ("case", "name"),
    [
        *[
            pytest.param(case.values[0], name, marks=case.marks, id=f"{case.id} {name}")
            for case in bridged("opt", "bert")
            for name in ("heads, mean", "identity", "uniform")
        ],
        pytest.param(
            ("hooked", "window"), "heads, mean", marks=pytest.mark.hooked, id="hooked window"
        ),
    ],
)
def test_a_probe_refuses_what_shows_only_in_z(case, name):
    """No attention weights say what z has become, so there are no contributions to measure."""
    model, ids = model_of(case), tokens(2, 9)
    probe = Probe(model, [Contributions()])
    logits(model, ids, hooks=[*ANYWHERE[name](model), *probe.hooks()])
    with pytest.raises(ValueError, match=r"z differs from pattern @ v.* ablation of hook_z"):
        probe.result()


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
def test_a_probe_before_the_edits_is_refused_too(case):
    model = model_of(case)
    probe = Probe(model, [Sinks()])
    logits(model, tokens(2, 9), hooks=[*probe.hooks(), *zero_sink_values(model)])
    with pytest.raises(ValueError, match="z differs from pattern @ v"):
        probe.result()
