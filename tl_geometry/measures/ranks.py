"""Spearman correlation over masked rows, for many heads at once."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.measures.ranking import running_max, sort_with_order

_SAME = 2.0**-20


def average_ranks(
    x: Float[Tensor, "*axes n"],
    keep: Bool[Tensor, "*axes n"],
    size: Float[Tensor, "*axes n"] | None = None,
) -> Float[Tensor, "*axes n"]:
    """Ranks from 0 among the kept entries, ties sharing their mean; meaningless where not kept.

    ``size`` is the magnitude of the terms that a value was summed from (by default its own).
    Neighbours that differ by less than 2^-20 of it count as equal: repeated tokens tie up to
    rounding, which must not decide their order.

    >>> average_ranks(torch.tensor([3.0, 1.0, 3.0, 9.0]), torch.tensor([True, True, True, False])).tolist()
    [1.5, 0.0, 1.5, 3.0]
    """
    ordered, order = sort_with_order(torch.where(keep, x, torch.inf))
    sizes = (x.abs() if size is None else size).gather(-1, order)
    gap = ordered[..., 1:] - ordered[..., :-1]
    differs = ~(gap <= _SAME * torch.maximum(sizes[..., 1:], sizes[..., :-1]))
    place = torch.arange(x.shape[-1], device=x.device).expand_as(order)
    edge = torch.ones_like(order[..., :1], dtype=torch.bool)
    first = running_max(place * torch.cat([edge, differs], -1))
    beyond = x.shape[-1] - 1 - place  # counted from the end, so that the next edge is a largest one
    last = (
        x.shape[-1] - 1 - running_max((beyond * torch.cat([differs, edge], -1)).flip(-1)).flip(-1)
    )
    return torch.zeros_like(x).scatter(-1, order, (first + last).to(x.dtype) / 2)


def spearman(
    x: Float[Tensor, "*axes n"],
    others: tuple[Float[Tensor, "*axes n"], ...],
    keep: Bool[Tensor, "*axes n"],
    sizes: tuple[Float[Tensor, "*axes n"] | None, ...] | None = None,
) -> tuple[Float[Tensor, "*axes"], ...]:
    """Spearman's rank correlation of ``x`` with each of the others over the kept entries, in [-1, 1].

    ``sizes`` are those of :func:`average_ranks`, for ``x`` and each of the others. NaN where fewer
    than two entries are kept, or where either side is constant.

    >>> x, y = torch.tensor([1.0, 2.0, 3.0, 0.0]), torch.tensor([1.0, 8.0, 9.0, 7.0])
    >>> round(spearman(x, (y,), torch.tensor([True, True, True, False]))[0].item(), 6)
    1.0
    """
    every = torch.stack([x, *others])
    keep = keep & ~every.isnan().any(0)
    middle = (keep.sum(-1, keepdim=True).to(x.dtype) - 1) / 2
    size = torch.stack(
        [v.abs() if s is None else s for v, s in zip((x, *others), sizes, strict=True)]
    ) if sizes else None  # fmt: skip
    ranks = (average_ranks(every, keep.expand_as(every), size) - middle).masked_fill(~keep, 0)
    lengths = ranks.square().sum(-1).sqrt()
    found = (ranks[:1] * ranks[1:]).sum(-1) / (lengths[:1] * lengths[1:])
    return tuple(found.unbind(0))
