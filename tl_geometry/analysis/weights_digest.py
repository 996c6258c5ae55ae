"""A fingerprint of a model's parameters, the same on every device and with any number of threads."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

__all__ = ["weights_digest"]

CHUNK_ELEMENTS = 2**22
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_digest(model: Any) -> str:
    """Hexadecimal digest of names, shapes, data types and bits of all parameters.

    >>> weights_digest(model) == weights_digest(copy.deepcopy(model))
    True

    Each parameter enters by the sum of its bit patterns times the odd numbers, in 64-bit integers:
    exact in any order of summation, and changed by any edit of one entry and by permutations.
    """
    entries = [
        [name, list(parameter.shape), str(parameter.dtype), _bit_sum(parameter.detach())]
        for name, parameter in model.named_parameters()
    ]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _bit_sum(parameter: Tensor) -> int:
    flat = parameter.contiguous().flatten()
    odd = torch.arange(1, 2 * min(CHUNK_ELEMENTS, flat.numel()), 2)
    total = 0
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        chunk = flat[start : start + CHUNK_ELEMENTS].cpu()
        bits = chunk.view(_INTEGERS[chunk.element_size()]).to(torch.int64)
        total += int((bits * odd[: len(bits)]).sum()) * (2 * start + 1)
    return total
