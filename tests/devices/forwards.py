"""Forwards of a model on the host whose layers claim to be on devices of their own while our hooks run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import tl_geometry.ablations.effect as effect
import tl_geometry.analysis.reading as reading
import tl_geometry.hooks.stream as stream
import tl_geometry.measures.layer as layer
from devices.pretend import Pretend, far, near
from tl_geometry.hooks.sites import AttentionSite

_WEIGHTS = ("W_Q", "W_K", "W_V", "W_O", "b_V", "b_O")


def device_of(index: int) -> str:
    """The pretend device of a layer."""
    return f"meta:{index}"


@contextmanager
def spread_weights() -> Iterator[None]:
    """Each site's weights claim to be on its layer's device, and its norms take tensors from there."""
    with ExitStack() as stack:
        for name in _WEIGHTS:
            stack.enter_context(mock.patch.object(AttentionSite, name, _on_device(name)))
        for module in (stream, effect):
            stack.enter_context(mock.patch.object(module, "apply_norm", _norm(module.apply_norm)))
        # Unlike meta tensors, these hold numbers.
        stack.enter_context(mock.patch.object(layer, "check_numbers"))
        scale = _scale(reading.post_norm_scale)
        stack.enter_context(mock.patch.object(reading, "post_norm_scale", scale))
        yield


def _on_device(name: str) -> property:
    read = getattr(AttentionSite, name).fget

    def get(site: AttentionSite) -> Any:
        weight = read(site)
        return None if weight is None else far(weight, device_of(site.index))

    return property(get)


def _norm(apply: Any) -> Any:
    return lambda module, x: far(apply(module, near(x)), x.device)


def _scale(read: Any) -> Any:
    def get(site: AttentionSite) -> Any:
        with mock.patch.object(AttentionSite, "device", "cpu"):
            scale = read(site)
        return None if scale is None else far(scale, device_of(site.index))

    return get


def on_devices(entries: Sequence[Any], mode: Pretend) -> list[Any]:
    """The same hooks, each given its tensor on its layer's device (that of layer 0 before the blocks)."""
    return [(name, _wrapped(function, mode)) for name, function in entries]


def _wrapped(function: Any, mode: Pretend) -> Any:
    def run(x: Any, hook: Any) -> Any:
        block = re.search(r"blocks\.(\d+)\.", hook.name)
        with mode:
            found = function(far(x, device_of(int(block[1]) if block else 0)), hook)
        return near(found)

    return run


def bring_back(metrics: Sequence[Any]) -> None:
    """Put the sums of accumulators on the host, as a result does."""
    for metric in metrics:
        for name in metric._defaults:
            setattr(metric, name, near(getattr(metric, name)))
