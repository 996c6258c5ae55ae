"""Edits of which nothing comes: undone by another hook, or behind the back of the pattern."""

from __future__ import annotations

import pytest
import torch
from ablations.every import NEED_WEIGHTS
from ablations.runs import bridged, build, hooked, inputs_of, logits, model_of, reports_of
from analysis_data.reference import tokens
from zoo.architectures import build_hooked

from tl_geometry.ablations import mask_entries, mix_pattern, remove_heads, zero_sink_values
from tl_geometry.hooks import attention_sites, doctor

CASES = [*hooked("llama"), *bridged("llama", "opt")]


def restoring(model, kind, layer=0, args=None, more=None):
    """A hook of the user that puts back what was there without our edit."""
    site = attention_sites(model)[layer]
    name = {"v": site.v_hook, "pattern": site.pattern_hook, "z": site.z_hook}[kind]
    held = []

    def keep(x, hook):
        held.append(x)

    args = (tokens(2, 9),) if args is None else args
    logits(model, *args, hooks=[(name, keep)], **(more or {}))

    def put_back(x, hook):
        return held[0]

    return name, put_back


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["v", "z"])
def test_an_edit_of_values_that_is_undone(case, kind):
    model = model_of(case)
    back, ours = restoring(model, kind), zero_sink_values(model, layers=[0])
    with pytest.raises(RuntimeError, match=r"zero_sink_values: layer 0 was edited, but z is"):
        logits(model, tokens(2, 9), hooks=[back, *ours] if kind == "z" else [*ours, back])


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_edit_of_weights_that_is_undone(case, dtype):
    model = build(case, dtype)
    back = restoring(model, "pattern")
    for name, ablation in NEED_WEIGHTS.items():
        ours = ablation(model)
        logits(model, tokens(2, 9), hooks=ours)
        with pytest.raises(RuntimeError, match=r"layer 0 was edited, but z is"):
            logits(model, tokens(2, 9), hooks=[*ours, back])
        assert name


EDITS_OF_Z = {
    "zero": lambda m, layer: remove_heads(m, [(layer, 2)]),
    "reference": lambda m, layer: remove_heads(
        m, [(layer, 2)], "mean", reference={(layer, 2): torch.ones(8)}
    ),
    "two": lambda m, layer: remove_heads(m, [(layer, 2), (layer, 3)]),
}


@pytest.mark.parametrize(
    "case",
    [
        *hooked("gpt2", "llama", "parallel"),
        *bridged("gpt2", "llama", "gemma2", "gpt_oss", "opt", "gptj", "bert", "vit", "bart", "t5"),
    ],
)
def test_an_edit_of_z_that_is_undone(case):
    """The layer's output tells, also behind a norm or where its hook shows the residual stream."""
    model, (args, more) = model_of(case), inputs_of(case)
    for site in attention_sites(model):
        back = restoring(model, "z", site.index, args, more)
        for name, ablation in EDITS_OF_Z.items():
            ours = ablation(model, site.layer)
            logits(model, *args, hooks=ours, **more)
            with pytest.raises(RuntimeError, match=r"was edited at z, but its output is what") as e:
                logits(model, *args, hooks=[*ours, back], **more)
            assert f"remove_heads: layer {site.layer} " in str(e.value), name


@pytest.mark.parametrize("case", [*hooked("window"), *bridged("opt")])
def test_other_edits_of_z_that_are_undone(case):
    model = model_of(case)
    layer = next(n for n, r in reports_of(case).items() if case[1] == "opt" or r.window)
    back = restoring(model, "z", layer)
    ours = {"mean": lambda: remove_heads(model, [(layer, 1)], "mean")}
    if case[0] == "bridge":
        ours["mix"] = lambda: mix_pattern(model, 0.5, "uniform", layers=[layer])
    for make in ours.values():
        with pytest.raises(RuntimeError, match=rf"layer {layer} was edited at z"):
            logits(model, tokens(2, 9), hooks=[*make(), back])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("opt", "gemma2")])
def test_an_edit_of_z_that_is_undone_in_other_precisions(case, dtype):
    model = build(case, dtype)
    ours, back = remove_heads(model, [(0, 1)]), restoring(model, "z")
    logits(model, tokens(2, 9), hooks=ours)
    with pytest.raises(RuntimeError, match=r"layer 0 was edited at z"):
        logits(model, tokens(2, 9), hooks=[*ours, back])


@pytest.mark.hooked
def test_an_edit_of_z_behind_a_norm_of_the_layers_output():
    """As in Gemma 2: a HookedTransformer shows the output of its attention behind the norm only."""
    model = build_hooked("llama", use_normalization_before_and_after=True)
    assert {report.verdict for report in doctor(model, edits=False).layers} == {"normed"}
    ours, back = remove_heads(model, [(0, 1)]), restoring(model, "z")
    logits(model, tokens(2, 9), hooks=ours)
    with pytest.raises(RuntimeError, match=r"layer 0 was edited at z"):
        logits(model, tokens(2, 9), hooks=[*ours, back])


@pytest.mark.parametrize("case", CASES)
def test_a_later_edit_of_z_by_the_user_is_no_false_alarm(case):
    model, ids = model_of(case), tokens(2, 9)
    name, put_back = restoring(model, "z")
    ours = remove_heads(model, [(0, 1), (0, 2)])

    def double(z, hook):
        return 2 * z

    def patch_one(z, hook):
        """Of two heads that were removed the user brings one back."""
        z = z.clone()
        z[:, :, 1] = put_back(z, hook)[:, :, 1]
        return z

    for theirs in (double, patch_one):
        found = logits(model, ids, hooks=[*ours, (name, theirs)])
        assert not torch.allclose(found, logits(model, ids, hooks=ours), atol=1e-3)


@pytest.mark.hooked
def test_a_run_that_broke_off_leaves_nothing_to_compare_with():
    """The z of the broken run is another text's."""
    model = model_of(("hooked", "llama"))
    ours, site = remove_heads(model, [(0, 1)]), attention_sites(model)[0]

    def stop(z, hook):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        logits(model, tokens(2, 6, seed=3), hooks=[*ours, (site.z_hook, stop)])
    logits(model, tokens(2, 9), hooks=ours)


@pytest.mark.hooked
def test_a_pattern_that_never_shows():
    model = model_of(("hooked", "llama"))
    hooks = mask_entries(model, importance="attention", fraction=0.2)
    blind = [(name, hook) for name, hook in hooks if "pattern" not in name]
    with pytest.raises(RuntimeError, match="hook_pattern did not fire before hook_z"):
        logits(model, tokens(2, 9), hooks=blind)


@pytest.mark.bridge
def test_an_attention_implementation_without_a_pattern():
    """Values still reach z; what would need the pattern is refused with the doctor's reason."""
    model = build(("bridge", "opt"))
    ids = tokens(2, 9)
    before = zero_sink_values(model)
    expected = logits(model, ids, hooks=before)
    model.original_model.set_attn_implementation("sdpa")
    assert torch.allclose(logits(model, ids, hooks=before), expected, atol=1e-4)
    with pytest.raises(ValueError, match=r"layer 0 can't be edited: hook_pattern never fired"):
        zero_sink_values(model)
    model.original_model.set_attn_implementation("eager")
    assert torch.equal(logits(model, ids, hooks=zero_sink_values(model)), expected)
