"""The scoring behind separability: selected contributions around their sum, a block of rows at a time.

No tensor of shape ``query key d_head``: the N best come from a partial selection, their sums for all N from one small
product, and the order of distances from D^2 - |s|^2 = |y|^2 - 2 <y, s>.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_geometry.measures.devices import constants, upload
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.ranking import sort_rows, top_keys
from tl_geometry.measures.regimes import Space
from tl_geometry.measures.row_blocks import (
    RowBlock,
    at_sizes,
    hide_selected,
    take_vectors,
)
from tl_geometry.measures.scaling import power_of_two, scale, scaled_length

RankBy: TypeAlias = Literal["attention", "value_weighted", "random"]
Distance: TypeAlias = Literal["euclidean", "cosine"]

ULPS = 4
"""Squared distances closer than so many units in the last place of a row's scale count as equal.

The scale is |s|^2 plus the largest |y|^2 among the selected: that of the distances near the
boundary. Keys that are much longer are far away, and must not make small distances look equal.
"""

_COSINE_FLOOR = 1e-12
_MIX = 1_000_003  # keeps the seeds of neighbouring documents and layers apart


@dataclass(frozen=True)
class SeparabilityScores:
    """How well the selected keys of each row are separated, for each N; NaN where N is not below the number of keys.

    Attributes:
        precision: N / (N + unselected keys no farther from s than the farthest selected one).
        recall: share of the selected keys that are nearer to s than every unselected one.
        f_score: harmonic mean of both, 0 where recall is 0. With N = 1 and Euclidean distance it is
            always 1.
        margin: distance of the nearest unselected minus that of the farthest selected key; above 0
            if separable. In units of the values (dimensionless for cosine distance).
        inversions: pairs (selected, unselected) in the wrong order.
        query: position of each row's query.
        f_low, f_high: for random rankings, the central 95 % of f_score over the repeats (other
            fields are means); else None.
    """

    precision: Float[Tensor, "batch head query top_n"]
    recall: Float[Tensor, "batch head query top_n"]
    f_score: Float[Tensor, "batch head query top_n"]
    margin: Float[Tensor, "batch head query top_n"]
    inversions: Float[Tensor, "batch head query top_n"]
    query: Int[Tensor, "batch query"]
    f_low: Float[Tensor, "batch head query top_n"] | None = None
    f_high: Float[Tensor, "batch head query top_n"] | None = None


class Scorer:
    """Scores blocks of rows, all sizes N together; what several rankings have in common is computed once.

    >>> from tl_geometry.measures.row_blocks import row_blocks
    >>> pattern, v = torch.full((1, 1, 4, 4), 0.25), torch.eye(4).view(1, 4, 1, 4)
    >>> geometry = AttentionGeometry(pattern, v, torch.eye(4)[None])
    >>> scorer, last = Scorer(geometry, (1, 2)), geometry.spread_rows(1)
    >>> scorer.score_rows(row_blocks(geometry, *last, scorer.sizes)).f_score.flatten().tolist()
    [1.0, 1.0]

    Inversions and margins cost about as much as all the rest. Without ``margins`` only their signs are right,
    and all are 1 or -1.
    """

    def __init__(
        self,
        geometry: AttentionGeometry,
        sizes: tuple[int, ...],
        *,
        distance: Distance = "euclidean",
        space: Space = "head",
        margins: bool = True,
    ) -> None:
        self.geometry, self.sizes, self.distance, self.margins = geometry, sizes, distance, margins
        values = geometry.head_values if space == "head" else geometry.values
        # Values at a scale of order one; a margin is a length, so it goes back to its own at the end.
        exponent = power_of_two(values, (-2, -1))
        self.values: Float[Tensor, "batch head key d"] = scale(values, -exponent)
        self.lengths: Float[Tensor, "batch head key"] = torch.linalg.vector_norm(
            self.values, dim=-1
        )
        if space == "model":
            exponent = exponent + geometry.frame.exponent[:, None, None]
        self.exponent: Int[Tensor, "batch head 1 1"] = exponent

    def score_rows(
        self,
        blocks: Iterable[RowBlock],
        *,
        rank_by: RankBy = "attention",
        exclude_sink: bool = False,
        random: Float[Tensor, "batch row key"] | None = None,
        inversions: bool = True,
    ) -> SeparabilityScores:
        """Scores of some rows of each document, a block of rows at a time; no ``inversions`` are NaN."""
        found, rows = [], []
        for block in blocks:
            alpha, keep = block.alpha, block.keep
            if exclude_sink:
                keep = keep & ~self.geometry.sinks[..., None, block.keys]
                alpha = alpha * keep.to(alpha.dtype)
            lengths = alpha * self.lengths[..., None, block.keys]
            if rank_by == "attention" and not exclude_sink:
                order = block.order
            else:
                ranking = alpha if rank_by == "attention" else lengths
                if random is not None:
                    ranking = random[:, None, block.part, block.keys].expand_as(alpha)
                order = top_keys(ranking, keep, block.order_size)
            found.append(self._score(alpha, keep, lengths, order, inversions))
            rows.append(block.rows)
        whole = (torch.cat(parts, 2) for parts in zip(*found, strict=True))
        precision, recall, f_score, margin, pairs = whole
        return SeparabilityScores(precision, recall, f_score, margin, pairs, torch.cat(rows, 1))

    def _score(
        self,
        alpha: Float[Tensor, "batch head row some_keys"],
        keep: Bool[Tensor, "batch head_or_1 row some_keys"],
        lengths: Float[Tensor, "batch head row some_keys"],
        order: Int[Tensor, "batch head row n"],
        inversions: bool,
    ) -> tuple[Tensor, ...]:
        """Precision, recall, F, margin and inversions of rows whose best keys come in this order."""
        # Each row at a scale of order one as well: where the sink is left out, all the rest can be tiny.
        row_exponent = power_of_two(lengths, -1)
        alpha, lengths = (scale(x, -row_exponent) for x in (alpha, lengths))
        exponent = self.exponent + row_exponent
        n = constants(self.sizes, alpha)
        chosen = torch.arange(order.shape[-1], device=order.device) < n.unsqueeze(-1)
        best = alpha.gather(-1, order).unsqueeze(-2) * chosen.to(alpha.dtype)
        sums = best @ take_vectors(self.values, order)
        square = sums.square().sum(-1)
        along = self._products(sums, alpha.shape[-1]).mul_(alpha.unsqueeze(-2))
        if self.distance == "cosine":
            # The guard of the definition, in the units of this row.
            floor = torch.full_like(square[..., :1], _COSINE_FLOOR)
            floor = scale(floor, (-2 * exponent).clamp(-126, 126))
            floor = floor.clamp(min=torch.finfo(floor.dtype).tiny).unsqueeze(-1)
            gap = along.div_(lengths.unsqueeze(-2) * square.sqrt().unsqueeze(-1) + floor).neg_()
            slack = torch.ones_like(square)
        else:
            # D^2 - |s|^2 = |y|^2 - 2 <y, s>: the order of distances without computing them.
            gap = along.mul_(-2).add_(lengths.square().unsqueeze(-2))
            longest = lengths.gather(-1, order).square().cummax(-1).values
            slack = square + at_sizes(longest, self.sizes)
        gap.add_(
            torch.zeros_like(keep, dtype=gap.dtype).masked_fill_(~keep, torch.inf).unsqueeze(-2)
        )
        slack = slack * ULPS * torch.finfo(gap.dtype).eps
        counts = self._count(gap, order, chosen, slack, inversions)
        margin = counts.separated.to(gap.dtype) * 2 - 1
        if self.margins:
            far, near = counts.farthest_selected, counts.nearest_other
            if self.distance == "euclidean":
                far, near = (
                    scaled_length(self._distance(alpha, sums, key), exponent)
                    for key in (counts.farthest_key, counts.nearest_key)
                )
            exact, tiny = near - far, torch.finfo(gap.dtype).tiny
            margin = torch.where(counts.separated, exact.clamp(min=tiny), exact.clamp(max=0))
        unknown = (counts.farthest_selected + counts.nearest_other).isnan()
        undefined = unknown | (keep.sum(-1).unsqueeze(-1) <= n)
        return _rates(n, counts, margin, undefined=undefined)

    def _products(
        self, sums: Float[Tensor, "batch head row size d"], n_key: int
    ) -> Float[Tensor, "batch head row size some_keys"]:
        """Inner products of every sum with every value."""
        # With batch and head as one axis, the slice of keys needs no copy.
        values = self.values.flatten(0, 1)[:, :n_key].transpose(1, 2)
        found = torch.bmm(sums.flatten(0, 1).flatten(1, 2), values)
        return found.view(*sums.shape[:-1], n_key)

    def _distance(
        self,
        alpha: Float[Tensor, "batch head row some_keys"],
        sums: Float[Tensor, "batch head row size d"],
        key: Int[Tensor, "batch head row size"],
    ) -> Float[Tensor, "batch head row size"]:
        """|y - s| of one key per row and size, from the difference itself: exact also where it is small."""
        y = alpha.gather(-1, key).unsqueeze(-1) * take_vectors(self.values, key)
        length: Tensor = torch.linalg.vector_norm(y - sums, dim=-1)
        return length

    def _count(
        self,
        gap: Float[Tensor, "batch head row size some_keys"],
        order: Int[Tensor, "batch head row n"],
        chosen: Bool[Tensor, "size n"],
        slack: Float[Tensor, "batch head row size"],
        inversions: bool,
    ) -> _Counts:
        """Compare selected with unselected distances; those within the slack are equal. Overwrites ``gap``."""
        places = order.unsqueeze(-2).expand(*gap.shape[:-1], -1)
        selected = gap.gather(-1, places).masked_fill_(~chosen, -torch.inf)
        hide_selected(gap, order, self.sizes)
        farthest, place = selected.max(-1)
        nearest, nearest_key = gap.min(-1) if self.margins else (gap.amin(-1), place)
        reach = selected + slack.unsqueeze(-1)
        farthest_reach = farthest + slack
        if inversions:
            # A selected key is out of order with every unselected one that lies within its reach.
            within = torch.searchsorted(sort_rows(gap), reach, right=True)
            false_positives, pairs = within.amax(-1), within.sum(-1)
        else:
            # Counted in floating point, which is ten times faster here than adding up truth values.
            beyond = torch.nextafter(farthest_reach, torch.full_like(farthest_reach, torch.inf))
            false_positives = -gap.sub_(beyond.unsqueeze(-1)).sign_().clamp_(max=0).sum(-1)
            pairs = torch.full_like(farthest, torch.nan)
        return _Counts(
            false_positives=false_positives,
            false_negatives=(reach >= nearest.unsqueeze(-1)).sum(-1),
            inversions=pairs,
            farthest_selected=farthest,
            farthest_key=places.gather(-1, place.unsqueeze(-1)).squeeze(-1),
            nearest_other=nearest,
            nearest_key=nearest_key,
            separated=nearest > farthest_reach,
        )


@dataclass(frozen=True)
class _Counts:
    false_positives: Tensor
    false_negatives: Tensor
    inversions: Tensor
    farthest_selected: Tensor
    farthest_key: Tensor
    nearest_other: Tensor
    nearest_key: Tensor
    separated: Tensor


def _rates(
    n: Float[Tensor, " size"],
    counts: _Counts,
    margin: Float[Tensor, "batch head row size"],
    *,
    undefined: Bool[Tensor, "batch head row size"],
) -> tuple[Tensor, ...]:
    dtype = n.dtype
    precision = n / (n + counts.false_positives.to(dtype))
    recall = 1 - counts.false_negatives.to(dtype) / n
    total = precision + recall
    f_score = torch.where(recall > 0, 2 * precision * recall / total, 0)
    found = (precision, recall, f_score, margin, counts.inversions.to(dtype))
    return tuple(x.masked_fill(undefined, torch.nan) for x in found)


def random_rankings(
    geometry: AttentionGeometry, n_rows: int, repeats: int, seed: int
) -> Float[Tensor, "repeat batch row key"]:
    """Random scores for the control, the same for a document whatever batch or padding it comes in."""
    rank = (
        geometry.rows.any(1) if not geometry.cross else geometry.real_keys.any(1)
    ).long().cumsum(-1) - 1
    drawn = []
    for document in geometry.documents:
        mixed = ((seed * _MIX + geometry.layer) * _MIX + document) % 2**63
        generator = torch.Generator().manual_seed(mixed)
        shape = (geometry.n_keys, repeats, n_rows)
        drawn.append(torch.rand(shape, generator=generator, dtype=torch.float32))
    scores = upload(torch.stack(drawn), rank.device).permute(2, 0, 3, 1)
    return scores.gather(-1, rank.clamp(min=0)[None, :, None].expand(scores.shape))
