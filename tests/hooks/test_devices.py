"""Layers on devices of their own: nothing is mixed, and no hook makes host and device wait.

The devices are pretended (:mod:`devices.pretend`): real accelerators aren't needed, and the numbers
must be those of the host to the last bit. What is not shown is the speed and the rounding of a real one.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ablations.every import ablations_for
from ablations.runs import bridged, hooked, model_of
from analysis_data.reference import assert_equal, tokens
from devices.forwards import bring_back, on_devices, spread_weights
from devices.pretend import DeviceMixError, Pretend, far, near

from tl_geometry import (
    Contributions,
    Costs,
    Probe,
    Regimes,
    Separability,
    Sinks,
    Smoothing,
    Switches,
    doctor,
    mask_entries,
    mask_tokens,
    zero_sink_values,
)
from tl_geometry.hooks import attention_sites

CASES = [*hooked("llama"), *bridged("llama", "gemma2", "opt")]
DEFAULTS = (Contributions, Regimes, Sinks, Separability, Switches, Smoothing)
MASK = torch.ones(3, 20, dtype=torch.long)
MASK[1, :4] = MASK[2, 5:7] = 0


# -- the pretence itself -----------------------------------------------------------------------------

WAITING = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "nonzero": lambda x: x.nonzero(),
    "mask as index": lambda x: x[x > 3],
    "mask assigned": lambda x: x.index_put_((x > 3,), x.new_zeros(())),
    "masked_select": lambda x: x.masked_select(x > 3),
    "unique": torch.unique,
    "equal": lambda x: torch.equal(x, x),
    "cpu": lambda x: x.cpu(),
    "blocking copy": lambda x: torch.ones(2, 3).to(x.device),
    "copied in place": lambda x: x.copy_(torch.ones(2, 3)),
}
MIXED = {
    "another device": lambda x: x + torch.ones(3).to("meta:0", non_blocking=True),
    "the host": lambda x: x + torch.ones(3),
    "list as index": lambda x: x[:, [0, 1]],
    "constant": lambda x: x[0, 0] + torch.tensor([1.0], device=x.device),
}
REFUSED = {"tolist": lambda x: x.tolist(), "numpy": lambda x: x.numpy()}
FREE = {
    "arithmetic": lambda x: (x * 2 + 1).sum(-1) @ x,
    "number": lambda x: torch.where(x > 3, x, torch.nan).nanmean(),
    "slices": lambda x: x[:, 1:].gather(1, torch.zeros(2, 1, dtype=torch.long, device=x.device)),
    "between devices": lambda x: x.to("meta:0"),
    "upload": lambda x: x + torch.ones(3).to(x.device, non_blocking=True),
    "in place": lambda x: x.mul_(2),
}


def seen(operation):
    mode = Pretend()
    with mode:
        return near(operation(far(torch.arange(6.0).view(2, 3), "meta:1"))), mode.waits


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_noticed(name):
    assert len(seen(WAITING[name])[1]) == 1


@pytest.mark.parametrize("name", MIXED)
def test_what_is_mixed_is_refused(name):
    with pytest.raises(DeviceMixError):
        seen(MIXED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_leaves_for_the_host_is_refused(name):
    with pytest.raises(RuntimeError, match="not supported for tensor subclasses"):
        seen(REFUSED[name])


@pytest.mark.parametrize("name", FREE)
def test_what_is_free_keeps_its_numbers(name):
    found, waits = seen(FREE[name])
    assert not waits
    if name != "slices" and name != "between devices":
        x = torch.arange(6.0).view(2, 3)
        expected = x + 1 if name == "upload" else FREE[name](x)
        assert torch.equal(found, expected)


# -- the probe ---------------------------------------------------------------------------------------


def probed(model, measures, mask, **options):
    """A probe's result with every layer on its own device, what waited, and the ordinary result."""
    ids = tokens(3, 20)
    given = {} if mask is None else {"attention_mask": mask}
    mode, diagnosis = Pretend(), doctor(model, edits=False)
    with spread_weights():
        with mode:
            probe = Probe(model, measures(), diagnosis=diagnosis, **options)
            hooks = probe.hooks(**given)
        mode.waits.clear()
        model.run_with_hooks(ids, **given, fwd_hooks=on_devices(hooks, mode))
    bring_back([probe.ledger, *probe.measures])
    plain = Probe(model, measures(), diagnosis=diagnosis, **options)
    model.run_with_hooks(ids, **given, fwd_hooks=plain.hooks(**given))
    return probe.result(), mode.waits, plain.result()


@pytest.mark.parametrize("case", CASES)
def test_no_default_measure_waits_or_mixes_devices(case):
    found, waits, plain = probed(model_of(case), lambda: [make() for make in DEFAULTS], MASK)
    assert not waits
    assert_equal(found, plain, 0)


@pytest.mark.hooked
@pytest.mark.parametrize("sink", [1, (0, 2)], ids=str)
def test_sinks_by_number_do_not_wait(sink):
    model = model_of(("hooked", "llama"))
    measures = [Contributions, Regimes, Sinks, Switches]
    found, waits, plain = probed(model, lambda: [make() for make in measures], MASK, sink=sink)
    assert not waits
    assert_equal(found, plain, 0)


@pytest.mark.hooked
@pytest.mark.parametrize("measure", DEFAULTS)
def test_each_measure_alone(measure):
    found, waits, plain = probed(model_of(("hooked", "llama")), lambda: [measure()], MASK)
    assert not waits
    assert_equal(found, plain, 0)


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
def test_padding_that_is_looked_for_does_not_wait(case, monkeypatch):
    tokenizer = SimpleNamespace(pad_token_id=0, bos_token_id=1, padding_side="right")
    monkeypatch.setattr(model_of(case), "tokenizer", tokenizer)
    found, waits, plain = probed(model_of(case), lambda: [Sinks()], None)
    assert not waits
    assert_equal(found, plain, 0)


@pytest.mark.parametrize("case", [*hooked("llama", "gpt2"), *bridged("gemma2")])
def test_options_that_read_more_weights(case):
    options = {"output": "normed"} if case[1] == "gemma2" else {"value_bias": "remove"}
    found, waits, plain = probed(model_of(case), lambda: [Contributions()], MASK, **options)
    assert not waits
    assert_equal(found, plain, 0)


@pytest.mark.hooked
def test_sinks_that_the_pattern_or_a_mask_names_cost_one_number_a_layer():
    """How many there are decides the shape of what follows: the exception that the documentation names."""
    model = model_of(("hooked", "llama"))
    marked = torch.zeros(3, 20, dtype=torch.bool)
    marked[:, 8:10] = True
    for sink in ("auto", marked):
        found, waits, plain = probed(model, lambda: [Sinks(), Contributions()], MASK, sink=sink)
        assert len(waits) == 2
        assert_equal(found, plain, 0)


@pytest.mark.hooked
def test_what_is_computed_on_the_host_waits():
    """Convex programs, like distances of hulls: not among the default, and the other exception."""
    model = model_of(("hooked", "llama"))
    found, waits, plain = probed(model, lambda: [Costs(tokens=4)], MASK)
    assert waits
    assert_equal(found, plain, 0)


# -- ablations ---------------------------------------------------------------------------------------

FIRST_ONLY = ("rescale", "tokens", "sink")  # tokens by number: are there such tokens?
RANKED = ("attention", "contribution", "random")  # are there equal scores at the bound?
DRAWN = ("random", "permuted")  # numbers are drawn for the real tokens on the host


def allowed_waits(name, layers):
    """One for the check of each layer's edit, and those that the documentation names."""
    return layers * (1 + (name in RANKED) + (name in DRAWN)) + (name in FIRST_ONLY)


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama", "opt")])
def test_ablations_wait_once_a_layer_and_mix_nothing(case):
    model, ids, mask = model_of(case), tokens(2, 20), MASK[:2]
    layers = len(attention_sites(model))
    for name, make in ablations_for(case).items():
        expected = model.run_with_hooks(
            ids, attention_mask=mask, fwd_hooks=make(model, attention_mask=mask)
        )
        mode = Pretend()
        with spread_weights():
            with mode:
                hooks = make(model, attention_mask=mask)
            mode.waits.clear()
            found = model.run_with_hooks(
                ids, attention_mask=mask, fwd_hooks=on_devices(hooks, mode)
            )
        assert torch.equal(found, expected), name
        assert len(mode.waits) == allowed_waits(name, layers), (name, mode.waits)


# -- tensors that are somewhere else -----------------------------------------------------------------


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
def test_a_cache_on_another_device_than_the_weights_is_refused(case):
    model = model_of(case)
    _, cache = model.run_with_cache(tokens(2, 9))
    moved = {name: cache[name].to("meta") for name in cache.keys()}  # noqa: SIM118 - no iterator
    with pytest.raises(ValueError, match=r"layer 0: .*pattern on meta.*W_O on cpu"):
        Probe(model, [Contributions()]).read(moved)


@pytest.mark.hooked
def test_masks_without_numbers_are_refused():
    model = model_of(("hooked", "llama"))
    tokens_mask = torch.ones(2, 9, dtype=torch.bool, device="meta")
    entries = torch.ones(2, 4, 9, 9, dtype=torch.bool, device="meta")
    for name, call in {
        "attention_mask": lambda: Probe(model, [Sinks()]).hooks(tokens_mask),
        "mask_tokens: positions": lambda: mask_tokens(model, tokens_mask),
        "zero_sink_values: sink": lambda: zero_sink_values(model, sink=tokens_mask),
        "mask": lambda: mask_entries(model, entries),
    }.items():
        with pytest.raises(ValueError, match=f"^{name} is on the meta device, which holds no"):
            call()
