"""Head regimes: which token wins a head's attention once its value's length counts.

The winner of a row is argmax_j alpha_ij |v_j|. A head whose winner is mostly the query itself is a
*retriever*, mostly a sink a *mixer*, and mostly anything else a *reset*; a tie is a reset. There is
no threshold.

Source: Mudarisov, Burtsev, Petrova & State, "Geometric Analysis of Token Selection in Multi-Head
Attention", arXiv 2602.01893.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_geometry.arguments import one_of
from tl_geometry.measures.devices import check_numbers
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.scaling import full_precision, power_of_two, scale, work_dtype

Space: TypeAlias = Literal["head", "model"]
Queries: TypeAlias = Literal["all", "last"]

CATEGORIES: tuple[str, ...] = ("self", "sink", "other")
"""Names of the winner categories, in the order of their codes 0, 1, 2."""

REGIMES: tuple[str, ...] = ("retriever", "mixer", "reset")
"""Names of the head regimes, in the order of the categories that make them."""


@dataclass(frozen=True)
class SourceWinners:
    """The winning key of each row.

    Attributes:
        position: index of the winner, -1 for rows of padding queries.
        category: 0 the query itself, 1 a sink, 2 another token; -1 for rows that are not counted
            (padding, and queries that are sinks themselves).
    """

    position: Int[Tensor, "batch head query"]
    category: Int[Tensor, "batch head query"]


@dataclass(frozen=True)
class HeadRegimes:
    """Each head's regime with its evidence.

    Attributes:
        labels: ``"retriever"``, ``"mixer"`` or ``"reset"`` per head; ``""`` for a head without a
            counted row.
        self_share, sink_share, other_share: shares of the counted rows, in [0, 1].
        rows: number of counted rows.
        margin: share of the winner category minus that of the runner-up.
    """

    labels: tuple[str, ...]
    self_share: Float[Tensor, " head"]
    sink_share: Float[Tensor, " head"]
    other_share: Float[Tensor, " head"]
    rows: Int[Tensor, " head"]
    margin: Float[Tensor, " head"]


@full_precision
def source_winners(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"] | None = None,
    *,
    space: Space = "head",
    available: Tensor | None = None,
    sink: SinkRule = "first",
    cross: bool = False,
    queries: Queries = "all",
) -> SourceWinners:
    """Find argmax_j alpha_ij |v_j| of each row, ties to the lower key.

    >>> pattern, v = torch.tensor([[[[1.0, 0.0], [0.6, 0.4]]]]), torch.tensor([[[[1.0]], [[9.0]]]])
    >>> winners = source_winners(pattern, v)
    >>> winners.position[0, 0].tolist(), winners.category[0, 0].tolist()
    ([0, 1], [-1, 0])

    Args:
        W_O: needed for ``space="model"``, where |v_j W_O| takes the place of |v_j|.
        space: lengths in head space (the paper's) or after the output projection.
        sink: which keys are sinks (:func:`tl_geometry.measures.masks.resolve_sinks`).
        cross: keys come from another sequence, so there is no self.
        queries: ``"last"`` counts the last real query of each row only.

    Raises:
        ValueError: shapes that do not fit, an unknown option, or ``space="model"`` without W_O.
    """
    one_of("space", space, ("head", "model"))
    one_of("queries", queries, ("all", "last"))
    if W_O is None:
        if space == "model":
            raise ValueError('space="model" needs W_O, the output projection (head d_head d_model)')
        W_O = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device).expand(
            pattern.shape[1], -1, -1
        )
    geometry = AttentionGeometry(pattern, v, W_O, available=available, sink=sink, cross=cross)
    position = winner_positions(geometry, space)
    category = winner_categories(geometry, position)
    if queries == "last":
        category = last_only(geometry, category)
    return SourceWinners(position, category)


@full_precision
def head_regimes(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"] | None = None,
    *,
    space: Space = "head",
    available: Tensor | None = None,
    sink: SinkRule = "first",
    cross: bool = False,
    queries: Queries = "all",
) -> HeadRegimes:
    """Label each head retriever, mixer or reset by the plurality of its winners, over all rows of the batch.

    >>> pattern, v = torch.tensor([[[[1.0, 0.0], [0.6, 0.4]]]]), torch.tensor([[[[1.0]], [[9.0]]]])
    >>> head_regimes(pattern, v).labels
    ('retriever',)

    Arguments and errors as in :func:`source_winners`.
    """
    check_numbers("pattern", pattern, "labels depend on them")
    winners = source_winners(
        pattern, v, W_O, space=space, available=available, sink=sink, cross=cross, queries=queries
    )
    counts = category_counts(winners.category).sum(0)
    rows = counts.sum(-1)
    shares = counts.to(work_dtype(pattern, v)) / torch.where(rows > 0, rows, torch.nan)[:, None]
    top = shares.topk(2, dim=-1).values
    return HeadRegimes(
        labels=regime_labels(counts),
        self_share=shares[:, 0],
        sink_share=shares[:, 1],
        other_share=shares[:, 2],
        rows=rows,
        margin=top[:, 0] - top[:, 1],
    )


def winner_positions(
    geometry: AttentionGeometry, space: Space = "head"
) -> Int[Tensor, "batch head query"]:
    """Index of the winning key of each row, -1 for rows of padding queries."""
    norms = (geometry.raw_value_norms if space == "head" else geometry.value_norms).unsqueeze(-2)
    # Only the order within a head counts: a power of two, which is exact, keeps small products from
    # underflowing to ties.
    norms = scale(norms, -power_of_two(norms, -1))
    best, position = [], []
    for rows, keys in geometry.spans(copies=8):  # small enough for the cache of one core
        block = (geometry.pattern[:, :, rows, keys] * norms[..., keys]).max(dim=-1)
        best.append(block.values)
        position.append(block.indices)
    winner = torch.cat(position, -1)
    # Where every product is zero the first key wins, which must be the first one that the row may
    # use.
    first = geometry.first_keys.expand_as(winner)
    winner = torch.where(torch.cat(best, -1) > 0, winner, first)
    return torch.where(geometry.rows.expand_as(winner), winner, -1)


def winner_categories(
    geometry: AttentionGeometry, position: Int[Tensor, "batch head query"]
) -> Int[Tensor, "batch head query"]:
    """0 self, 1 sink, 2 other, -1 not counted (padding, or the query is itself a sink)."""
    sinks = geometry.sinks.expand(-1, geometry.n_heads, -1)
    is_sink = sinks.gather(-1, position.clamp(min=0))
    category = torch.where(is_sink, 1, 2)
    counted = position >= 0
    if not geometry.cross:
        query = torch.arange(geometry.n_queries, device=position.device)
        category = torch.where(position == query, 0, category)
        counted = counted & ~geometry.sink_queries
    return torch.where(counted, category, -1)


def last_only(
    geometry: AttentionGeometry, category: Int[Tensor, "batch head query"]
) -> Int[Tensor, "batch head query"]:
    """Count the last real query of each document only."""
    rows = geometry.rows.expand(category.shape)
    last = rows & (rows.flip(-1).cumsum(-1).flip(-1) == 1)
    return torch.where(last, category, -1)


def category_counts(
    category: Int[Tensor, "batch head query"],
) -> Int[Tensor, "batch head category"]:
    """Rows per winner category."""
    return torch.stack([(category == code).sum(-1) for code in range(len(CATEGORIES))], -1)


def regime_labels(counts: Int[Tensor, "head category"]) -> tuple[str, ...]:
    """Name the regime of each head from its winner counts; a tie for the first place is a reset, no rows are ``""``."""
    labels = []
    for row in counts.tolist():
        best = max(row)
        leaders = [code for code, count in enumerate(row) if count == best]
        labels.append("" if best == 0 else REGIMES[leaders[0] if len(leaders) == 1 else 2])
    return tuple(labels)
