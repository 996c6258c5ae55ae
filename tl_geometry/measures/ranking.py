"""Sorting rows, and the N best keys of a row with ties to the lower key.

Rows in a host's memory are sorted by numpy, which is several times faster there than torch: the
measures of a corpus sort a lot.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

_LOW = 2**31 - 1  # the bits that hold a key
_HIDDEN = -(2**31)


def _by_numpy(x: Tensor) -> bool:
    """Whether numpy may work on a tensor: in a host's memory, with no derivative that it would not see."""
    return x.device.type == "cpu" and not (x.requires_grad or is_functorch_wrapped_tensor(x))


def sort_rows(x: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows n"]:
    """Each row in ascending order, NaN last. May overwrite ``x``: use what is returned.

    >>> sort_rows(torch.tensor([[3.0, 1.0, 2.0]])).tolist()
    [[1.0, 2.0, 3.0]]
    """
    if not _by_numpy(x):
        return x.sort(dim=-1).values
    x.numpy().sort(axis=-1)
    return x


def sort_with_order(
    x: Float[Tensor, "*rows n"],
) -> tuple[Float[Tensor, "*rows n"], Int[Tensor, "*rows n"]]:
    """Each row in ascending order, and the places of its entries; equal ones in their order. No NaN.

    >>> [part.tolist() for part in sort_with_order(torch.tensor([[3.0, 1.0, 3.0]]))]
    [[[1.0, 3.0, 3.0]], [[1, 0, 2]]]
    """
    if x.dtype != torch.float32 or not _by_numpy(x):
        found = x.sort(dim=-1, stable=True)
        return found.values, found.indices
    # Bits of a float are ordered as the number is, but for negative ones, which run backwards. With
    # the place behind them, values alone have to be sorted.
    bits = (x + 0.0).view(torch.int32)
    bits = (bits ^ ((bits >> 31) & _LOW)).long()
    packed = (bits << 32) | torch.arange(x.shape[-1])
    packed.numpy().sort(axis=-1)
    order = packed & (2**32 - 1)
    return x.gather(-1, order), order


def masked_median(
    x: Float[Tensor, "*rows n"], keep: Bool[Tensor, "*rows n"]
) -> Float[Tensor, "*rows"]:
    """Median of the kept entries of each row, NaN apart; the mean of the middle two, NaN where there is none.

    >>> x = torch.tensor([3.0, 1.0, 9.0, 2.0])
    >>> masked_median(x, torch.tensor([True, True, True, True])).item()
    2.5
    """
    keep = keep & ~x.isnan()
    count = keep.sum(-1, keepdim=True)
    ordered = sort_rows(x.masked_fill(~keep, torch.inf))
    middle = torch.cat([(count - 1).clamp(min=0) // 2, count // 2], -1).clamp(max=x.shape[-1] - 1)
    low, high = ordered.gather(-1, middle).unbind(-1)
    return (low + (high - low) / 2).masked_fill(count.squeeze(-1) == 0, torch.nan)


def running_max(x: Int[Tensor, "*rows n"]) -> Int[Tensor, "*rows n"]:
    """The largest entry of each row up to each place.

    >>> running_max(torch.tensor([1, 3, 2])).tolist()
    [1, 3, 3]
    """
    if not _by_numpy(x):
        return x.cummax(-1).values
    return torch.from_numpy(np.maximum.accumulate(x.numpy(), axis=-1))


def top_keys(
    scores: Float[Tensor, "*#rows key"], keep: Bool[Tensor, "*#rows key"], n: int
) -> Int[Tensor, "*#rows n"]:
    """Positions of the ``n`` largest non-negative scores among the kept keys, best first, equal ones in key order.

    Rows with fewer kept keys are filled up with keys that are not kept.

    >>> top_keys(torch.tensor([0.2, 0.5, 0.2, 0.5]), torch.tensor([True, True, True, True]), 3).tolist()
    [1, 3, 0]
    """
    n_key = scores.shape[-1]
    if scores.dtype == torch.float64:
        ranked = torch.where(keep, scores, -1.0).sort(dim=-1, descending=True, stable=True)
        return ranked.indices[..., :n]
    # The bits of a non-negative float32 are ordered as the number is. With the key behind them
    # every entry is different, so that topk, which breaks ties as it likes, has none to break.
    bits = (scores + 0.0).contiguous().view(torch.int32).long() << 31  # + 0.0: no negative zero
    last_first = torch.arange(n_key - 1, -1, -1, device=scores.device)
    packed = torch.where(keep, bits, _HIDDEN) | last_first
    best = packed.topk(n, dim=-1).values
    return n_key - 1 - (best & _LOW)
