"""Each output split in the part of its sinks and the rest, for all that is asked about sinks' outputs.

With a the attention of a row to its sinks, s their projected value and m what the row takes from
elsewhere over 1 - a, o = a s + (1 - a) m. Everything about such a row happens in the plane of s and
m, so three lengths say all: |s|, m along s, and m perpendicular to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.measures.geometry import UNDEFINED_BELOW, AttentionGeometry
from tl_geometry.measures.scaling import safe_norm

RESOLUTION = 2.0**-23
_ROUNDING = 2.0**-16  # sums of weights in float32 are nearer to 1 than this
"""Rows that leave no more attention than this to other keys have no m: float32 cannot resolve 1 - a."""


@dataclass(frozen=True)
class RowCurves:
    """|a s + (1 - a) m| as a function of a, row by row, lengths in units of the head's frame.

    Attributes:
        along, across: m along s, and its length perpendicular to s.
        distance: |s - m|.
        optimum, optimum_unclipped: where the length is smallest; NaN where s = m.
        minimal_norm: the length there (as observed, where s = m).
        sign_change: where the sink's contribution weight changes its sign; NaN if nowhere.
    """

    along: Float[Tensor, "batch head query"]
    across: Float[Tensor, "batch head query"]
    distance: Float[Tensor, "batch head query"]
    optimum: Float[Tensor, "batch head query"]
    optimum_unclipped: Float[Tensor, "batch head query"]
    minimal_norm: Float[Tensor, "batch head query"]
    sign_change: Float[Tensor, "batch head query"]


@dataclass(frozen=True)
class SinkSplit:
    """Each output split in the part of its sinks and the rest, o = a s + rest, in the frame of its head.

    Attributes:
        attention: a.
        sink: s, once per head where there is one sink; zero where it is undefined.
        rest: the output without its sinks' part, (1 - a) m.
        rest_gross: the rest's length if nothing cancelled.
        other_attention: 1 - a, to full relative precision.
        sink_length: |s|.
        along, across: the rest along s, and its length perpendicular to s.
        rows: rows that count: later queries from which a sink can be seen.
        in_plane: those of them in which s and m are defined.
    """

    attention: Float[Tensor, "batch head query"]
    other_attention: Float[Tensor, "batch head query"]
    sink: Float[Tensor, "batch head query_or_1 rank"]
    rest: Float[Tensor, "batch head query rank"]
    rest_gross: Float[Tensor, "batch head query"]
    sink_length: Float[Tensor, "batch head query"]
    along: Float[Tensor, "batch head query"]
    across: Float[Tensor, "batch head query"]
    rows: Bool[Tensor, "batch head query"]
    in_plane: Bool[Tensor, "batch head query"]

    @cached_property
    def norm(self) -> Float[Tensor, "batch head query"]:
        """|o|."""
        return length_of(self.attention * self.sink_length + self.along, self.across)

    @cached_property
    def rest_norm(self) -> Float[Tensor, "batch head query"]:
        """|o| with the sinks' values set to zero."""
        return length_of(self.along, self.across)

    @cached_property
    def curve(self) -> RowCurves:
        """Where along its curve each row is shortest."""
        others = torch.where(self.in_plane, self.other_attention, 1)
        along, across = self.along / others, self.across / others
        towards = along - self.sink_length  # m - s is (towards, across)
        distance = length_of(towards, across)
        flat = ~(distance > UNDEFINED_BELOW * (self.sink_length + self.rest_gross / others))
        undefined = flat | ~self.in_plane
        over = torch.where(flat, 1, distance)
        # Ratios of lengths only: no length is squared.
        terms = (along / over, towards / over, across / over)
        m, step, side = (torch.where(undefined, 0, x) for x in terms)
        optimum = m * step + side.square()
        # Between its ends s and m the curve is shortest at their line's distance from the origin. A
        # difference of long vectors would lose it, where s is much shorter than m.
        rest = length_of(along, across)
        ends = torch.minimum(self.sink_length, rest)
        minimum = torch.where(towards < 0, self.sink_length * side, self.sink_length)
        minimum = torch.where(optimum > 0, torch.minimum(minimum, ends), rest)
        observed = length_of(along - self.attention * towards, others * across)
        negative = self.in_plane & (along < 0)
        change = -along / torch.where(negative, self.sink_length - along, 1)
        return RowCurves(
            along,
            across,
            distance,
            optimum.clamp(0, 1).masked_fill(undefined, torch.nan),
            optimum.masked_fill(undefined, torch.nan),
            torch.where(flat, observed, minimum),
            change.masked_fill(~negative, torch.nan),
        )


def split_outputs(geometry: AttentionGeometry) -> SinkSplit:
    """Split every output in its sinks' part and the rest."""
    rest, other_attention = _without_sinks(geometry)
    attention = geometry.sink_attention
    sink, known = _mean_sinks(geometry)
    sink_length = safe_norm(sink)
    direction = sink / torch.where(sink_length > 0, sink_length, 1).unsqueeze(-1)
    along = (rest * direction).sum(-1)
    across = safe_norm(rest - along.unsqueeze(-1) * direction)
    lengths = geometry.sink_vectors(geometry.value_norms.unsqueeze(-1)).transpose(-1, -2)
    sink_gross = (geometry.sink_columns(geometry.pattern) * lengths).sum(-1)
    rows = geometry.sink_rows.expand_as(attention)
    return SinkSplit(
        attention,
        other_attention,
        sink,
        rest,
        (geometry.gross - sink_gross).clamp(min=0),
        sink_length.expand_as(attention),
        along,
        across,
        rows,
        rows & known & (other_attention > RESOLUTION),
    )


def _without_sinks(
    geometry: AttentionGeometry,
) -> tuple[Float[Tensor, "batch head query rank"], Float[Tensor, "batch head query"]]:
    """Outputs with the sinks' values set to zero, and the attention that does not go to the sinks.

    Both are summed anew: differences from the output, and from 1, would drown a small rest in rounding.
    """
    kept = (~geometry.sinks).unsqueeze(-1)
    others = geometry.values.masked_fill(~kept, 0)
    ones = kept.to(others.dtype).expand(*others.shape[:-1], 1)
    others = torch.cat([others, ones], -1)
    pattern, others = geometry.pattern.flatten(0, 1), others.flatten(0, 1)
    parts = [torch.bmm(pattern[:, rows, keys], others[:, keys]) for rows, keys in geometry.spans()]
    both = torch.cat(parts, -2).view(*geometry.pattern.shape[:3], others.shape[-1])
    missing = 1 - geometry.sink_attention
    if geometry.rounded:
        return both[..., :-1], missing
    # Other sums than 1: a learned null sink, or an ablation.
    whole = (1 - geometry.totals.attention).abs() <= _ROUNDING
    return both[..., :-1], torch.where(whole, both[..., -1], missing)


def _mean_sinks(
    geometry: AttentionGeometry,
) -> tuple[Float[Tensor, "batch head query_or_1 rank"], Bool[Tensor, "batch head query_or_1"]]:
    """The sinks' projected values, weighted by the attention of each row, and where this is defined."""
    vectors = geometry.sink_vectors(geometry.values)
    if vectors.shape[-2] == 1:
        return vectors, torch.ones_like(vectors[..., 0], dtype=torch.bool)
    attention = geometry.sink_attention.unsqueeze(-1)
    seen = geometry.sink_seen
    single = seen.sum(-1, keepdim=True) == 1
    attended = attention > 0
    shares = geometry.sink_columns(geometry.pattern) / torch.where(attended, attention, 1)
    shares = torch.where(single, seen.to(shares.dtype), shares)
    return shares @ vectors, (single | attended).squeeze(-1)


def length_of(
    x: Float[Tensor, "batch head query"], y: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch head query"]:
    """Length of a vector in the plane, whose squares neither overflow nor underflow."""
    largest = torch.maximum(x.abs(), y.abs())
    some = largest > 0
    over = torch.where(some, largest, 1)
    square = torch.where(some, (x / over).square() + (y / over).square(), 1)
    return largest * square.sqrt()
