"""One probe reads each forward once; the same hooks may run again, and two probes may run together."""

from __future__ import annotations

import pytest
import torch
from analysis_data.reference import assert_equal, soften, tokens

from tl_geometry import doctor
from tl_geometry.analysis import Probe, Regimes, analyze, feed
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.separability import Separability
from tl_geometry.analysis.sinks import Sinks
from tl_geometry.analysis.smoothing import Smoothing
from tl_geometry.analysis.switches import Switches

TWICE = "two lists of this probe's hooks in one forward"


@pytest.mark.parametrize("layers", [None, [0], [1]])
@pytest.mark.parametrize("measure", [Contributions, Smoothing])
def test_hooks_of_one_probe_twice_in_a_run_are_refused(tiny_model, layers, measure):
    ids = tokens(3, 9)
    probe, alone = (Probe(tiny_model, [measure()], layers=layers) for _ in range(2))
    first = 0 if layers is None else layers[0]
    with pytest.raises(RuntimeError, match=f"layer {first} is read by {TWICE}"):
        tiny_model.run_with_hooks(ids, fwd_hooks=probe.hooks() + probe.hooks())
    # Nothing was taken in, so the batch can be run again.
    tiny_model.run_with_hooks(ids, fwd_hooks=probe.hooks())
    tiny_model.run_with_hooks(ids, fwd_hooks=alone.hooks())
    assert probe.result().attrs["documents"] == 3
    assert_equal(probe.result(), alone.result(), 1e-12)


def test_an_edit_between_the_two_lists_hides_nothing(tiny_model):
    probe = Probe(tiny_model, [Contributions()], layers=[1])
    edit = [("blocks.1.attn.hook_pattern", lambda pattern, hook: pattern.clone())]
    with pytest.raises(RuntimeError, match=TWICE):
        tiny_model.run_with_hooks(tokens(2, 9), fwd_hooks=probe.hooks() + edit + probe.hooks())


def test_one_list_twice_in_a_run_is_refused(tiny_model):
    probe = Probe(tiny_model, [Contributions()])
    hooks = probe.hooks()
    tiny_model.run_with_hooks(tokens(2, 9), fwd_hooks=hooks + hooks)
    with pytest.raises(RuntimeError, match="twice in one run"):
        probe.result()


def test_hooks_run_again_and_beside_another_probe(tiny_model):
    """Two lists that were made before either ran, one of them twice, and a second probe in each run."""
    ids = tokens(2, 9)
    one, other, plain = (Probe(tiny_model, [Contributions(), Smoothing()]) for _ in range(3))
    hooks, later = one.hooks(), one.hooks()
    for mine in (hooks, later, hooks):
        tiny_model.run_with_hooks(ids, fwd_hooks=mine + other.hooks())
        tiny_model.run_with_hooks(ids, fwd_hooks=plain.hooks())
    assert one.result().attrs["documents"] == 6
    assert_equal(one.result(), plain.result(), 1e-12)
    assert_equal(other.result(), plain.result(), 1e-12)


def test_a_forward_that_broke_off_is_not_taken_for_a_second_list(tiny_model):
    """It stops inside the first layer; the next list, and then the same list again, start anew."""
    ids = tokens(2, 9)
    probe = Probe(tiny_model, [Contributions()])

    def stop(tensor, hook):
        raise KeyboardInterrupt

    hooks = probe.hooks()
    with pytest.raises(KeyboardInterrupt):
        tiny_model.run_with_hooks(ids, fwd_hooks=[*hooks, ("blocks.0.attn.hook_pattern", stop)])
    for again in (probe.hooks(), hooks):
        tiny_model.run_with_hooks(ids, fwd_hooks=again)
    assert probe.result().attrs["documents"] == 4


def test_a_cache_is_read_after_hooks_have_run(tiny_model):
    ids = tokens(2, 9)
    probe = Probe(tiny_model, [Contributions()])
    tiny_model.run_with_hooks(ids, fwd_hooks=probe.hooks())
    with torch.no_grad():
        probe.read(tiny_model.run_with_cache(ids)[1])
    assert probe.result().attrs["documents"] == 4


# -- a block's output, which is the next block's input ---------------------------------------------------


@pytest.fixture
def reused(monkeypatch):
    """For each block's input whether it was known already."""
    found = []
    find = feed._Output.find

    def count(self, x):
        known = find(self, x)
        found.append(known is not None)
        return known

    monkeypatch.setattr(feed._Output, "find", count)
    return found


def shifted(x, hook):
    return -1.5 * x + torch.arange(x.shape[-1]) / 9


def shift(x, hook):
    x.mul_(-1.5).add_(torch.arange(x.shape[-1]) / 9)


def one_by_one(model, ids, mask, edits=(), edits_last=False, **options):
    """Each layer by a probe of its own, to which no other layer's output is known."""
    found, diagnosis = [], doctor(model)
    for layer in range(model.cfg.n_layers):
        probe = Probe(model, [Smoothing()], layers=[layer], diagnosis=diagnosis)
        hooks = probe.hooks(mask)
        both = [*hooks, *edits] if edits_last else [*edits, *hooks]
        model.run_with_hooks(ids, fwd_hooks=both, **options)
        found.append(probe.result())
    return found


MASK = torch.tensor([[0] * 4 + [1] * 9, [1] * 13, [1] * 8 + [0] * 5])


@pytest.mark.hooked
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("edit", [shift, shifted], ids=["in place", "anew"])
@pytest.mark.parametrize("edits_last", [False, True])
@pytest.mark.parametrize("point", ["resid_post", "resid_pre"])
def test_an_edit_between_two_blocks_is_seen(tiny_hooked, reused, mode, edit, edits_last, point):
    model, ids = soften(tiny_hooked(n_layers=3)), tokens(3, 13)
    edits = [(f"blocks.{0 if point == 'resid_post' else 1}.hook_{point}", edit)]
    with mode():
        expected = one_by_one(model, ids, MASK, edits, edits_last, attention_mask=MASK)
        probe = Probe(model, [Smoothing()])
        hooks = probe.hooks(MASK)
        both = [*hooks, *edits] if edits_last else [*edits, *hooks]
        reused.clear()
        model.run_with_hooks(ids, fwd_hooks=both, attention_mask=MASK)
        for layer, alone in enumerate(expected):
            assert_equal(probe.result().sel(layer=[layer]), alone, 1e-9)
    # Writes to an inference tensor are not counted, so that nothing can be known of it.
    assert reused[-1] == (mode is torch.no_grad)


@pytest.mark.hooked
def test_only_neighbours_share(tiny_hooked, reused):
    model = soften(tiny_hooked(n_layers=4))
    for layers, expected in (([0, 2], 0), ([1, 2], 1), (None, 3)):
        reused.clear()
        probe = Probe(model, [Smoothing()], layers=layers)
        for seed in range(2):
            model.run_with_hooks(tokens(2, 9, seed=seed), fwd_hooks=probe.hooks())
        assert sum(reused) == 2 * expected


@pytest.mark.hooked
def test_a_cache_shares_too(tiny_hooked, reused):
    model, ids = soften(tiny_hooked(n_layers=3)), tokens(3, 13)
    with torch.no_grad():
        cache = model.run_with_cache(ids, attention_mask=MASK)[1]
        probe = Probe(model, [Smoothing()])
        probe.read(cache, MASK)
        for layer, alone in enumerate(one_by_one(model, ids, MASK, attention_mask=MASK)):
            assert_equal(probe.result().sel(layer=[layer]), alone, 1e-9)


# -- what layers have in common ----------------------------------------------------------------------------


@pytest.mark.hooked
@pytest.mark.parametrize("sink", ["first", "auto", [0, 3]], ids=str)
def test_windows_that_take_turns_keep_masks_of_their_own(tiny_hooked, sink):
    turns = {"use_local_attn": True, "window_size": 4, "attn_types": ["local", "global", "local"]}
    model = soften(tiny_hooked(n_layers=3, **turns))
    diagnosis = doctor(model)
    ids = tokens(3, 13)
    measures = [Contributions, Sinks, lambda: Separability(top_n=(4, 1), queries=5)]
    probe = Probe(model, [make() for make in measures], sink=sink, diagnosis=diagnosis)
    hooks = probe.hooks(MASK)
    model.run_with_hooks(ids, fwd_hooks=hooks, attention_mask=MASK)
    for layer in range(model.cfg.n_layers):
        alone = Probe(
            model, [make() for make in measures], sink=sink, layers=[layer], diagnosis=diagnosis
        )
        model.run_with_hooks(ids, fwd_hooks=alone.hooks(MASK), attention_mask=MASK)
        assert_equal(probe.result().sel(layer=[layer]), alone.result(), 1e-9)


@pytest.mark.hooked
@pytest.mark.parametrize("budget", [1, "3KB"])
def test_no_number_depends_on_the_memory_budget(tiny_hooked, budget):
    model, ids = soften(tiny_hooked()), tokens(3, 13)
    found = []
    for given in (budget, None):
        measures = [Contributions(), Sinks(), Separability(top_n=(4, 1), queries=5), Regimes(), Switches()]  # fmt: skip
        probe = Probe(model, measures, memory_budget=given)
        model.run_with_hooks(ids, fwd_hooks=probe.hooks(MASK), attention_mask=MASK)
        found.append(probe.result())
    assert_equal(*found, 1e-5)


@pytest.mark.parametrize("budget", ["lots", 0, "0 GB", True])
def test_budgets_that_are_none(tiny_model, budget):
    with pytest.raises((TypeError, ValueError), match="memory_budget"):
        Probe(tiny_model, [Contributions()], memory_budget=budget)
    with pytest.raises((TypeError, ValueError), match="memory_budget"):
        analyze(tiny_model, tokens(2, 9), memory_budget=budget, progress=False)
