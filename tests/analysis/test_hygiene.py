"""A probe is a guest: nothing of it stays, nothing of the model changes, memory is given back."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
import xarray as xr
from analysis_data.reference import assert_equal, result_or_refusal, soften, tokens
from torch.multiprocessing.reductions import StorageWeakRef

from tl_geometry import (
    Contributions,
    Probe,
    Regimes,
    Sinks,
    analyze,
    mask_entries,
    prompt_contributions,
    zero_sink_values,
)


def three():
    return [Contributions(), Regimes(), Sinks()]


@pytest.fixture
def build(backend, request):
    factory = request.getfixturevalue(f"tiny_{backend}")

    def make(**options):
        if backend == "bridge" and "n_layers" in options:
            options["num_hidden_layers"] = options.pop("n_layers")
        return soften(factory(**options))

    return make


@pytest.fixture
def model(build):
    return build()


def hook_counts(model):
    """Every hook on every point, ours or not."""
    return {
        name: (len(point.fwd_hooks), len(point.bwd_hooks), len(point._forward_hooks))
        for name, point in model.hook_dict.items()
    }


def fingerprint(model):
    return {name: p.detach().double().sum().item() for name, p in model.named_parameters()}


class StopError(Exception):
    pass


def failing(error, after=0):
    calls = []

    def hook(x, hook):
        calls.append(1)
        if len(calls) > after:
            raise error

    return hook


@pytest.mark.parametrize(
    "error", [StopError(), KeyboardInterrupt()], ids=["exception", "interrupt"]
)
@pytest.mark.parametrize(
    "place", ["blocks.0.attn.hook_v", "blocks.1.hook_resid_pre", "blocks.1.attn.hook_pattern"]
)
def test_a_forward_that_breaks_off_leaves_nothing_behind(model, error, place):
    """No hook, no half-read layer; and a half document is refused rather than averaged."""
    seen = []

    def note(x, hook):
        seen.append(1)

    model.add_hook("blocks.0.hook_resid_pre", note, is_permanent=True)
    before, weights = hook_counts(model), fingerprint(model)
    probe, clean = Probe(model, three()), Probe(model, three())
    hooks = probe.hooks()
    first, second = tokens(2, 9), tokens(3, 12, seed=1)
    with pytest.raises(type(error)):
        model.run_with_hooks(first, fwd_hooks=[*hooks, (place, failing(error))])
    assert hook_counts(model) == before
    assert fingerprint(model) == weights
    model.run_with_hooks(second, fwd_hooks=hooks)
    model.run_with_hooks(second, fwd_hooks=clean.hooks())
    assert hook_counts(model) == before
    assert len(seen) == 5  # the permanent hook: two doctors and three forwards
    if not place.startswith("blocks.0"):  # the first layer had been measured already
        with pytest.raises(RuntimeError, match=r"probe\.reset\(\)"):
            probe.result()
        probe.reset()
        model.run_with_hooks(second, fwd_hooks=hooks)
    ds = probe.result()
    assert_equal(ds, clean.result(), 0)
    assert ds.attrs["documents"] == 3
    assert ds.attrs["tokens"] == ds.attrs["rows"] == 36


def test_after_a_reset_a_broken_forward_is_forgotten(model):
    probe, clean = Probe(model, three()), Probe(model, three())
    hooks = probe.hooks()
    with pytest.raises(StopError):
        model.run_with_hooks(
            tokens(2, 9), fwd_hooks=[*hooks, ("blocks.1.hook_resid_pre", failing(StopError()))]
        )
    probe.reset()
    with pytest.raises(RuntimeError, match="no hook of this probe has fired"):
        probe.result()
    for target, used in ((probe, hooks), (clean, clean.hooks())):
        model.run_with_hooks(tokens(3, 12), fwd_hooks=used)
        assert target.result().attrs["documents"] == 3
    assert_equal(probe.result(), clean.result(), 0)


def test_a_forward_that_stops_early_is_no_document(model):
    """Layers that saw different documents must not be put side by side."""
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks(), stop_at_layer=1)
    with pytest.raises(RuntimeError, match=r"layers \[1\] never fired"):
        probe.result()
    model.run_with_hooks(tokens(3, 12), fwd_hooks=probe.hooks())
    ds = result_or_refusal(probe, "layer")
    if ds is not None:
        assert ds.attrs["documents"] == 3
        assert (ds.regime_rows == 33).all()


def test_an_exception_in_the_probes_own_hook(model):
    before = hook_counts(model)
    probe = Probe(model, three())
    with pytest.raises(ValueError, match="attention_mask has shape"):
        model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks(torch.ones(2, 4)))
    assert hook_counts(model) == before
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    assert probe.result().attrs["documents"] == 2


def test_doctor_analyze_and_prompt_leave_no_hook(model):
    def look(x, hook):
        return None

    model.add_hook("blocks.1.hook_resid_pre", look, is_permanent=True)
    before, weights = hook_counts(model), fingerprint(model)
    grads = [p.requires_grad for p in model.parameters()]
    analyze(model, tokens(2, 9), progress=False, measures=three(), keep_examples=1)
    prompt_contributions(model, tokens(9))
    assert hook_counts(model) == before
    assert fingerprint(model) == weights
    assert [p.requires_grad for p in model.parameters()] == grads
    assert not model.training
    assert torch.is_grad_enabled()


def test_the_training_flag_is_left_alone(model):
    model.train()
    flags = [module.training for module in model.modules()]
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    assert [module.training for module in model.modules()] == flags
    assert all(flags)


def test_the_random_state_is_left_alone(model):
    state = torch.random.get_rng_state()
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    probe.result()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_models_output_is_not_changed(model):
    probe = Probe(model, three())
    ids = tokens(2, 9)
    with torch.no_grad():
        plain = model(ids)
        assert torch.equal(model.run_with_hooks(ids, fwd_hooks=probe.hooks()), plain)
        assert torch.equal(model(ids), plain)


def test_two_probes_at_once_and_one_list_for_many_batches(model):
    one, other, alone = (Probe(model, three()) for _ in range(3))
    hooks, others = one.hooks(), other.hooks()
    for length, rows in ((9, 2), (12, 3), (5, 1), (9, 2)):
        model.run_with_hooks(tokens(rows, length), fwd_hooks=[*hooks, *others])
        model.run_with_hooks(tokens(rows, length), fwd_hooks=alone.hooks())
    assert_equal(one.result(), alone.result(), 0)
    assert_equal(other.result(), alone.result(), 0)
    assert one.result().attrs["documents"] == 8


def test_a_forward_inside_a_forward(model):
    """A user's hook may run the model itself, under another probe."""
    outer, alone = Probe(model, three()), Probe(model, three())
    ids = tokens(2, 9)
    other = copy.deepcopy(model)
    inner = Probe(other, three())

    def nested(x, hook):
        other.run_with_hooks(ids[:1, :5], fwd_hooks=inner.hooks())

    model.run_with_hooks(ids, fwd_hooks=[("blocks.1.hook_resid_pre", nested), *outer.hooks()])
    model.run_with_hooks(ids, fwd_hooks=alone.hooks())
    assert_equal(outer.result(), alone.result(), 0)
    assert inner.result().attrs["tokens"] == 5


def test_results_may_be_asked_for_in_between(model):
    probe, whole = Probe(model, three()), Probe(model, three())
    for seed in (0, 1):
        model.run_with_hooks(tokens(2, 9, seed=seed), fwd_hooks=probe.hooks())
        assert probe.result().attrs["documents"] == 2 * (seed + 1)
        model.run_with_hooks(tokens(2, 9, seed=seed), fwd_hooks=whole.hooks())
    assert_equal(probe.result(), whole.result(), 0)
    assert_equal(probe.result(), whole.result(), 0)


# -- under PyTorch's modes ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_gradient_modes_change_nothing(model, mode):
    probe, plain = Probe(model, three()), Probe(model, three())
    with mode():
        model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
        inside = probe.result()
    model.run_with_hooks(tokens(2, 9), fwd_hooks=plain.hooks())
    assert_equal(inside, plain.result(), 1e-6)
    model.run_with_hooks(tokens(3, 7), fwd_hooks=probe.hooks())
    assert probe.result().attrs["documents"] == 5


@pytest.mark.parametrize("inside", ["building", "resetting"])
def test_a_probe_outlives_inference_mode(model, inside):
    plain = Probe(model, three())
    with torch.inference_mode():
        probe = Probe(model, three())
        if inside == "resetting":
            model.run_with_hooks(tokens(2, 7), fwd_hooks=probe.hooks())
            probe.reset()
    for target in (probe, plain):
        model.run_with_hooks(tokens(2, 9), fwd_hooks=target.hooks())
    assert_equal(probe.result(), plain.result(), 1e-6)


def test_autocast_changes_no_more_than_the_models_own_rounding(model):
    probe, plain = Probe(model, three()), Probe(model, three())
    with torch.autocast("cpu", torch.bfloat16):
        model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=plain.hooks())
    rounded, exact = probe.result(), plain.result()
    for name in ("sink_rate", "contribution_sink", "contribution_self", "sink_cosine"):
        assert float(abs(rounded[name] - exact[name]).max()) < 0.05, name


def test_gradients_flow_to_the_weights_and_none_into_the_probe(model):
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    measures = three()
    probe = Probe(model, measures)
    ids = tokens(2, 9)
    logits = model.run_with_hooks(ids, fwd_hooks=probe.hooks())
    logits.logsumexp(-1).sum().backward()
    with_probe = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(ids).logsumexp(-1).sum().backward()
    for found, parameter in zip(with_probe, model.parameters(), strict=True):
        if parameter.grad is not None:
            torch.testing.assert_close(found, parameter.grad)
    for measure in measures:
        for name in measure.variables:
            assert not getattr(measure, name).requires_grad


# -- weights that change ------------------------------------------------------------------------------


def edit_in_place(weight):
    with torch.no_grad():
        weight.mul_(3)


def edit_through_data(weight):
    weight.data.mul_(3)


def edit_in_inference_mode(weight):
    with torch.inference_mode():
        weight.mul_(3)


@pytest.mark.parametrize("edit", [edit_in_place, edit_through_data, edit_in_inference_mode])
def test_output_weights_may_change_between_batches(model, edit):
    from tl_geometry.hooks import attention_sites

    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    probe.reset()
    module = attention_sites(model)[1].module
    if hasattr(module, "original_component"):
        edit(module.o.original_component.weight)
    else:
        edit(module.W_O)
    fresh = Probe(model, three())
    for target in (probe, fresh):
        model.run_with_hooks(tokens(2, 9), fwd_hooks=target.hooks())
    assert_equal(probe.result(), fresh.result(), 1e-6)


def test_the_precision_may_change_between_batches(model):
    probe = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    probe.reset()
    model.to(torch.float64)
    model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks())
    fresh = Probe(model, three())
    model.run_with_hooks(tokens(2, 9), fwd_hooks=fresh.hooks())
    assert_equal(probe.result(), fresh.result(), 1e-6)


# -- threads and memory ------------------------------------------------------------------------------


def test_two_threads_with_a_model_each(build):
    models = [build(seed=0), build(seed=1)]
    results, errors = {}, []

    def work(number):
        try:
            probe = Probe(models[number], three())
            for seed in range(4):
                models[number].run_with_hooks(tokens(2, 9, seed=seed), fwd_hooks=probe.hooks())
            results[number] = probe.result()
        except Exception as error:  # noqa: BLE001 - a thread's failure is shown by the main one
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number in (0, 1):
        probe = Probe(models[number], three())
        for seed in range(4):
            models[number].run_with_hooks(tokens(2, 9, seed=seed), fwd_hooks=probe.hooks())
        assert_equal(results[number], probe.result(), 0)


class Watch:
    """How many captured activations of earlier layers are alive when the next layer begins."""

    def __init__(self, n_layers):
        self.n_layers = n_layers
        self.alive = {}
        self.references = {}

    def hooks(self):
        hooks = []
        for layer in range(self.n_layers):
            for kind in ("pattern", "v", "z"):

                def remember(x, hook, key=(layer, kind)):
                    self.references[key] = StorageWeakRef(x.untyped_storage())

                hooks.append((f"blocks.{layer}.attn.hook_{kind}", remember))

            def look(x, hook, layer=layer):
                self.alive[layer] = {
                    key for key, ref in self.references.items() if not ref.expired()
                }

            hooks.append((f"blocks.{layer}.hook_resid_pre", look))
        return hooks


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_layers_activations_die_before_the_next_layer(build, mode):
    model = build(n_layers=4)
    probe = Probe(model, three())
    kept = []

    def keep(x, hook):
        kept.append(x)

    for extra in ([], [("blocks.1.attn.hook_pattern", keep)]):
        watch = Watch(4)
        gc.disable()  # what lives on in reference cycles is held too
        try:
            with mode():
                model.run_with_hooks(
                    tokens(2, 30), fwd_hooks=[*watch.hooks(), *probe.hooks(), *extra]
                )
        finally:
            gc.enable()
        held = {(1, "pattern")} if extra else set()
        assert watch.alive == {0: set(), 1: set(), 2: held, 3: held}
        assert {key for key, ref in watch.references.items() if not ref.expired()} == held


def test_nothing_captured_survives_a_forward_with_gradients(build):
    model = build(n_layers=3)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    probe = Probe(model, three())
    watch = Watch(3)
    logits = model.run_with_hooks(tokens(2, 30), fwd_hooks=[*watch.hooks(), *probe.hooks()])
    assert watch.alive[2]  # the graph needs them
    del logits
    gc.collect()
    assert all(ref.expired() for ref in watch.references.values())
    assert probe.result().attrs["documents"] == 2


def test_states_do_not_grow_with_documents_or_length(model):
    measures = three()
    probe = Probe(model, measures)

    def size():
        return sum(
            value.numel()
            for metric in (*measures, probe.ledger)
            for value in metric.__dict__.values()
            if isinstance(value, torch.Tensor)
        )

    model.run_with_hooks(tokens(1, 5), fwd_hooks=probe.hooks())
    before = size()
    for length in (10, 40):
        model.run_with_hooks(tokens(4, length), fwd_hooks=probe.hooks())
    assert size() == before


def test_hooks_of_another_model_of_the_same_shape_are_refused(build):
    first, second, ids = build(), build(), tokens(2, 9)
    for hooks in (
        Probe(first, [Contributions()]).hooks(),
        mask_entries(first, importance="contribution", fraction=0.2),
        zero_sink_values(first),
    ):
        with pytest.raises(ValueError, match="made for another model"):
            second.run_with_hooks(ids, fwd_hooks=hooks)
        second.run_with_hooks(ids, fwd_hooks=[])


def test_the_default_data_type_changes_nothing(model):
    ids = tokens(3, 20)
    usual = analyze(model, ids, progress=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = analyze(model, ids, progress=False)
    finally:
        torch.set_default_dtype(before)
    xr.testing.assert_allclose(found, usual, rtol=1e-4)
