"""All ablations with options that change much, for tests that hold for each of them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from ablations.runs import DELEGATED, Layer, look, model_of

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
from tl_geometry.hooks import attention_sites


def _means(model: Any) -> dict[Any, torch.Tensor]:
    return {s.layer: torch.full((s.n_kv_heads, s.d_head), 0.5) for s in attention_sites(model)}


def _heads(model: Any) -> list[tuple[int | str, int]]:
    return [(s.layer, head) for s in attention_sites(model) for head in (0, 3)]


# Each takes a model and the arguments that all ablations share.
ANYWHERE = {
    "zero": zero_sink_values,
    "rescale": lambda m, **kw: rescale_sink_values(m, -2, sink=[0, 1], **kw),
    "reference": lambda m, **kw: replace_sink_values(m, _means(m), **kw),
    "remove": remove_sinks,
    "tokens": lambda m, **kw: mask_tokens(m, [1, 4], **kw),
    "heads": lambda m, **kw: remove_heads(m, _heads(m), **kw),
    "heads, mean": lambda m, **kw: remove_heads(m, _heads(m), "mean", **kw),
    "identity": lambda m, **kw: mix_pattern(m, 0.6, **kw),
    "uniform": lambda m, **kw: mix_pattern(m, 0.6, "uniform", **kw),
    "sink": lambda m, **kw: mix_pattern(m, 0.6, "sink", sink=1, **kw),
}
NEED_WEIGHTS = {
    "mean": replace_sink_values,
    "renormalize": lambda m, **kw: remove_sinks(m, True, **kw),
    "one head": lambda m, **kw: zero_sink_values(m, heads=[(0, 1), (1, 2)], **kw),
    "attention": lambda m, **kw: mask_entries(m, importance="attention", fraction=0.2, **kw),
    "contribution": lambda m, **kw: mask_entries(
        m, importance="contribution", fraction=0.2, scope="layer", **kw
    ),
}
RANDOM = {
    "random": lambda m, **kw: mask_entries(m, importance="random", fraction=0.3, **kw),
    "permuted": lambda m, **kw: mix_pattern(m, 0.8, "permuted", **kw),
}


def ablations_for(case: tuple[str, str]) -> dict[str, Any]:
    """Those that a model supports."""
    if case[0] == "bridge" and case[1] in DELEGATED:
        return ANYWHERE
    return {**ANYWHERE, **NEED_WEIGHTS, **RANDOM}


@functools.cache
def made(case: tuple[str, str], name: str) -> list[Any]:
    """The hooks of an ablation for the shared model of a case."""
    return list(ablations_for(case)[name](model_of(case)))


@functools.cache
def edited(case: tuple[str, str], name: str) -> dict[int | str, Layer]:
    """What they do to its layers."""
    return look(case, made(case, name))
