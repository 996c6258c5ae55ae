"""Which tokens are sinks: by number, by mask, or found in each head; and changes that are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ablations.runs import bridged, clean, hooked, logits, look, model_of
from analysis_data.reference import tokens
from literal import ablations as literal, masks

from tl_geometry.ablations import (
    mask_tokens,
    mix_pattern,
    remove_sinks,
    replace_sink_values,
    rescale_sink_values,
    zero_sink_values,
)

CASES = [*hooked("llama"), *bridged("llama", "opt")]
WITH_WEIGHTS = [*hooked("llama"), *bridged("llama")]
LONG = tokens(2, 30)


@pytest.mark.parametrize("case", CASES)
def test_the_same_sinks_named_in_several_ways(case):
    model, mask = model_of(case), torch.zeros(2, 9, dtype=torch.bool)
    mask[:, [0, 3]] = True
    expected = look(case, zero_sink_values(model, sink=[0, 3]))[1]
    for sink in (mask, (3, 0), torch.tensor([0, 3]), range(0, 4, 3), mask[:, None]):
        assert torch.equal(look(case, zero_sink_values(model, sink=sink))[1].out, expected.out)
    assert torch.equal(look(case, mask_tokens(model, mask))[1].out, expected.out)
    first = look(case, zero_sink_values(model))[1]
    for sink in (0, [0], "first"):
        assert torch.equal(look(case, zero_sink_values(model, sink=sink))[1].out, first.out)


@pytest.mark.parametrize("case", CASES)
def test_a_mask_may_differ_between_documents(case):
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, 1], mask[1, [2, 5]] = True, True
    for layer in look(case, zero_sink_values(model_of(case), sink=mask)).values():
        entries = literal.columns(mask.numpy(), range(4), 4, 9)
        pattern = layer.pattern.masked_fill(torch.from_numpy(entries), 0)
        layer.agrees(literal.mix(pattern, layer.v))


@pytest.mark.parametrize("case", WITH_WEIGHTS)
def test_a_mask_may_differ_between_heads(case):
    mask = torch.rand(2, 4, 9, generator=torch.Generator().manual_seed(0)) < 0.3
    entries = mask[:, :, None].expand(-1, -1, 9, -1)
    for layer in look(case, zero_sink_values(model_of(case), sink=mask)).values():
        layer.agrees(literal.mix(layer.pattern.masked_fill(entries, 0), layer.v))
    hooks = mix_pattern(model_of(case), 1, "sink", sink=mask)
    for layer in look(case, hooks).values():
        for h in range(4):
            goal = literal.target_pattern("sink", layer.seen, mask[:, h].numpy())
            pattern = literal.moved_towards(layer.pattern, goal, 1.0, [h])
            np.testing.assert_allclose(layer.edited_pattern[:, h], pattern[:, h], atol=1e-6)


def found_sinks(layer, epsilon=0.3):
    """``batch head key``: keys with 16 or more later queries that give them more than epsilon on average."""
    received = masks.received_attention(layer.pattern, torch.from_numpy(layer.seen))
    n = layer.pattern.shape[-1]
    for j in range(n):
        if n - 1 - j < 16:
            received[:, :, j] = 0
    return received > epsilon


@pytest.mark.parametrize("case", WITH_WEIGHTS)
def test_sinks_found_in_each_head(case):
    """Only heads that have one are changed; a shared value goes for all of its heads on request."""
    for per in ("query_head", "kv_head"):
        hooks = zero_sink_values(model_of(case), sink="auto", per=per)
        sinks = {}
        for label, layer in look(case, hooks, args=(LONG,)).items():
            sinks[label] = found = found_sinks(layer)
            if per == "kv_head":
                found = found.reshape(2, 2, 2, -1).any(2).repeat(2, 1)
            entries = np.repeat(found[:, :, None], 30, 2)
            pattern = layer.pattern.masked_fill(torch.from_numpy(entries), 0)
            assert torch.equal(layer.edited_pattern, pattern)
            layer.agrees(literal.mix(pattern, layer.v))
        every = np.stack(list(sinks.values()))
        assert every.any()
        assert not every.any(-1).all()


@pytest.mark.parametrize("case", WITH_WEIGHTS)
@pytest.mark.parametrize(
    "ablation",
    [
        zero_sink_values,
        replace_sink_values,
        lambda m, **kw: remove_sinks(m, True, **kw),
        lambda m, **kw: mix_pattern(m, 0.5, "sink", **kw),
    ],
)
def test_no_sink_found_is_no_error(case, ablation):
    """Nine tokens are too few to tell."""
    found = look(case, ablation(model_of(case), sink="auto"))
    for label, layer in found.items():
        assert torch.equal(layer.z, clean(case)[label].z)


@pytest.mark.parametrize("case", CASES)
def test_changes_that_are_none(case):
    model = model_of(case)
    plain = logits(model, tokens(2, 9))
    for hooks in (
        rescale_sink_values(model, 1),
        mix_pattern(model, 0),
        mix_pattern(model, 0.0, "uniform"),
    ):
        assert torch.equal(logits(model, tokens(2, 9), hooks=hooks), plain)
    none, zero = rescale_sink_values(model, 0), zero_sink_values(model)
    first, second = (logits(model, tokens(2, 9), hooks=hooks) for hooks in (none, zero))
    assert torch.equal(first, second)


@pytest.mark.parametrize("case", WITH_WEIGHTS)
def test_a_row_with_no_rest_stays(case):
    """The first query sees nothing but the sink."""
    layer = look(case, remove_sinks(model_of(case), True))[0]
    assert torch.equal(layer.edited_pattern[:, :, 0], layer.pattern[:, :, 0])
    assert float(layer.edited_pattern[:, :, 1:, 0].abs().max()) == 0
    sums = layer.edited_pattern.sum(-1)
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)


@pytest.mark.bridge
def test_a_learned_sink_keeps_its_part_of_what_is_divided():
    """Without the first token, the others get what a softmax over them and the learned sink gives."""
    case = ("bridge", "gpt_oss")
    layer = look(case, remove_sinks(model_of(case), True))[0]
    before, after = layer.pattern.double(), layer.edited_pattern.double()
    assert float(before.sum(-1).min()) < 0.9
    expected = before / (1 - before[..., :1])
    expected[..., 0] = 0
    assert torch.allclose(after, expected, atol=1e-4)
    assert float(after[:, :, 1:].sum(-1).max()) < 1
