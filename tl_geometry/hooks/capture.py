"""Collect a layer's pattern, values and mixed values during a forward, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tl_geometry.hooks.sites import AttentionSite

__all__ = ["FwdHook", "LayerConsumer", "capture_hooks"]

FwdHook = tuple[str, Callable[..., None]]
"""What ``run_with_hooks(fwd_hooks=[...])`` takes: a hook name and a function of (tensor, hook)."""


LayerConsumer = Callable[[AttentionSite, Tensor, Tensor, Tensor], None]
"""Called with (site, pattern, v, z) as soon as one layer's tensors are complete; they are dropped when it returns."""


def capture_hooks(sites: Sequence[AttentionSite], consume: LayerConsumer) -> list[FwdHook]:
    """Forward hooks that hand each site's ``pattern``, ``v`` and ``z`` to ``consume``, in whatever order they fire.

    The hooks read only: they return nothing, and ``consume`` runs without gradients and outside of
        any autocast region, so
    that half-precision regions don't round what is measured. A forward that stops half-way leaves
    nothing that a later one could mix up: the first tensor that arrives twice starts its layer
    anew.

    >>> hooks = capture_hooks(attention_sites(model), lambda site, pattern, v, z: print(site.layer, pattern.shape))
    >>> model.run_with_hooks(tokens, fwd_hooks=hooks)
    0 torch.Size([1, 4, 9, 9])
    """
    hooks: list[FwdHook] = []
    for site in sites:
        held: dict[str, Tensor] = {}
        for kind, name in (("v", site.v_hook), ("pattern", site.pattern_hook), ("z", site.z_hook)):
            hooks.append(
                (name, partial(_receive, site=site, held=held, kind=kind, consume=consume))
            )
    return hooks


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
    if len(held) == 3:
        layer = dict(held)
        held.clear()
        with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
            consume(site, layer["pattern"], layer["v"], layer["z"])
