"""Entries of ``run_with_hooks(fwd_hooks=...)`` that every model class takes at its own price."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

__all__ = ["FwdHook", "HookFunction", "hook_entries"]

HookFunction = Callable[[Tensor, Any], Tensor | None]
"""A function (tensor, hook) that returns nothing, or the tensor that takes the place of the one given."""

FwdHook = tuple[str | Callable[[str], bool], Callable[..., Tensor | None]]
"""An entry of ``run_with_hooks(fwd_hooks=[...])``: a hook name, or a filter of names, and a function (tensor, hook)."""


def hook_entries(model: Any, functions: Mapping[str, HookFunction]) -> list[FwdHook]:
    """Turn functions by hook name into entries of ``fwd_hooks``.

    >>> model.run_with_hooks(tokens, fwd_hooks=hook_entries(model, {"blocks.0.attn.hook_z": lambda z, hook: 0 * z}))

    The bridge of TransformerLens 3 collects all of its hooks anew for every entry of the list, which
    costs more than a forward of a small model. So it gets one entry: a filter over the names that
    the hook points themselves carry.

    Raises: ValueError while another model runs them, even one of the same shape.
    """
    points = model.hook_dict
    own = {name: partial(_on_own, points[name], function) for name, function in functions.items()}
    if points is model.hook_dict:
        return list(own.items())
    by_point = {points[name].name: function for name, function in own.items()}
    return [(by_point.__contains__, partial(_dispatch, by_point))]


def _on_own(point: Any, function: HookFunction, tensor: Tensor, hook: Any) -> Tensor | None:
    """Call a function at the hook point of its own model only: its weights are those of no other."""
    if hook is not point and isinstance(hook, type(point)):
        raise ValueError(
            f"these hooks were made for another model than the one that runs them (at {hook.name}): make "
            "them anew, from the model that runs"
        )
    return function(tensor, hook)


def _dispatch(
    by_point: Mapping[str | None, HookFunction], tensor: Tensor, hook: Any
) -> Tensor | None:
    return by_point[hook.name](tensor, hook)
