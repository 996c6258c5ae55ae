"""Chosen rows of a pattern, some at a time, and what scores of several sizes N do with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.ranking import top_keys


@dataclass(frozen=True)
class RowBlock:
    """Some rows of each document, taken from the pattern, with all keys that any of them may use.

    Attributes:
        part: which of the chosen rows these are.
        rows: positions of their queries.
        alpha: their attention, 0 outside ``keep``.
        keep: entries that count.
        most: how many of the best keys are looked at.
    """

    part: slice
    rows: Int[Tensor, "batch row"]
    alpha: Float[Tensor, "batch head row some_keys"]
    keep: Bool[Tensor, "batch head_or_1 row some_keys"]
    most: int

    @cached_property
    def order(self) -> Int[Tensor, "batch head row n"]:
        """The keys with the largest attention, best first."""
        return top_keys(self.alpha, self.keep, self.order_size)

    @property
    def order_size(self) -> int:
        """How many keys a ranking has."""
        return min(self.most, self.alpha.shape[-1])

    @property
    def keys(self) -> slice:
        """The keys that stand in the block."""
        return slice(0, self.alpha.shape[-1])


def row_blocks(
    geometry: AttentionGeometry,
    rows: Int[Tensor, "batch row"],
    real: Bool[Tensor, "batch row"],
    sizes: tuple[int, ...],
) -> Iterator[RowBlock]:
    """Take chosen rows from the pattern, so many at a time that scores of all sizes fit the memory budget."""
    for part in geometry.blocks(rows.shape[1], copies=2 * len(sizes) + 4):
        chosen, n_key = rows[:, part], geometry.n_keys
        if geometry.causal and chosen.device.type == "cpu":  # elsewhere the host would have to wait
            n_key = int(chosen.max()) + 1
        keep = geometry.take_rows(geometry.available[..., :n_key], chosen)
        keep = keep & real[:, None, part, None]
        alpha = geometry.take_rows(geometry.pattern[..., :n_key], chosen)
        yield RowBlock(part, chosen, alpha.masked_fill(~keep, 0), keep, max(sizes))


def take_vectors(
    vectors: Float[Tensor, "batch head key d"], keys: Int[Tensor, "batch head row n"]
) -> Float[Tensor, "batch head row n d"]:
    """The vectors of some keys of each row."""
    batch, head, n_key, d = vectors.shape
    start = torch.arange(batch * head, device=keys.device).view(batch, head, 1, 1) * n_key
    taken = vectors.reshape(-1, d).index_select(0, (keys + start).flatten())
    return taken.view(*keys.shape, d)


def at_sizes(
    x: Shaped[Tensor, "batch head row n"], sizes: tuple[int, ...]
) -> Shaped[Tensor, "batch head row size"]:
    """What a running sum or maximum over an order has come to at each size."""
    return torch.stack([x[..., min(size, x.shape[-1]) - 1] for size in sizes], -1)


def hide_selected(
    x: Float[Tensor, "batch head row size some_keys"],
    order: Int[Tensor, "batch head row n"],
    sizes: tuple[int, ...],
) -> None:
    """Put infinity in the place of the first n keys of the order, for each size n."""
    for place, size in enumerate(sizes):
        x.select(-2, place).scatter_(-1, order[..., :size], torch.inf)
