"""How much memory the temporaries of a measure may take."""

from __future__ import annotations

import math
import re
from typing import TypeAlias

import psutil
import torch

from tl_geometry.arguments import whole_number

MemoryBudget: TypeAlias = int | str | None
"""Bytes, a text such as ``"500MB"`` or ``"2GiB"``, or None: a quarter of what is free."""

SHARE = 4
_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**k for k, p in enumerate("KMGT", 1)}} | {
    f"{p}IB": 1024**k for k, p in enumerate("KMGT", 1)
}


def checked_budget(memory_budget: MemoryBudget) -> int | None:
    """The budget in bytes; None as it is.

    >>> checked_budget("1.5 KiB"), checked_budget(2048), checked_budget(None)
    (1536, 2048, None)

    Raises:
        TypeError: neither a number nor a text.
        ValueError: no amount of memory, or nothing at all.
    """
    if memory_budget is None:
        return None
    if not isinstance(memory_budget, str):
        return whole_number("memory_budget", memory_budget, 1)
    said = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", memory_budget.strip(), re.IGNORECASE)
    found = 0.0 if said is None else float(said[1]) * _UNITS.get(said[2].upper(), 0)
    if not 1 <= found < math.inf:
        raise ValueError(
            f'memory_budget must be bytes or a text such as "500MB" or "2GiB", got {memory_budget!r}'
        )
    return int(found)


def default_budget(device: torch.device) -> int:
    """A quarter of the memory that is free on a device now, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // SHARE
    return int(psutil.virtual_memory().available) // SHARE
