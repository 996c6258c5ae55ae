"""Where tensors are: those of one call on one device, and nothing that makes host and device wait for each other.

A hook that asks a device for a number (``item``, ``nonzero``, a mask as an index) stops the host until
everything before it is done. What runs inside a forward keeps to tensors; numbers of the host go to
the device by :func:`upload`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_devices", "check_numbers", "constants", "no_autocast", "seeded", "upload"]


def check_devices(**tensors: Any) -> None:
    """Refuse tensors that are not all on one device; what is no tensor has no say.

    >>> check_devices(pattern=torch.zeros(2), v=torch.zeros(2), b_V=None)

    Raises:
        ValueError: naming the arguments with their devices.
    """
    places = {name: x.device for name, x in tensors.items() if isinstance(x, Tensor)}
    if len(set(places.values())) > 1:
        found = ", ".join(f"{name} on {device}" for name, device in places.items())
        raise ValueError(
            f"all tensors must be on one device, got {found}: move them with .to(device)"
        )


def check_numbers(name: str, x: Tensor, why: str) -> None:
    """Refuse a meta tensor where the result depends on numbers.

    Raises:
        ValueError: naming the argument, with the reason.
    """
    if x.device.type == "meta":
        raise ValueError(f"{name} is on the meta device, which holds no numbers, but {why}")


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A region in which nothing is rounded to half precision behind our back, on any device."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def upload(x: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device; one of the host gets there without waiting for what the device is doing."""
    device = torch.device(device)
    if x.device.type != "cpu" or device.type in ("cpu", "mps"):
        return x.to(
            device
        )  # a copy to MPS that nobody waits for may read memory that is free again
    if device.type == "cuda":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def constants(values: Sequence[float | int], like: Tensor) -> Tensor:
    """Numbers of the host in the data type of a tensor and on its device.

    >>> constants((0.1, 0.2), torch.zeros(3, dtype=torch.float64)).tolist()
    [0.1, 0.2]
    """
    return upload(torch.tensor(values, dtype=like.dtype, device="cpu"), like.device)


def seeded(
    device: torch.device, seed: int, generator: torch.Generator | None = None
) -> torch.Generator | None:
    """The caller's generator, or a new one on the device; None on the meta device, where nothing is drawn.

    Raises:
        TypeError: something else than a generator of torch.
        ValueError: a generator of another device.
    """
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {generator!r}")
        if generator.device.type != device.type:
            raise ValueError(
                f"generator is on {generator.device}, the tensors are on {device}: make it with "
                f"torch.Generator({str(device)!r})"
            )
        return generator
    return None if device.type == "meta" else torch.Generator(device).manual_seed(seed)
