"""What a run leaves behind: no hook, no trace in later runs or other models; and what is remembered of a model."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from ablations.every import ablations_for, made
from ablations.runs import bridged, build, hooked, logits, model_of
from analysis_data.reference import tokens
from zoo.architectures import build_bridge, build_hooked

from tl_geometry.ablations import (
    remove_heads,
    remove_sinks,
    rescale_sink_values,
    zero_sink_values,
)
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.examined import examined

CASES = [*hooked("llama"), *bridged("llama", "opt")]


def hooks_on(model):
    return sum(
        len(point.fwd_hooks) for point in {id(p): p for p in model.hook_dict.values()}.values()
    )


def stop(x, hook):
    raise InterruptedError


def interrupt(x, hook):
    raise KeyboardInterrupt


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["v", "pattern", "z"])
@pytest.mark.parametrize("breaking", [stop, interrupt])
def test_no_hook_is_left_after_a_run_that_breaks_off(case, kind, breaking):
    model, ids = model_of(case), tokens(2, 9)
    plain, site = logits(model, ids), attention_sites(model)[0]
    before = hooks_on(model)
    ours = [*zero_sink_values(model), *remove_heads(model, [(1, 1)], "mean")]
    expected = logits(model, ids, hooks=ours)
    name = {"v": site.v_hook, "pattern": site.pattern_hook, "z": site.z_hook}[kind]
    for hooks in ([*ours, (name, breaking)], [(name, breaking), *ours]):
        with pytest.raises((InterruptedError, KeyboardInterrupt)):
            logits(model, ids, hooks=hooks)
        assert hooks_on(model) == before
        with pytest.raises((InterruptedError, KeyboardInterrupt)), model.hooks(fwd_hooks=hooks):
            model(ids)
        assert hooks_on(model) == before
        assert torch.equal(logits(model, ids), plain)
        assert torch.equal(logits(model, ids, hooks=ours), expected)  # nothing stale in them


@pytest.mark.parametrize("case", CASES)
def test_no_hook_is_left_after_an_error_of_ours(case):
    model, ids = model_of(case), tokens(2, 9)
    before = hooks_on(model)
    for hooks in (
        zero_sink_values(model, sink=9),
        zero_sink_values(model, attention_mask=torch.ones(2, 3)),
        [*zero_sink_values(model, layers=[0]), undone(model)],
    ):
        with pytest.raises((ValueError, RuntimeError)):
            logits(model, ids, hooks=hooks)
        assert hooks_on(model) == before
    with pytest.raises(ValueError, match="heads"):
        remove_heads(model, [(0, 99)])
    assert hooks_on(model) == before


def undone(model):
    site, held = attention_sites(model)[0], []

    def keep(x, hook):
        held.append(x)

    def put_back(x, hook):
        return held[0]

    logits(model, tokens(2, 9), hooks=[(site.v_hook, keep)])
    return site.v_hook, put_back


@pytest.mark.parametrize("case", CASES)
def test_what_the_user_hooked_survives(case):
    model, ids = model_of(case), tokens(2, 9)
    calls = []

    def count(x, hook):
        calls.append(hook.name)

    model.add_hook(attention_sites(model)[0].v_hook, count)
    try:
        logits(model, ids, hooks=zero_sink_values(model))
        logits(model, ids)
    finally:
        model.reset_hooks()
    assert len(calls) == 2


def test_two_models_in_two_threads():
    pytest.importorskip("transformer_lens.model_bridge")
    models = [build_bridge("llama", seed=seed) for seed in (0, 1)]
    ids = tokens(2, 9)
    make = [
        lambda: rescale_sink_values(models[0], 2),
        lambda: remove_sinks(models[1], True),
    ]
    expected = [logits(model, ids, hooks=m()) for model, m in zip(models, make, strict=True)]
    found, errors = {}, []

    def work(number):
        try:
            for _ in range(5):
                found[number] = logits(models[number], ids, hooks=make[number]())
                assert torch.equal(found[number], expected[number])
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(found) == 2


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("opt")])
def test_hooks_serve_many_batches_of_other_sizes(case):
    model = model_of(case)
    for name, ablation in ablations_for(case).items():
        fresh = ablation(model)
        first = logits(model, tokens(2, 9), hooks=fresh)
        logits(model, tokens(3, 6), hooks=fresh)
        assert torch.equal(logits(model, tokens(2, 9), hooks=fresh), first), name


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
def test_under_inference_mode(case):
    model, ids = model_of(case), tokens(2, 9)
    for name in ablations_for(case):
        expected = logits(model, ids, hooks=made(case, name))
        with torch.inference_mode():
            found = model.run_with_hooks(ids, fwd_hooks=made(case, name))
        assert torch.equal(found, expected), name


@pytest.mark.bridge
def test_active_dropout_is_refused():
    model = build_bridge("gpt2").train()
    with pytest.raises(ValueError, match=r"dropout is active .*call model.eval\(\) first"):
        zero_sink_values(model)
    logits(model.eval(), tokens(2, 9), hooks=zero_sink_values(model))


@pytest.mark.hooked
def test_train_mode_without_dropout():
    model, ids = build(("hooked", "llama")), tokens(2, 9)
    expected = logits(model, ids, hooks=zero_sink_values(model))
    assert torch.equal(logits(model.train(), ids, hooks=zero_sink_values(model)), expected)


@pytest.mark.hooked
class TestKeyValueCache:
    def continued(self, model, hooks_of):
        try:
            from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache as Cache
        except ImportError:
            from transformer_lens import HookedTransformerKeyValueCache as Cache
        ids, cache = tokens(1, 9), Cache.init_cache(model.cfg, "cpu", 1)
        real = torch.ones_like(ids)
        logits(model, ids[:, :8], past_kv_cache=cache, attention_mask=real[:, :8])
        rest = {"past_kv_cache": cache, "attention_mask": real[:, 8:]}
        return logits(model, ids[:, 8:], hooks=hooks_of(model), **rest)

    def test_values_that_are_out_of_reach(self):
        case = ("hooked", "llama")
        for name, ablation in ablations_for(case).items():
            if name != "heads":
                with pytest.raises(
                    ValueError, match=r"KV cache|names no real|outside|has the tokens"
                ):
                    self.continued(model_of(case), ablation)

    def test_heads_can_be_removed_all_the_same(self):
        model = model_of(("hooked", "llama"))
        found = self.continued(model, lambda m: remove_heads(m, [(1, 0)]))
        whole = logits(model, tokens(1, 9), hooks=remove_heads(model, [(1, 0)]))[:, -1:]
        assert torch.allclose(found, whole, atol=1e-4)


@pytest.mark.bridge
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama"])
def test_compatibility_mode_applies_an_edit_once(name):
    """Its hooks have several names; rescaling by 3 must not become 9."""
    model = build_bridge(name)
    model.enable_compatibility_mode(disable_warnings=True)
    site, seen = attention_sites(model)[0], []

    def keep(x, hook):
        seen.append(x.detach().clone())

    for ours in ([], rescale_sink_values(model, 3)):
        logits(model, tokens(2, 9), hooks=[*ours, (site.v_hook, keep)])
        with torch.no_grad(), model.hooks(fwd_hooks=[*ours, (site.v_hook, keep)]):
            model(tokens(2, 9))
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[3])
    assert torch.allclose(seen[2][:, 0], 3 * seen[0][:, 0])
    assert torch.equal(seen[2][:, 1:], seen[0][:, 1:])


@pytest.mark.hooked
class TestWhatIsRemembered:
    def test_the_doctor_is_asked_once(self):
        model = build_hooked("llama")
        sites = attention_sites(model)
        assert examined(model, sites) is examined(model, sites)
        model.set_ungroup_grouped_query_attention(True)
        first = examined(model, attention_sites(model))
        assert first is not examined(model, sites) or first.ok

    def test_hooks_of_the_user_are_no_part_of_the_model(self):
        """With z zeroed by hand, pattern @ v is not z: no verdict on the model, and none that lasts."""
        model, ids = build_hooked("llama"), tokens(2, 9)

        def clear(z, hook):
            return 0 * z

        with (
            model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", clear)]),
            pytest.raises(ValueError, match="layer 0 can't be edited: pattern @ v differs"),
        ):
            zero_sink_values(model)
        logits(model, ids, hooks=zero_sink_values(model))
        with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", clear)]):
            zero_sink_values(model)

    def test_a_model_is_not_kept_alive(self):
        model = build_hooked("llama")
        zero_sink_values(model)
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
