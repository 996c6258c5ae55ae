"""Attention switches: how a head says nothing, or keeps to itself.

A *hard* switch turns a row's output off, for which a head that can't mix its values to zero needs a
sink with a small value. A *soft* switch lets no other token in: the row attends to itself, and the
head acts like an MLP (:mod:`tl_geometry.measures.mixing` says how far).

Source: Sukenik et al., arXiv 2605.08453.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.arguments import real_number
from tl_geometry.measures.devices import constants
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.ranking import masked_median
from tl_geometry.measures.scaling import full_precision, safe_norm
from tl_geometry.measures.sinks import masked_mean

FRACTIONS: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
"""Shares of a typical value's length below which an output counts as off."""


@dataclass(frozen=True)
class SwitchRates:
    """How often each head is off, and what it attends to meanwhile, per document.

    Attributes:
        off_rate: share of rows that are off, for each fraction; NaN where the median length of the
            other values is 0 or there is none, and where an output or value of the head is not
            finite.
        sink_rate_off, sink_rate_on: mean attention to the sinks of the rows that are off, and of
            the others; NaN where there is no such row, or no off rate.
        null_sink_rate_off, null_sink_rate_on: the same for what is left of a row's attention, which a
            learned null sink takes.
        diagonal_attention: mean attention of a row to its own token; NaN in cross-attention.
        fractions: of the median length, in the order of the last axis.
    """

    off_rate: Float[Tensor, "batch head fraction"]
    sink_rate_off: Float[Tensor, "batch head fraction"]
    sink_rate_on: Float[Tensor, "batch head fraction"]
    null_sink_rate_off: Float[Tensor, "batch head fraction"]
    null_sink_rate_on: Float[Tensor, "batch head fraction"]
    diagonal_attention: Float[Tensor, "batch head"]
    fractions: tuple[float, ...]


@full_precision
def switch_rates(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    fractions: Sequence[float | int] = FRACTIONS,
    available: Tensor | None = None,
    sink: SinkRule = "first",
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
    cross: bool = False,
) -> SwitchRates:
    """Count the rows whose output is short, |o_i| < f * median_j |v_j W_O| over the keys that are no sink.

    >>> pattern = torch.tensor([[[[1.0, 0.0, 0.0], [0.95, 0.05, 0.0], [0.1, 0.2, 0.7]]]])
    >>> v = torch.tensor([[[[0.0]], [[1.0]], [[1.0]]]])
    >>> rates = switch_rates(pattern, v, torch.ones(1, 1, 1), fractions=(0.1,))
    >>> rates.off_rate.item(), round(rates.sink_rate_off.item(), 2), round(rates.sink_rate_on.item(), 2)
    (0.5, 0.95, 0.1)

    Rows whose query is itself a sink are left out throughout, rows that can't see a sink in the
    sink rates. The other arguments are those of :func:`tl_geometry.contribution_weights` and
    :func:`tl_geometry.sink_rate`.

    Raises:
        TypeError: inputs that are not floating point, or fractions that are no numbers.
        ValueError: shapes that do not fit, a sink outside the sequence, or a fraction that is not
            positive.
    """
    checked = checked_fractions(fractions)
    geometry = AttentionGeometry(
        pattern, v, W_O, available=available, sink=sink, value_bias=value_bias, b_V=b_V,
        output=output, norm_weight=norm_weight, cross=cross,
    )  # fmt: skip
    return switches(geometry, checked)


def checked_fractions(fractions: Any) -> tuple[float, ...]:
    """The fractions as a tuple of positive floats.

    Raises:
        TypeError: no numbers.
        ValueError: none, or one that is not positive and finite.
    """
    if isinstance(fractions, str) or not isinstance(fractions, Iterable):
        raise TypeError(f"fractions must hold positive shares of a length, got {fractions!r}")
    checked = tuple(real_number("each of fractions", f) for f in fractions)
    if not checked or not all(0 < f < float("inf") for f in checked):
        raise ValueError(f"fractions must hold positive shares of a length, got {fractions!r}")
    return checked


def own_rows(geometry: AttentionGeometry) -> Bool[Tensor, "batch head_or_1 query"]:
    """Real rows whose query is no sink."""
    return geometry.rows & ~geometry.sink_queries


def switches(geometry: AttentionGeometry, fractions: tuple[float, ...]) -> SwitchRates:
    """Off rates with their sink rates, and the diagonal's share of attention."""
    others = geometry.real_keys.any(1, keepdim=True) & ~geometry.sinks
    norms = geometry.value_norms
    typical = masked_median(norms, others.expand_as(norms))
    # An output that has cancelled to rounding error is a short one, one that is no number neither.
    length = safe_norm(geometry.outputs).unsqueeze(-2)
    rows = own_rows(geometry).unsqueeze(-2)
    unknown = (~length.isfinite() & rows).any(-1).squeeze(-1) | (~norms.isfinite() & others).any(-1)
    limit = typical.masked_fill((typical == 0) | unknown, torch.nan)[..., None, None]
    limit = limit * constants(fractions, length)[:, None]
    off = length < limit
    later = geometry.sink_rows.unsqueeze(-2) & ~limit.isnan()
    sink_rate, null_rate = (
        x.unsqueeze(-2).expand(off.shape)
        for x in (geometry.sink_attention, geometry.null_attention)
    )
    rate = masked_mean(off.to(length.dtype), rows & ~limit.isnan())
    own = torch.full_like(length[..., 0, 0], torch.nan)
    if not geometry.cross:
        own = masked_mean(geometry.pattern.diagonal(dim1=-2, dim2=-1), rows.squeeze(-2))
    return SwitchRates(
        rate,
        masked_mean(sink_rate, later & off),
        masked_mean(sink_rate, later & ~off),
        masked_mean(null_rate, later & off),
        masked_mean(null_rate, later & ~off),
        own,
        fractions,
    )
