"""The output of each layer changes by exactly the terms that are taken out or put in.

In every layer of one forward, what our hooks found (attention, values) and what they left (z, output)
are compared with sums written out entry by entry; in the first layer, whose inputs do not change, with
a run without hooks.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ablations.runs import (
    EVERY,
    WITH_PATTERN_EDITS,
    bridged,
    clean,
    look,
    model_of,
    reports_of,
)
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


def removes(case, hooks, terms_of, share=1.0):
    """Every layer's output lacks a share of exactly these terms."""
    found = look(case, hooks)
    for layer in found.values():
        expected = layer.clean_out - share * terms_of(layer)
        np.testing.assert_allclose(
            layer.out.double().numpy(), expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max())
        )
    first, untouched = (next(iter(run.values())) for run in (found, clean(case)))
    change = (untouched.out - first.out).double().numpy()
    expected = share * terms_of(untouched)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(change, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("case", EVERY)
class TestTerms:
    def test_zero_sink_values(self, case):
        hooks = zero_sink_values(model_of(case))
        removes(case, hooks, lambda x: terms(x, x.columns([0])))

    def test_remove_sinks_gives_the_same_z(self, case):
        hooks = remove_sinks(model_of(case))
        removes(case, hooks, lambda x: terms(x, x.columns([0])))

    def test_rescale_sink_values(self, case):
        hooks = rescale_sink_values(model_of(case), -2.5, sink=1)
        removes(case, hooks, lambda x: terms(x, x.columns([1])), share=3.5)

    def test_mask_tokens(self, case):
        hooks = mask_tokens(model_of(case), [2, 4])
        removes(case, hooks, lambda x: terms(x, x.columns([2, 4])))

    def test_remove_heads(self, case):
        model, labels = model_of(case), list(reports_of(case))
        heads = {label: [1, 3] if n % 2 == 0 else [2] for n, label in enumerate(labels)}
        pairs = [(label, head) for label, chosen in heads.items() for head in chosen]

        def removed(layer):
            return literal.removed_heads(layer.pattern, layer.v, layer.W_O, heads[layer.label])

        removes(case, remove_heads(model, pairs), removed)


def terms(layer, entries):
    return literal.removed_terms(layer.pattern, layer.v, layer.W_O, entries)


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("target", ["identity", "uniform", "sink"])
def test_mix_pattern(case, target):
    layers = [label for label in reports_of(case) if "cross" not in str(label)]
    found = look(case, mix_pattern(model_of(case), 0.7, target, layers=layers, sink=[0, 2]))
    for label in layers:
        layer = found[label]
        sinks = np.zeros((2, layer.pattern.shape[-1]), dtype=bool)
        sinks[:, [0, 2]] = True
        goal = literal.target_pattern(target, layer.seen, sinks)
        pattern = literal.moved_towards(layer.pattern, goal, 0.7, range(layer.n_heads))
        layer.agrees(literal.mix(pattern, layer.v))
        assert np.abs(layer.z.numpy() - layer.clean_z).max() > 1e-2


@pytest.mark.parametrize("case", bridged("bart", "t5"))
@pytest.mark.parametrize("target", ["uniform", "sink"])
def test_mix_pattern_in_cross_attention(case, target):
    label = "decoder_blocks.1.cross_attn"
    layer = look(case, mix_pattern(model_of(case), 1.0, target, layers=[label]))[label]
    sinks = np.zeros((2, 9), dtype=bool)
    sinks[:, 0] = True
    goal = literal.target_pattern(target, layer.seen, sinks)
    pattern = literal.moved_towards(layer.pattern, goal, 1.0, range(4))
    layer.agrees(literal.mix(pattern, layer.v))


@pytest.mark.parametrize("case", WITH_PATTERN_EDITS)
class TestAttentionWeights:
    def test_renormalize(self, case):
        for layer in look(case, remove_sinks(model_of(case), renormalize=True)).values():
            pattern = literal.renormalized(
                layer.pattern, layer.columns([0]), null=not layer.report.rows_sum_to_one
            )
            layer.agrees(literal.mix(pattern, layer.v))

    def test_renormalize_without_some_tokens(self, case):
        hooks = mask_tokens(model_of(case), [0, 1, 5], renormalize=True)
        for layer in look(case, hooks).values():
            pattern = literal.renormalized(
                layer.pattern, layer.columns([0, 1, 5]), null=not layer.report.rows_sum_to_one
            )
            layer.agrees(literal.mix(pattern, layer.v))

    def test_replace_by_the_mean(self, case):
        for layer in look(case, replace_sink_values(model_of(case))).values():
            z = literal.values_replaced_by_means(
                layer.pattern, layer.v, layer.columns([0]), layer.seen
            )
            layer.agrees(z)

    def test_mask_entries(self, case):
        generator = torch.Generator().manual_seed(3)
        gone = torch.rand(2, 4, 9, 9, generator=generator) < 0.3
        hooks = mask_entries(model_of(case), gone)
        removes(case, hooks, lambda layer: terms(layer, gone.numpy()))

    def test_permuted_rows_keep_their_weights_on_visible_keys(self, case):
        layers = look(case, mix_pattern(model_of(case), 1.0, "permuted")).values()
        assert any(np.abs(layer.z.numpy() - layer.clean_z).max() > 1e-2 for layer in layers)
        for layer in layers:
            hidden = torch.from_numpy(~layer.seen)[:, None]
            assert float(layer.edited_pattern.abs().masked_fill(~hidden, 0).max()) == 0
            old, new = (x.sort(-1).values for x in (layer.pattern, layer.edited_pattern))
            assert torch.equal(old, new)
            layer.agrees(literal.mix(layer.edited_pattern, layer.v))
