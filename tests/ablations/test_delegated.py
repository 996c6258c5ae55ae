"""Where the wrapped model mixes its values before the pattern shows: other ways, or the reason why there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ablations.runs import (
    CAUSAL_DELEGATED,
    DELEGATED,
    TRANSFORMER_LENS,
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
    zero_sink_values,
)

REASON = "mixes its values before hook_pattern fires"
OTHER_REMOVALS = (
    "Load the model as a HookedTransformer, or remove whole tokens with mask_tokens or heads with "
    "remove_heads"
)
WITHOUT_LAYER = "Leave the layer out with layers="
OTHER_TARGET = "Choose another target, or leave the layer out with layers="
NOBODY = torch.zeros(1, 1, 1, 1, dtype=torch.bool)


@pytest.mark.parametrize("case", bridged(*DELEGATED))
@pytest.mark.parametrize(
    ("why", "instead", "ablation"),
    [
        ("needs the attention weights first", OTHER_REMOVALS, lambda m: mask_entries(m, NOBODY)),
        (
            "needs the attention weights first",
            OTHER_REMOVALS,
            lambda m: mask_entries(m, importance="attention", fraction=0.1),
        ),
        ("the rest of a row", WITHOUT_LAYER, lambda m: remove_sinks(m, renormalize=True)),
        ("the rest of a row", WITHOUT_LAYER, lambda m: mask_tokens(m, 3, renormalize=True)),
        (
            "differ from head to head",
            "Name the same tokens for all heads in sink=",
            lambda m: zero_sink_values(m, sink="auto"),
        ),
        (
            "differ from head to head",
            "Name the same tokens for all heads in positions=",
            lambda m: mask_tokens(m, torch.ones(2, 4, 9, dtype=torch.bool)),
        ),
        ("permuting a row", OTHER_TARGET, lambda m: mix_pattern(m, 0.5, "permuted")),
        (
            "differs from head to head",
            OTHER_TARGET,
            lambda m: mix_pattern(m, 0.5, "sink", sink="auto"),
        ),
    ],
)
def test_what_needs_attention_weights_is_refused_with_the_reason(case, why, instead, ablation):
    with pytest.raises(ValueError, match=REASON) as refusal:
        ablation(model_of(case))
    reason, _, advice = str(refusal.value).rpartition(". ")
    assert why in reason
    assert f"layer {next(iter(reports_of(case)))} " in reason
    assert advice == instead


@pytest.mark.parametrize("case", bridged(*CAUSAL_DELEGATED))
def test_the_mean_so_far_is_refused_where_it_differs_from_query_to_query(case):
    with pytest.raises(ValueError, match="differs from query to query"):
        replace_sink_values(model_of(case))


@pytest.mark.parametrize("case", bridged("bert", "vit", "bart", "t5"))
def test_the_mean_of_a_bidirectional_layer_goes_through_the_values(case):
    layers = [name for name, report in reports_of(case).items() if not report.causal]
    found = look(case, replace_sink_values(model_of(case), layers=layers, sink=2))
    for label in layers:
        layer = found[label]
        z = literal.values_replaced_by_means(layer.pattern, layer.v, layer.columns([2]), layer.seen)
        layer.agrees(z)


@pytest.mark.parametrize("case", bridged(*DELEGATED))
def test_reference_means_of_values(case):
    generator = torch.Generator().manual_seed(0)
    means = {label: torch.randn(4, 8, generator=generator) for label in reports_of(case)}
    found = look(case, replace_sink_values(model_of(case), means))
    for label, layer in found.items():
        values = layer.v.clone()
        values[:, 0] = means[label]
        layer.agrees(literal.mix(layer.pattern, values))


@pytest.mark.parametrize("case", bridged("opt", "bert"))
def test_heads_become_a_running_mean(case):
    layer = look(case, remove_heads(model_of(case), [(1, 0), (1, 3)], "mean"))[1]
    real = np.ones(layer.z.shape[:2], dtype=bool)
    z = literal.running_mean(layer.clean_z, real, causal=layer.report.causal)
    z[:, :, [1, 2]] = layer.clean_z[:, :, [1, 2]]
    layer.agrees(z)


@pytest.mark.bridge
@pytest.mark.skipif(TRANSFORMER_LENS[0] > 3, reason="its native bridges take edits of the pattern")
class TestSharedValuesWithoutPatternEdits:
    case = ("bridge", "native")

    def test_single_heads_of_a_group_are_refused(self):
        for ablation in (
            lambda m: zero_sink_values(m, heads=[(0, 1)]),
            lambda m: mask_tokens(m, 2, heads=[(0, 1)]),
            lambda m: remove_sinks(m, heads=[(0, 1)]),
        ):
            with pytest.raises(ValueError, match="share the values of the heads named") as refusal:
                ablation(model_of(self.case))
            assert 'per="kv_head"' in str(refusal.value)

    def test_whole_groups_and_kv_heads(self):
        for options in (
            {"heads": [(0, 2), (0, 3)]},
            {"heads": [(0, 2)], "per": "kv_head"},
        ):
            layer = look(self.case, zero_sink_values(model_of(self.case), **options))[0]
            pattern = layer.pattern.clone()
            pattern[:, 2:, :, 0] = 0
            layer.agrees(literal.mix(pattern, layer.v))

    def test_mixing_through_z_with_shared_values(self):
        layer = look(self.case, mix_pattern(model_of(self.case), 0.4, heads=[(0, 1)]))[0]
        goal = literal.target_pattern("identity", layer.seen, None)
        pattern = literal.moved_towards(layer.pattern, goal, 0.4, [1])
        layer.agrees(literal.mix(pattern, layer.v))


def test_a_layer_whose_attention_cannot_be_taken_apart_is_refused():
    pytest.importorskip("transformer_lens.model_bridge")
    model = model_of(("bridge", "qwen3_next"))
    with pytest.raises(ValueError, match=r"zero_sink_values: layer 1 can't be edited: .*a gate"):
        zero_sink_values(model)


@pytest.mark.parametrize("case", bridged("opt"))
def test_the_warning_of_delegated_bridges_is_not_set_off(case):
    """TransformerLens 4 warns about new tensors at hook_pattern; tests turn warnings into errors."""
    look(case, [*zero_sink_values(model_of(case)), *remove_heads(model_of(case), [(0, 0)])])
    assert clean(case)
