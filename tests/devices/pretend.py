"""Pretend devices: tensors that live on a machine's memory and claim to be elsewhere.

A machine without accelerators can't show what happens on several of them. Here a layer's tensors say
that they are on ``meta:0``, ``meta:1``, ..., and hold their numbers on the side. Every operation runs
on these, after two questions: do all of its tensors claim the same device, and would a real
accelerator have to wait for the host (or the host for it)? The first is refused; the second is
written down in :attr:`Pretend.waits`. What comes out is numerically what the host would give.

Allowed are copies from one pretend device to another, and from the host with ``non_blocking=True``
(from pinned memory such a copy waits for nothing). Numbers of the host without axes may take part in
any operation, as they may on real devices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations whose result, or its shape, the host has to know.
_WAITING = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}
_COPIES = {"_to_copy", "copy_"}


class DeviceMixError(AssertionError):
    """An operation whose tensors are on different devices."""


class Far(Tensor):
    """A tensor that claims to be on a pretend device."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, device: torch.device) -> Far:
        far = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=device,
        )
        far.numbers = numbers.detach()
        return far

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Far({self.device}, {tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a far tensor outside of Pretend()")


def far(tensor: Tensor, device: str | torch.device) -> Far:
    """The same numbers on a pretend device."""
    return Far(tensor, torch.device(device))


def near(tensor: Any) -> Any:
    """The numbers of a far tensor; anything else as it is."""
    return tensor.numbers if isinstance(tensor, Far) else tensor


class Pretend(TorchDispatchMode):
    """The mode in which pretend devices work.

    Attributes:
        waits: the operations for which host and device would have waited for each other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.partition("::")[2]
        tensors: list[Tensor] = []
        plain = _near([*args], tensors)
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if target is not None and target.type == "meta":
            kwargs["device"] = torch.device("cpu")
        kwargs = {key: _near(x, tensors) for key, x in kwargs.items()}
        there = [x for x in tensors if isinstance(x, Far)]
        devices = {x.device for x in there}
        if any(x.device.type == "meta" for x in tensors if not isinstance(x, Far)):
            raise DeviceMixError(f"{name}: torch.tensor(..., device=) copies from the host")
        if name in _COPIES:
            self._copy(name, tensors, target, args, kwargs)
        else:
            here = [x for x in tensors if not isinstance(x, Far) and x.ndim > 0]
            if len(devices) > 1 or (devices and here):
                found = sorted(map(str, devices)) + ["cpu"] * bool(here)
                raise DeviceMixError(f"{name}: tensors on {', '.join(found)}")
            if there and (name in _WAITING or _by_mask(name, args)):
                self.waits.append(name)
        device = target or (there[0].device if there else None)
        if name == "copy_":
            device = args[0].device
        result = func(*plain, **kwargs)
        if device is None or device.type != "meta":
            return result
        given = {id(x.numbers): x for x in there}
        return _far(result, device, given)

    def _copy(
        self,
        name: str,
        tensors: list[Tensor],
        target: torch.device | None,
        args: Any,
        kwargs: dict[str, Any],
    ) -> None:
        source = tensors[-1].device.type
        goal = args[0].device.type if name == "copy_" else (target or tensors[0].device).type
        free = kwargs.get("non_blocking", False) and source == "cpu"
        if source != goal and not free:
            self.waits.append(f"{name} from {source} to {goal}")


def _near(x: Any, tensors: list[Tensor]) -> Any:
    """The arguments of an operation with numbers in place of far tensors; all tensors are noted."""
    if isinstance(x, Tensor):
        tensors.append(x)
        return near(x)
    return [_near(part, tensors) for part in x] if isinstance(x, (list, tuple)) else x


def _far(x: Any, device: torch.device, given: dict[int, Far]) -> Any:
    """The results of an operation as far tensors."""
    if isinstance(x, (list, tuple)):
        parts = [_far(part, device, given) for part in x]
        return parts if isinstance(x, list) else tuple(parts)
    if not isinstance(x, Tensor):
        return x
    # An operation in place returns what it was given.
    return given[id(x)] if id(x) in given else Far(x, device)


def _by_mask(name: str, args: Any) -> bool:
    """Whether entries are chosen by a mask, so that their number has to be known."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
