"""Which heads an ablation reaches, and that their siblings under grouped-query attention feel nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ablations.runs import (
    bridged,
    build,
    clean,
    hooked,
    inputs_of,
    logits,
    look,
    model_of,
    sites_of,
)
from analysis_data.reference import tokens
from literal import ablations as literal

from tl_geometry.ablations import (
    mask_entries,
    mask_tokens,
    mix_pattern,
    remove_heads,
    remove_sinks,
    replace_sink_values,
    rescale_sink_values,
    zero_sink_values,
)

GROUPED = [*hooked("llama"), *bridged("llama", "mistral", "gpt_oss")]
ANY_MASK = torch.rand(2, 4, 9, 9, generator=torch.Generator().manual_seed(1)) < 0.5
MEANS = {n: torch.ones(2, 8) for n in (0, 1)}

# The values of heads 2 and 3 are shared; these name head 2 alone.
OF_ONE_HEAD = {
    "zero_sink_values": lambda m, **kw: zero_sink_values(m, heads=[(0, 2)], **kw),
    "rescale_sink_values": lambda m, **kw: rescale_sink_values(m, 3, heads=[(0, 2)], **kw),
    "replace_sink_values": lambda m, **kw: replace_sink_values(m, heads=[(0, 2)], **kw),
    "remove_sinks": lambda m, **kw: remove_sinks(m, heads=[(0, 2)], **kw),
    "renormalize": lambda m, **kw: remove_sinks(m, True, heads=[(0, 2)], **kw),
    "mask_tokens": lambda m, **kw: mask_tokens(m, [1, 3], heads=[(0, 2)], **kw),
}
WITHOUT_VALUES = {
    "mask": lambda m: mask_entries(m, ANY_MASK, heads=[(0, 2)]),
    "importance": lambda m: mask_entries(
        m, importance="contribution", fraction=0.5, heads=[(0, 2)]
    ),
    "remove_heads": lambda m: remove_heads(m, [(0, 2)]),
    "mean of heads": lambda m: remove_heads(m, [(0, 2)], "mean"),
    "identity": lambda m: mix_pattern(m, 0.9, heads=[(0, 2)]),
    "permuted": lambda m: mix_pattern(m, 0.9, "permuted", heads=[(0, 2)]),
}


def changed_heads(case, hooks):
    """Heads of layer 0 whose z changes at all."""
    found, untouched = look(case, hooks)[0], clean(case)[0]
    same = [torch.equal(found.z[:, :, h], untouched.z[:, :, h]) for h in range(found.n_heads)]
    return [h for h, is_same in enumerate(same) if not is_same]


@pytest.mark.parametrize("case", GROUPED)
@pytest.mark.parametrize("name", [*OF_ONE_HEAD, *WITHOUT_VALUES])
def test_siblings_feel_nothing(case, name):
    ablation = {**OF_ONE_HEAD, **WITHOUT_VALUES}[name]
    assert changed_heads(case, ablation(model_of(case))) == [2]


@pytest.mark.parametrize("case", GROUPED)
@pytest.mark.parametrize("name", OF_ONE_HEAD)
def test_a_shared_value_goes_for_all_of_its_heads_on_request(case, name):
    assert changed_heads(case, OF_ONE_HEAD[name](model_of(case), per="kv_head")) == [2, 3]


@pytest.mark.parametrize("case", GROUPED)
def test_one_head_loses_exactly_its_own_terms(case):
    layer = look(case, zero_sink_values(model_of(case), heads=[(0, 2)]))[0]
    terms = literal.removed_terms(layer.pattern, layer.v, layer.W_O, layer.columns([0], [2]))
    layer.agrees(literal.mix(layer.edited_pattern, layer.edited_v), out=layer.clean_out - terms)


@pytest.mark.parametrize("case", GROUPED)
def test_a_whole_group_is_edited_at_its_values_and_keeps_its_attention(case):
    hooks = zero_sink_values(model_of(case), heads=[(0, 2), (0, 3)])
    layer = look(case, hooks)[0]
    assert torch.equal(layer.edited_pattern, layer.pattern)
    assert float(layer.edited_v[:, 0, 1].abs().max()) == 0
    assert torch.equal(layer.edited_v[:, :, 0], layer.v[:, :, 0])
    assert changed_heads(case, hooks) == [2, 3]


@pytest.mark.parametrize("case", GROUPED)
def test_reference_means_need_whole_groups(case):
    model = model_of(case)
    with pytest.raises(ValueError, match=r"new values, but its query heads share"):
        replace_sink_values(model, MEANS, heads=[(0, 2)])
    assert changed_heads(case, replace_sink_values(model, MEANS, heads=[(0, 2), (0, 3)])) == [2, 3]
    hooks = replace_sink_values(model, MEANS, heads=[(0, 2)], per="kv_head")
    assert changed_heads(case, hooks) == [2, 3]


@pytest.mark.parametrize("case", [*hooked("gpt2", "llama"), *bridged("gpt2", "opt", "bert")])
def test_layers_and_heads_that_are_not_named_stay_as_they_are(case):
    model = model_of(case)
    for hooks in (zero_sink_values(model, layers=[1]), zero_sink_values(model, layers=1)):
        found = look(case, hooks)
        assert torch.equal(found[0].z, clean(case)[0].z)
        assert not torch.equal(found[1].z, clean(case)[1].z)
    found = look(case, remove_heads(model, [(1, 3), (1, 3), (1, 0)]))
    assert torch.equal(found[0].z, clean(case)[0].z)
    assert torch.equal(found[1].z[:, :, 1:3], clean(case)[1].z[:, :, 1:3])
    assert float(found[1].z[:, :, [0, 3]].abs().max()) == 0


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
def test_integers_of_numpy_and_generators_are_labels_too(case):
    model = model_of(case)
    by_hand = remove_heads(model, [(0, 2), (1, 1)])
    pairs = ((np.int64(layer), np.int64(head)) for layer, head in ((0, 2), (1, 1)))
    assert same(case, by_hand, remove_heads(model, pairs))
    whole = zero_sink_values(model, layers=[0, 1], heads=[(0, 2), (1, 1)])
    layers = (np.int64(layer) for layer in (0, 1))
    pairs = ((np.int64(layer), np.int64(head)) for layer, head in ((0, 2), (1, 1)))
    assert same(case, whole, zero_sink_values(model, layers=layers, heads=pairs))
    whole = replace_sink_values(model, MEANS, layers=[0])
    assert same(case, whole, replace_sink_values(model, MEANS, layers=(n for n in [0])))


def same(case, *hooks):
    first, second = (logits(model_of(case), tokens(2, 9), hooks=each) for each in hooks)
    return torch.equal(first, second)


@pytest.mark.hooked
@pytest.mark.parametrize("name", [*OF_ONE_HEAD, *WITHOUT_VALUES])
def test_an_ungrouped_copy_gives_the_same_numbers(name):
    ablation = {**OF_ONE_HEAD, **WITHOUT_VALUES}[name]
    grouped, ungrouped = model_of(("hooked", "llama")), build(("hooked", "llama"))
    ungrouped.set_ungroup_grouped_query_attention(True)
    first, second = (logits(m, tokens(2, 9), hooks=ablation(m)) for m in (grouped, ungrouped))
    assert torch.allclose(first, second, atol=1e-4)
    assert not torch.allclose(first, logits(grouped, tokens(2, 9)), atol=1e-3)


@pytest.mark.parametrize("case", [*hooked("gpt2"), *bridged("gpt2", "opt")])
def test_heads_become_reference_means(case):
    generator = torch.Generator().manual_seed(0)
    means = {(1, head): torch.randn(8, generator=generator) for head in range(4)}
    hooks = remove_heads(model_of(case), [(1, 1), (1, 2)], "mean", reference=means)
    layer = look(case, hooks)[1]
    expected = layer.clean_z
    expected[:, :, 1] = means[1, 1]
    expected[:, :, 2] = means[1, 2]
    layer.agrees(expected)


@pytest.mark.parametrize("case", [*hooked("gpt2", "window", "bidirectional"), *bridged("gemma2")])
def test_heads_become_running_means(case):
    layer = look(case, remove_heads(model_of(case), [(1, 1), (1, 2)], "mean"))[1]
    real = np.ones(layer.z.shape[:2], dtype=bool)
    z = literal.running_mean(layer.clean_z, real, causal=layer.report.causal)
    z[:, :, [0, 3]] = layer.clean_z[:, :, [0, 3]]
    layer.agrees(z)


@pytest.mark.parametrize("case", bridged("bart", "t5"))
def test_no_running_mean_knows_of_later_decoder_tokens(case):
    """Every attention of the decoder, the cross-attention too, is at one position of it after another."""
    model, (args, more) = model_of(case), inputs_of(case)
    heads = [(s.layer, h) for s in sites_of(case) if "decoder" in s.name for h in (0, 2)]
    assert any(site.cross for site in sites_of(case))
    before = more["decoder_input"]
    after = before.clone()
    after[:, -1] = (after[:, -1] + 1) % 40
    for hooks in (remove_heads(model, heads, "mean"), remove_heads(model, heads[-1:], "mean")):
        first, second = (
            logits(model, *args, hooks=hooks, decoder_input=ids) for ids in (before, after)
        )
        assert torch.allclose(first[:, :-1], second[:, :-1], atol=1e-5)
        assert not torch.allclose(first[:, -1], second[:, -1], atol=1e-3)


@pytest.mark.parametrize("case", bridged("bart"))
def test_running_means_in_cross_attention_are_over_the_queries_so_far(case):
    (site,) = [site for site in sites_of(case) if site.cross and "0" in site.name]
    layer = look(case, remove_heads(model_of(case), [(site.layer, 1)], "mean"))[site.layer]
    z = layer.clean_z
    z[:, :, 1] = literal.running_mean(z, np.ones(z.shape[:2], dtype=bool), causal=True)[:, :, 1]
    layer.agrees(z)


@pytest.mark.parametrize("case", [*hooked("gpt2"), *bridged("gpt2", "opt")])
def test_all_heads_of_layers_are_removed(case):
    model = model_of(case)
    found = look(case, remove_heads(model, layers=[1]))
    assert torch.equal(found[0].z, clean(case)[0].z)
    assert float(found[1].z.abs().max()) == 0
    every = [(1, head) for head in range(4)]
    assert same(case, remove_heads(model, every), remove_heads(model, layers=1))
    assert same(
        case, remove_heads(model, [(1, 2)]), remove_heads(model, [(1, 2)], layers=np.int64(1))
    )
    with pytest.raises(ValueError, match=r"\(0, 2\) is in none of the layers \[1\]"):
        remove_heads(model, [(0, 2)], layers=[1])
