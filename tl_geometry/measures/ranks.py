"""Spearman correlation over masked rows, for many heads at once."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.measures.ranking import sort_with_order

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
    first = torch.where(torch.cat([edge, differs], -1), place, 0).cummax(-1).values
    last = torch.where(torch.cat([differs, edge], -1), place, x.shape[-1])
    last = last.flip(-1).cummin(-1).values.flip(-1)
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
    for values in (x, *others):
        keep = keep & ~values.isnan()
    middle = (keep.sum(-1, keepdim=True).to(x.dtype) - 1) / 2
    ranks = [
        torch.where(keep, average_ranks(values, keep, size) - middle, 0)
        for values, size in zip((x, *others), sizes or (None,) * (1 + len(others)), strict=True)
    ]
    lengths = [rank.square().sum(-1).sqrt() for rank in ranks]
    return tuple(
        (ranks[0] * rank).sum(-1) / (lengths[0] * length)
        for rank, length in zip(ranks[1:], lengths[1:], strict=True)
    )
