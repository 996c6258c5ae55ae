"""One probe reads each forward once; the same hooks may run again, and two probes may run together."""

from __future__ import annotations

import pytest
import torch
from analysis_data.reference import assert_equal, tokens

from tl_geometry.analysis import Probe
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.smoothing import Smoothing

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
