"""What theory alone guarantees about separability, from lengths and angles, with a sink that is different.

The regime of constant norms with an anomalous sink is that of Mudarisov et al., arXiv 2602.01893;
the inequalities below are our reconstruction. For the squared distance to s, less |s|^2, Delta_j =
|y_j|^2 - 2 <y_j, s>, bounds on the cosines bound it from above for selected keys and from below for
the others. Pairs whose bounds overlap are possible inversions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from tl_geometry.arguments import one_of, real_number
from tl_geometry.measures.clusters import ULPS
from tl_geometry.measures.devices import constants
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.ranking import sort_rows
from tl_geometry.measures.regimes import Space
from tl_geometry.measures.row_blocks import RowBlock, at_sizes, hide_selected, row_blocks
from tl_geometry.measures.scaling import full_precision, power_of_two, safe_norm, scale
from tl_geometry.measures.separability import (
    TOP_N,
    checked_sizes,
    geometry_for,
    inversion_bounds,
    select_rows,
)

Range = tuple[float | int, float | int]
Bounds: TypeAlias = Sequence[float | int] | NDArray[Any] | Tensor
"""A range (low, high), in whatever holds two numbers."""


@dataclass(frozen=True)
class Certificate:
    """Guaranteed lower bounds for each row and N; NaN where N is not below the number of keys.

    Attributes:
        precision, recall, f_score: no lower values are possible, given the lengths and cosine
            bounds.
        inversions: pairs that could be in the wrong order; at least as many as are.
        query: position of each row's query.
    """

    precision: Float[Tensor, "batch head query top_n"]
    recall: Float[Tensor, "batch head query top_n"]
    f_score: Float[Tensor, "batch head query top_n"]
    inversions: Float[Tensor, "batch head query top_n"]
    query: Int[Tensor, "batch query"]


@dataclass(frozen=True)
class _Bounds:
    """Cosine bounds per document and head: between values that are no sinks, and between the sink's and theirs."""

    low: Tensor
    high: Tensor
    sink_low: Tensor
    sink_high: Tensor


@full_precision
def sink_aware_certificate(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"] | None = None,
    *,
    top_n: Sequence[int] | int = TOP_N,
    cosine: Bounds | None = None,
    sink_cosine: Bounds | None = None,
    sink_norm_ratio: float | int | None = None,
    space: Space = "head",
    queries: Literal["all", "last"] | int | Tensor = "all",
    available: Tensor | None = None,
    sink: SinkRule = "first",
) -> Certificate:
    """Bound precision, recall and F of the top-N keys from below, for Euclidean distance and one sink.

    >>> pattern = torch.tensor([[[[0.5, 0.3, 0.1, 0.1]] * 4]])
    >>> v = torch.tensor([[[[-0.1]], [[1.0]], [[1.0]], [[1.0]]]])
    >>> sink_aware_certificate(pattern, v, top_n=(1,), queries="last").f_score.item()
    1.0

    Args:
        cosine: assumed bounds on the cosines between values that are no sinks; measured per
            document and head by default.
        sink_cosine: assumed bounds on the cosine between the sink's value and the others; measured
            by default.
        sink_norm_ratio: assume constant norms: every value as long as the others, the sink's so
            many times as long. The measured lengths are used by default.

    Other arguments as in :func:`tl_geometry.separability`.

    Raises:
        TypeError: bounds or a ratio that are no numbers.
        ValueError: more than one sink in a row, bounds that are no range within [-1, 1], or a
            ratio that is negative or infinite.
    """
    sizes = checked_sizes(top_n)
    cosine, sink_cosine = _range("cosine", cosine), _range("sink_cosine", sink_cosine)
    one_of("space", space, ("head", "model"))
    if sink_norm_ratio is not None:
        sink_norm_ratio = real_number("sink_norm_ratio", sink_norm_ratio)
        if not 0 <= sink_norm_ratio < float("inf"):
            raise ValueError(
                "sink_norm_ratio is a ratio of lengths, so it must be finite and at least 0: got "
                f"{sink_norm_ratio}"
            )
    geometry = geometry_for(pattern, v, W_O, space=space, available=available, sink=sink)
    if geometry.sink_keys[0].shape[-1] > 1 and int(geometry.sinks.sum(-1).max()) > 1:
        raise ValueError(
            f"the certificate holds for one sink per row, but sink={sink!r} marks more"
        )
    rows, real = select_rows(geometry, queries)
    return certify_rows(
        geometry, row_blocks(geometry, rows, real, sizes), sizes,
        cosine=cosine, sink_cosine=sink_cosine, sink_norm_ratio=sink_norm_ratio, space=space,
    )  # fmt: skip


def _range(name: str, bounds: Any) -> Range | None:
    """The bounds of a cosine as two numbers, None as it is."""
    if bounds is None:
        return None
    if isinstance(bounds, Tensor | np.ndarray):
        bounds = bounds.tolist()
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise ValueError(f"{name} must be a range (low, high) within [-1, 1], got {bounds!r}")
    low, high = (real_number(f"each bound of {name}", bound) for bound in bounds)
    if not -1 <= low <= high <= 1:
        raise ValueError(f"{name} must be a range (low, high) within [-1, 1], got {bounds!r}")
    return low, high


def certify_rows(
    geometry: AttentionGeometry,
    blocks: Iterable[RowBlock],
    sizes: tuple[int, ...],
    *,
    cosine: Range | None = None,
    sink_cosine: Range | None = None,
    sink_norm_ratio: float | int | None = None,
    space: Space = "head",
) -> Certificate:
    """Certificates of some rows of each document, a block of rows at a time."""
    values = geometry.v.transpose(1, 2) if space == "head" else geometry.values
    if geometry.sinks.shape[1] > 1:  # sinks of their own for each query head
        values = geometry.per_head(values)
    lengths = geometry.per_head(_lengths(geometry, values, sink_norm_ratio))
    bounds = _Bounds(
        *(geometry.per_head(bound) for bound in _bounds(geometry, values, cosine, sink_cosine))
    )
    parts, rows = [], []
    for block in blocks:
        parts.append(_possible_inversions(geometry, block, lengths, bounds, sizes))
        rows.append(block.rows)
    inversions = torch.cat(parts, 2)
    return Certificate(*inversion_bounds(inversions, sizes), inversions, torch.cat(rows, 1))


def _lengths(
    geometry: AttentionGeometry, values: Tensor, sink_norm_ratio: float | int | None
) -> Tensor:
    if sink_norm_ratio is None:
        lengths = safe_norm(values)
        return scale(lengths, -power_of_two(lengths, -1))
    ones = torch.ones_like(values[..., 0])
    return torch.where(geometry.sinks, sink_norm_ratio, ones)


def _bounds(
    geometry: AttentionGeometry, values: Tensor, cosine: Range | None, sink_cosine: Range | None
) -> tuple[Tensor, ...]:
    real = geometry.real_keys.any(1, keepdim=True)
    others = (real & ~geometry.sinks).expand(values.shape[:3])
    sinks = geometry.sinks.expand(values.shape[:3])
    norms = safe_norm(values)
    unit = values / torch.where(norms > 0, norms, 1).unsqueeze(-1)
    # Rounding must not turn a bound into a claim.
    slack = 16 * torch.finfo(values.dtype).eps
    if cosine is None:
        low, high = _pair_range(geometry, unit, others)
        low, high = low - slack, high + slack
    else:
        low, high = (torch.full_like(norms[..., 0], bound) for bound in cosine)
    if sink_cosine is None:
        direction = torch.where(sinks.unsqueeze(-1), unit, 0).sum(-2)
        to_sink = torch.einsum("bhkd,bhd->bhk", unit, direction)
        sink_low = torch.where(others, to_sink, torch.inf).amin(-1) - slack
        sink_high = torch.where(others, to_sink, -torch.inf).amax(-1) + slack
    else:
        sink_low, sink_high = (torch.full_like(norms[..., 0], bound) for bound in sink_cosine)
    return tuple(bound[..., None, None] for bound in (low, high, sink_low, sink_high))


_AWAY = 4.0  # moves a cosine that does not count beyond all others


def _pair_range(geometry: AttentionGeometry, unit: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest cosine between two different values that are no sinks (0 where there are no two)."""
    low, high = [], []
    away = others.logical_not().to(unit.dtype) * _AWAY
    for part in geometry.blocks(geometry.n_keys, copies=4):
        keys = slice(0, part.stop)  # the other half says the same
        pairs = unit[:, :, part] @ unit[:, :, keys].transpose(-1, -2)
        same = pairs.diagonal(offset=part.start, dim1=-2, dim2=-1)
        pairs.add_(away[..., None, keys])
        same.fill_(_AWAY)
        low.append((pairs.amin(-1) + away[:, :, part]).amin(-1))
        pairs.sub_(2 * away[..., None, keys])
        same.fill_(-_AWAY)
        high.append((pairs.amax(-1) - away[:, :, part]).amax(-1))
    smallest, largest = torch.stack(low).amin(0), torch.stack(high).amax(0)
    none = smallest > largest
    return smallest.masked_fill(none, 0), largest.masked_fill(none, 0)


def _possible_inversions(
    geometry: AttentionGeometry,
    block: RowBlock,
    lengths: Float[Tensor, "batch head key"],
    bounds: _Bounds,
    sizes: tuple[int, ...],
) -> Float[Tensor, "batch head row top_n"]:
    """Pairs whose bounds overlap, for all sizes together."""
    alpha, keep = block.alpha, block.keep
    q = alpha * lengths[..., None, block.keys]
    order = block.order
    n = constants(sizes, q)
    chosen = torch.arange(order.shape[-1], device=order.device) < n.unsqueeze(-1)
    sinks = geometry.sinks[..., None, block.keys].expand(*q.shape[:2], 1, -1)
    is_sink = sinks.expand_as(q).gather(-1, order)
    best = q.gather(-1, order)
    others = best.masked_fill(is_sink, 0)
    total = at_sizes(others.cumsum(-1), sizes).unsqueeze(-1)
    q_sink = (q * sinks.to(q.dtype)).sum(-1, keepdim=True)
    pull = (q_sink * at_sizes(is_sink.cumsum(-1) > 0, sizes)).unsqueeze(-1)
    low, high, sink_low, sink_high = (x.unsqueeze(-1) for x in vars(bounds).values())
    best = best.unsqueeze(-2)
    upper = -best.square() - 2 * best * torch.where(
        is_sink.unsqueeze(-2), sink_low * total, low * (total - best) + pull * sink_low
    )
    wide = q.unsqueeze(-2)
    lower = (wide - 2 * (high * total + pull * sink_high)).mul_(wide)
    # A sink among the unselected is bounded by its own cosines.
    own = q_sink.unsqueeze(-1) * (q_sink.unsqueeze(-1) - 2 * sink_high * total)
    for key, real in zip(*(x.unbind(-1) for x in geometry.sink_keys), strict=True):
        key = key[..., None, None, None].expand(*lower.shape[:-1], 1)
        known = real[..., None, None, None] & (key < q.shape[-1])
        key = key.clamp(max=q.shape[-1] - 1)
        lower.scatter_(-1, key, torch.where(known, own, lower.gather(-1, key)))
    lower.add_(torch.zeros_like(keep, dtype=q.dtype).masked_fill_(~keep, torch.inf).unsqueeze(-2))
    hide_selected(lower, order, sizes)
    slack = (
        4
        * ULPS
        * torch.finfo(q.dtype).eps
        * ((total + pull).square() + q.amax(-1, keepdim=True).square().unsqueeze(-1))
    )
    reach = (upper + slack).masked_fill(~chosen, -torch.inf)
    inversions = torch.searchsorted(sort_rows(lower), reach, right=True).sum(-1).to(q.dtype)
    unknown = reach.isnan().any(-1)
    return inversions.masked_fill(unknown | (keep.sum(-1).unsqueeze(-1) <= n), torch.nan)
