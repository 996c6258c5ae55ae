"""Collect a layer's pattern, values and mixed values during a forward, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tl_geometry.hooks.sites import AttentionSite

__all__ = ["FwdHook", "LayerConsumer", "capture_hooks"]

FwdHook = tuple[str | Callable[[str], bool], Callable[..., None]]
"""An entry of ``run_with_hooks(fwd_hooks=[...])``: a hook name, or a filter of names, and a function (tensor, hook)."""


_KINDS = ("v", "pattern", "z")

LayerConsumer = Callable[[AttentionSite, Tensor, Tensor, Tensor], None]
"""Called with (site, pattern, v, z) as soon as one layer's tensors are complete; they are dropped when it returns."""


def capture_hooks(
    model: Any, sites: Sequence[AttentionSite], consume: LayerConsumer
) -> list[FwdHook]:
    """Forward hooks that hand each site's ``pattern``, ``v`` and ``z`` to ``consume``, in whatever order they fire.

    The hooks read only: they return nothing, and ``consume`` runs without gradients and outside of
    any autocast region, so that half-precision regions don't round what is measured. A forward that
    stops half-way leaves nothing that a later one could mix up: the first tensor that arrives twice
    starts its layer anew.

    >>> sites = attention_sites(model)
    >>> hooks = capture_hooks(model, sites, lambda site, pattern, v, z: print(site.layer, pattern.shape))
    >>> model.run_with_hooks(tokens, fwd_hooks=hooks)
    0 torch.Size([1, 4, 9, 9])
    """
    targets: dict[str, Callable[[Tensor, Any], None]] = {}
    for site in sites:
        held: dict[str, Tensor] = {}
        for kind, name in zip(_KINDS, (site.v_hook, site.pattern_hook, site.z_hook), strict=True):
            targets[name] = partial(_receive, site=site, held=held, kind=kind, consume=consume)
    points = model.hook_dict
    if points is model.hook_dict:
        return list(targets.items())
    # The bridge of TransformerLens 3 collects all of its hooks anew for every entry of the list,
    # which costs more than a forward of a small model. So it gets one entry: a filter over the
    # names that the hook points themselves carry.
    by_point = {points[name].name: receive for name, receive in targets.items()}

    def dispatch(tensor: Tensor, hook: Any) -> None:
        by_point[hook.name](tensor, hook)

    return [(by_point.__contains__, dispatch)]


def _receive(
    tensor: Tensor,
    hook: Any,  # noqa: ARG001
    *,
    site: AttentionSite,
    held: dict[str, Tensor],
    kind: str,
    consume: LayerConsumer,
) -> None:
    if kind in held:
        held.clear()
    held[kind] = tensor.detach()
    if len(held) == len(_KINDS):
        layer = dict(held)
        held.clear()
        with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
            consume(site, layer["pattern"], layer["v"], layer["z"])
