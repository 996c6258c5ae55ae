"""The scoring behind separability: selected contributions around their sum, a block of rows at a time.

No tensor of shape ``query key d_head`` and no sort over keys: the N best come from a partial selection, their sums from
a cumulative sum over the selected values, and the order of distances from D^2 - |s|^2 = |y|^2 - 2 <y, s>.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_geometry.measures.devices import upload
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.ranking import top_keys
from tl_geometry.measures.regimes import Space
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


def score_rows(
    geometry: AttentionGeometry,
    rows: Int[Tensor, "batch row"],
    real: Bool[Tensor, "batch row"],
    sizes: tuple[int, ...],
    *,
    rank_by: RankBy = "attention",
    exclude_sink: bool = False,
    distance: Distance = "euclidean",
    space: Space = "head",
    random: Float[Tensor, "batch row key"] | None = None,
    inversions: bool = True,
) -> SeparabilityScores:
    """Scores of some rows of each document, a block of rows at a time.

    Counting inversions costs about as much as the rest; without it they are NaN.
    """
    values = geometry.per_head(geometry.v.transpose(1, 2)) if space == "head" else geometry.values
    # Values at a scale of order one; a margin is a length, so it goes back to its own at the end.
    exponent = power_of_two(values, (-2, -1))
    values = scale(values, -exponent)
    if space == "model":
        exponent = exponent + geometry.frame.exponent[:, None, None]
    candidates = geometry.available
    if exclude_sink:
        candidates = candidates & ~geometry.sinks.unsqueeze(-2)
    blocks = []
    for part in geometry.blocks(rows.shape[1]):
        alpha = geometry.take_rows(geometry.pattern, rows[:, part])
        keep = geometry.take_rows(candidates, rows[:, part])
        keep = keep & real[:, None, part, None]
        scores = None if random is None else random[:, None, part].expand_as(alpha)
        blocks.append(
            _score(alpha, keep, values, exponent, sizes, rank_by, distance, scores, inversions)
        )
    found = (torch.cat(parts, 2) for parts in zip(*blocks, strict=True))
    precision, recall, f_score, margin, pairs = found
    return SeparabilityScores(precision, recall, f_score, margin, pairs, rows)


def _score(
    alpha: Float[Tensor, "batch head row key"],
    keep: Bool[Tensor, "batch head_or_1 row key"],
    values: Float[Tensor, "batch head key d"],
    exponent: Int[Tensor, "batch head 1 1"],
    sizes: tuple[int, ...],
    rank_by: RankBy,
    distance: Distance,
    random: Float[Tensor, "batch head row key"] | None,
    inversions: bool,
) -> tuple[Tensor, ...]:
    alpha = torch.where(keep, alpha, 0)
    lengths = alpha * values.square().sum(-1).sqrt().unsqueeze(-2)
    ranking = alpha if rank_by == "attention" else lengths if random is None else random
    order = top_keys(ranking, keep, min(max(sizes), alpha.shape[-1]))
    # Each row at a scale of order one as well: where the sink is left out, all the rest can be tiny.
    row_exponent = power_of_two(lengths, -1)
    alpha, lengths = (scale(x, -row_exponent) for x in (alpha, lengths))
    exponent = exponent + row_exponent
    count = keep.sum(-1)
    chosen = values.unsqueeze(2).expand(-1, -1, order.shape[2], -1, -1)
    chosen = chosen.gather(3, order.unsqueeze(-1).expand(*order.shape, values.shape[-1]))
    best = alpha.gather(-1, order)
    sums = (best.unsqueeze(-1) * chosen).cumsum(-2)
    longest = lengths.gather(-1, order).square().cummax(-1).values
    if distance == "cosine":
        # The guard of the definition, in the units of this row.
        floor = torch.full_like(longest[..., :1], _COSINE_FLOOR)
        floor = scale(floor, (-2 * exponent).clamp(-126, 126)).clamp(
            min=torch.finfo(floor.dtype).tiny
        )
    else:
        own = lengths.square().masked_fill_(~keep, torch.inf)
    found = []
    for size in sizes:
        n = min(size, order.shape[-1])
        total = sums[..., n - 1, :]
        square = total.square().sum(-1)
        if distance == "cosine":
            along = (total @ values.transpose(-1, -2)).mul_(-alpha)
            gap = along.div_(lengths * square.sqrt().unsqueeze(-1) + floor).masked_fill_(
                ~keep, torch.inf
            )
            slack = torch.ones_like(square)
        else:
            # D^2 - |s|^2 = |y|^2 - 2 <y, s>: the order of distances without computing them.
            gap = torch.addcmul(own, (-2 * total) @ values.transpose(-1, -2), alpha)
            slack = square + longest[..., n - 1]
        counts = _count(gap, order[..., :n], slack * ULPS * torch.finfo(gap.dtype).eps, inversions)
        far, near = counts.farthest_selected, counts.nearest_other
        if distance == "euclidean":
            far, near = (
                scaled_length(_distance(alpha, values, total, key), exponent.squeeze(-1))
                for key in (counts.farthest_key, counts.nearest_key)
            )
        found.append(_rates(n, counts, near - far, undefined=count <= size))
    return tuple(torch.stack(parts, -1) for parts in zip(*found, strict=True))


def _distance(
    alpha: Float[Tensor, "batch head row key"],
    values: Float[Tensor, "batch head key d"],
    total: Float[Tensor, "batch head row d"],
    key: Int[Tensor, "batch head row"],
) -> Float[Tensor, "batch head row"]:
    """|y - s| of one key per row, from the difference itself: exact also where it is small."""
    chosen = values.gather(2, key.unsqueeze(-1).expand(*key.shape, values.shape[-1]))
    y = alpha.gather(-1, key.unsqueeze(-1)) * chosen
    return (y - total).square().sum(-1).sqrt()


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


def _count(gap: Tensor, order: Tensor, slack: Tensor, inversions: bool) -> _Counts:
    """Compare selected with unselected distances; those within the slack are equal. Overwrites ``gap``."""
    selected, place = gap.gather(-1, order).sort(dim=-1)
    gap.scatter_(-1, order, torch.inf)
    farthest = selected[..., -1]
    nearest, nearest_key = gap.min(-1)
    reach = (selected + slack.unsqueeze(-1)).contiguous()
    if inversions:
        # An unselected key is out of order with every selected one that reaches as far as it lies.
        before = torch.searchsorted(reach, gap, out_int32=True)
        pairs = selected.shape[-1] * gap.shape[-1] - before.sum(-1)
    else:
        pairs = torch.full_like(farthest, torch.nan)
    return _Counts(
        false_positives=(gap <= reach[..., -1:]).sum(-1),
        false_negatives=(reach >= nearest.unsqueeze(-1)).sum(-1),
        inversions=pairs,
        farthest_selected=farthest,
        farthest_key=order.gather(-1, place[..., -1:]).squeeze(-1),
        nearest_other=nearest,
        nearest_key=nearest_key,
        separated=nearest > reach[..., -1],
    )


def _rates(
    n: int,
    counts: _Counts,
    margin: Tensor,
    *,
    undefined: Bool[Tensor, "batch head row"],
) -> tuple[Tensor, ...]:
    dtype = counts.farthest_selected.dtype
    precision = n / (n + counts.false_positives.to(dtype))
    recall = 1 - counts.false_negatives.to(dtype) / n
    total = precision + recall
    f_score = torch.where(recall > 0, 2 * precision * recall / total, 0)
    tiny = torch.finfo(dtype).tiny
    margin = torch.where(counts.separated, margin.clamp(min=tiny), margin.clamp(max=0))
    found = (precision, recall, f_score, margin, counts.inversions.to(dtype))
    return tuple(x.masked_fill(undefined, torch.nan) for x in found)


def random_rankings(
    geometry: AttentionGeometry, n_rows: int, repeats: int, seed: int
) -> Float[Tensor, "repeat batch row key"]:
    """Random scores for the control, the same for a document whatever batch or padding it comes in."""
    rank = (
        geometry.rows.any(1) if not geometry.cross else geometry.available.any(1).any(-2)
    ).long().cumsum(-1) - 1
    drawn = []
    for document in geometry.documents:
        mixed = ((seed * _MIX + geometry.layer) * _MIX + document) % 2**63
        generator = torch.Generator().manual_seed(mixed)
        shape = (geometry.n_keys, repeats, n_rows)
        drawn.append(torch.rand(shape, generator=generator, dtype=torch.float32))
    scores = upload(torch.stack(drawn), rank.device).permute(2, 0, 3, 1)
    return scores.gather(-1, rank.clamp(min=0)[None, :, None].expand(scores.shape))
