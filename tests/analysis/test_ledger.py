"""Activations that are not finite are refused, with their layer, instead of falling out of a mean."""

from __future__ import annotations

import math

import pytest
import torch
from analysis_data.reference import tokens
from zoo.architectures import build_hooked

from tl_geometry.analysis import Probe
from tl_geometry.analysis.smoothing import Smoothing
from tl_geometry.analysis.switches import Switches


def setter(hook, value, place=(0, 4, 0)):
    def edit(x, hook):
        x = x.clone()
        x[place] = value
        return x

    return [(hook, edit)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_broken_output_of_a_layer_is_refused(tiny_model, value):
    probe = Probe(tiny_model, [Smoothing()])
    edits = setter("blocks.1.hook_resid_post", value)
    tiny_model.run_with_hooks(tokens(2, 9), fwd_hooks=[*edits, *probe.hooks()])
    with pytest.raises(ValueError, match="NaN or infinite residual stream around layer 1: look"):
        probe.result()


def test_the_first_broken_layer_is_named(tiny_model):
    """The output of layer 0 breaks first, and with it the attention of layer 1."""
    probe, alone = Probe(tiny_model, [Smoothing()]), Probe(tiny_model, [Switches()])
    edits = setter("blocks.0.hook_resid_post", math.inf)
    hooks = [*edits, *probe.hooks(), *alone.hooks()]
    tiny_model.run_with_hooks(tokens(2, 9), fwd_hooks=hooks)
    with pytest.raises(ValueError, match="infinite residual stream around layer 0"):
        probe.check()
    with pytest.raises(ValueError, match=r"NaN or infinite activations .* at layer 1, head 0"):
        alone.check()


def test_a_broken_value_comes_before_the_stream_behind_it(tiny_model):
    probe = Probe(tiny_model, [Smoothing()])
    edits = setter("blocks.0.attn.hook_v", math.nan, (0, 4, 1))
    tiny_model.run_with_hooks(tokens(2, 9), fwd_hooks=[*edits, *probe.hooks()])
    with pytest.raises(ValueError, match="activations or output weights at layer 0, head 2"):
        probe.result()


def test_padding_may_hold_anything(tiny_model):
    """What stands at padded positions is no token, and reset forgets what was broken."""
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[0, 7:] = 0
    probe = Probe(tiny_model, [Smoothing()])
    for place, refused in (((0, 6, 0), True), ((0, 7, 0), False)):
        probe.reset()
        edits = setter("blocks.1.hook_resid_post", math.inf, place)
        hooks = [*edits, *probe.hooks(mask)]
        tiny_model.run_with_hooks(ids, attention_mask=mask, fwd_hooks=hooks)
        if refused:
            with pytest.raises(ValueError, match="residual stream around layer 1"):
                probe.check()
        else:
            assert probe.result().attrs["documents"] == 2


@pytest.mark.hooked
@pytest.mark.parametrize(
    ("measure", "hook"),
    [(Switches, "blocks.1.attn.hook_v"), (Smoothing, "blocks.1.hook_resid_pre")],
)
def test_half_spaces_name_the_layer(measure, hook):
    model = build_hooked("llama")
    probe = Probe(model, [measure(halfspace=True)])
    edits = setter(hook, math.nan, (0, 4, 0))
    with pytest.raises(ValueError, match=r"^layer 1: x holds NaN or infinite values"):
        model.run_with_hooks(tokens(2, 9), fwd_hooks=[*edits, *probe.hooks()])
