"""Collect a layer's pattern, values, mixed values and residual stream during a forward, one layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tl_geometry.hooks.agreement import autocast_dtype
from tl_geometry.hooks.entries import FwdHook, HookFunction, hook_entries
from tl_geometry.hooks.sites import AttentionSite
from tl_geometry.hooks.stream import StreamPoints, stream_points
from tl_geometry.measures.devices import no_autocast

__all__ = ["Arrival", "LayerConsumer", "StreamConsumer", "capture_hooks"]

Arrival = Callable[[AttentionSite], None]
"""Called with a site when the first of its attention's tensors arrives, before the layer is complete."""

LayerConsumer = Callable[[AttentionSite, Tensor, Tensor, Tensor], None]
"""Called with (site, pattern, v, z) as soon as one layer's tensors are complete; they are dropped when it returns."""

StreamConsumer = Callable[[AttentionSite, Tensor, Tensor, Tensor], None]
"""Called at the end of a block: (site, residual stream before it, after it, what its attention reads)."""


def capture_hooks(
    model: Any,
    sites: Sequence[AttentionSite],
    consume: LayerConsumer,
    consume_stream: StreamConsumer | None = None,
    *,
    arrive: Arrival | None = None,
) -> list[FwdHook]:
    """Forward hooks that hand each site's ``pattern``, ``v`` and ``z`` to ``consume``, in whatever order they fire.

    With ``consume_stream`` they read the residual stream too, which is complete after the attention.
    ``arrive`` is told when a layer begins.
    The hooks read only: they return nothing, and the consumers run without gradients and outside of
    any autocast region, so that half-precision regions don't round what is measured. A forward that
    stops half-way leaves nothing that a later one could mix up: the first tensor that arrives twice
    starts its layer anew.

    >>> sites = attention_sites(model)
    >>> hooks = capture_hooks(model, sites, lambda site, pattern, v, z: print(site.layer, pattern.shape))
    >>> model.run_with_hooks(tokens, fwd_hooks=hooks)
    0 torch.Size([1, 4, 9, 9])

    Raises: ValueError if the residual stream is asked for and a block has no hooks of it.
    """
    targets: dict[str, HookFunction] = {}
    for site in sites:
        names = {"pattern": site.pattern_hook, "v": site.v_hook, "z": site.z_hook}
        begin = None if arrive is None else partial(arrive, site)
        _collect(targets, names, partial(_attention, site, consume), begin)
        if consume_stream is not None:
            points = stream_points(model, site)
            _collect(targets, points.names, partial(_stream, site, points, consume_stream))
    return hook_entries(model, targets)


def _attention(site: AttentionSite, consume: LayerConsumer, seen: dict[str, Tensor]) -> None:
    consume(site, seen["pattern"], seen["v"], seen["z"])


def _stream(
    site: AttentionSite, points: StreamPoints, consume: StreamConsumer, seen: dict[str, Tensor]
) -> None:
    consume(site, seen["before"], seen["after"], points.attention_input(seen))


def _collect(
    targets: dict[str, HookFunction],
    names: dict[str, str],
    complete: Callable[[dict[str, Tensor]], None],
    begin: Callable[[], None] | None = None,
) -> None:
    """Add functions that gather the tensors of these hooks by kind, and pass them on when all are there."""
    held: dict[str, Tensor] = {}
    for kind, name in names.items():
        receive = partial(
            _receive, held=held, kind=kind, number=len(names), complete=complete, begin=begin
        )
        # Two attentions of one block, in a decoder, share the block's hooks.
        targets[name] = partial(_both, targets[name], receive) if name in targets else receive


def _both(first: HookFunction, second: HookFunction, tensor: Tensor, hook: Any) -> None:
    first(tensor, hook)
    second(tensor, hook)


def _receive(
    tensor: Tensor,
    hook: Any,  # noqa: ARG001
    *,
    held: dict[str, Tensor],
    kind: str,
    number: int,
    complete: Callable[[dict[str, Tensor]], None],
    begin: Callable[[], None] | None,
) -> None:
    if kind in held:
        held.clear()
    if not held and begin is not None:
        begin()
    held[kind] = tensor.detach()
    if kind == "z" and tensor.dtype == torch.float32:
        # Some models widen again what an autocast region has rounded; measures must know it was.
        rounded = autocast_dtype(tensor.device)
        held[kind] = held[kind] if rounded == torch.float64 else held[kind].to(rounded)
    if len(held) == number:
        seen = dict(held)
        held.clear()
        with torch.no_grad(), no_autocast(tensor.device):
            complete(seen)
