"""Separability: is what a head selects a cluster of its own?

Of one row's contributions y_j = alpha_j v_j, the N with the largest attention are the selected set
S, and s is their sum. They are separable when all of them lie nearer to s than any other
contribution does.

Source: Mudarisov, Burtsev, Petrova & State, "Geometric Analysis of Token Selection in Multi-Head
Attention", arXiv 2602.01893.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_geometry.arguments import one_of, true_or_false, whole_number, whole_seed
from tl_geometry.measures.checks import check_float
from tl_geometry.measures.clusters import (
    Distance,
    RankBy,
    Scorer,
    SeparabilityScores,
)
from tl_geometry.measures.devices import check_devices, constants, seeded
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.regimes import Space
from tl_geometry.measures.row_blocks import row_blocks
from tl_geometry.measures.scaling import full_precision, work_dtype

TOP_N = (1, 2, 4, 8, 16, 32)


@full_precision
def separability(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"] | None = None,
    *,
    top_n: Sequence[int] | int = TOP_N,
    rank_by: RankBy = "attention",
    exclude_sink: bool = False,
    distance: Distance = "euclidean",
    space: Space = "head",
    queries: Literal["all", "last"] | int | Tensor = "all",
    available: Tensor | None = None,
    sink: SinkRule = "first",
    repeats: int = 16,
    seed: int = 0,
    generator: torch.Generator | None = None,
) -> SeparabilityScores:
    """Score, for each row and N, whether the N selected contributions are nearer to their sum than all others.

    >>> pattern = torch.tensor([[[[0.5, 0.3, 0.1, 0.1]] * 4]])
    >>> v = torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]], [[-5.0, 0.0]], [[-5.0, 0.0]]]])
    >>> scores = separability(pattern, v, top_n=(2,), queries="last")
    >>> scores.f_score.item(), round(scores.margin.item(), 3)
    (1.0, 0.8)

    Args:
        W_O: needed for ``space="model"``, where projected values v W_O take the place of v.
        top_n: sizes N of the selected set.
        rank_by: what selects: the attention, ``"value_weighted"`` |y|, or ``"random"``, the
            control: random sets of the same sizes around *their own* sum, nested over N,
            ``repeats`` times.
        exclude_sink: take the sinks out of the candidates: neither selected nor unselected.
        distance: ``"cosine"`` is 1 - <y, s> / (|y| |s| + 1e-12).
        queries: all rows, the last real one of each document, so many evenly spaced real ones, or
            their positions (``query`` or ``batch query``).
        available, sink: as in :func:`tl_geometry.source_winners`.
        repeats, seed, generator: of the random control.

    Raises:
        ValueError: N below 1, positions outside the sequence, shapes that do not fit, a negative
            seed, or an unknown option.
    """
    sizes = checked_sizes(top_n)
    for name, value, allowed in (
        ("rank_by", rank_by, ("attention", "value_weighted", "random")),
        ("distance", distance, ("euclidean", "cosine")),
        ("space", space, ("head", "model")),
    ):
        one_of(name, value, allowed)
    repeats = whole_number("repeats", repeats, 1)
    exclude_sink = true_or_false("exclude_sink", exclude_sink)
    geometry = geometry_for(pattern, v, W_O, space=space, available=available, sink=sink)
    rows, real = select_rows(geometry, queries)
    scorer = Scorer(geometry, sizes, distance=distance, space=space)
    score = partial(scorer.score_rows, rank_by=rank_by, exclude_sink=exclude_sink)
    if rank_by != "random":
        return score(row_blocks(geometry, rows, real, sizes))
    drawn = seeded(pattern.device, whole_seed(seed), generator)
    shape = (pattern.shape[0], rows.shape[1], geometry.n_keys)
    runs = [
        score(
            row_blocks(geometry, rows, real, sizes),
            random=torch.rand(shape, generator=drawn, device=pattern.device, dtype=torch.float32),
        )
        for _ in range(repeats)
    ]
    return _over_repeats(runs)


def _over_repeats(runs: list[SeparabilityScores]) -> SeparabilityScores:
    names = [
        field.name for field in fields(runs[0]) if field.name not in {"query", "f_low", "f_high"}
    ]
    means = {name: torch.stack([getattr(run, name) for run in runs]).mean(0) for name in names}
    f_scores = torch.stack([run.f_score for run in runs])
    low, high = (f_scores.quantile(level, dim=0) for level in (0.025, 0.975))
    return SeparabilityScores(**means, query=runs[0].query, f_low=low, f_high=high)


def checked_sizes(top_n: Sequence[int] | int) -> tuple[int, ...]:
    """The sizes N as a tuple of positive ints."""
    given: Any = (
        (top_n,) if hasattr(top_n, "__index__") and not getattr(top_n, "ndim", 0) else top_n
    )
    try:
        if isinstance(given, str):
            raise TypeError("letters are no sizes")
        sizes = tuple(whole_number("top_n", n) for n in given)
    except TypeError as error:
        raise TypeError(f"top_n must hold integers, got {top_n!r}") from error
    if not sizes or min(sizes) < 1:
        raise ValueError(f"top_n must hold sizes of at least 1, got {top_n!r}")
    return sizes


def geometry_for(
    pattern: Tensor,
    v: Tensor,
    W_O: Tensor | None,
    *,
    space: Space,
    available: Tensor | None,
    sink: SinkRule,
) -> AttentionGeometry:
    """A geometry where the projection is only needed in model space."""
    if W_O is None:
        if space == "model":
            raise ValueError('space="model" needs W_O, the output projection (head d_head d_model)')
        W_O = torch.eye(v.shape[-1], dtype=work_dtype(v), device=v.device).expand(
            pattern.shape[1], -1, -1
        )
    geometry = AttentionGeometry(pattern, v, W_O, available=available, sink=sink)
    if not isinstance(sink, str) or sink != "auto":
        _ = geometry.sinks  # refuses sinks that do not exist, whether or not they are used
    return geometry


def select_rows(
    geometry: AttentionGeometry, queries: Any
) -> tuple[Int[Tensor, "batch row"], Bool[Tensor, "batch row"]]:
    """Positions of the queries to look at in each document, and which of them are real."""
    batch, n = geometry.pattern.shape[0], geometry.n_queries
    if isinstance(queries, Tensor):
        fits = (
            queries.ndim in (1, 2)
            and queries.numel() > 0
            and (queries.ndim == 1 or len(queries) == batch)
        )
        if queries.is_floating_point() or queries.dtype == torch.bool or not fits:
            raise ValueError(
                f"queries must be integer positions, query or batch query with batch {batch}, got "
                f"{queries.dtype} {tuple(queries.shape)}"
            )
        check_devices(pattern=geometry.pattern, queries=queries)
        known = queries.device.type != "meta"
        if known and not (int(queries.min()) >= 0 and int(queries.max()) < n):
            raise ValueError(
                f"queries must lie in 0..{n - 1}, got {int(queries.min())}..{int(queries.max())}"
            )
        rows = queries.long().expand(batch, -1)
        return rows, geometry.rows.any(1).gather(-1, rows)
    if isinstance(queries, str):
        one_of("queries", queries, ("all", "last"))
        if queries == "last":
            return geometry.spread_rows(1)
        rows = torch.arange(n, device=geometry.pattern.device).expand(batch, -1)
        return rows, geometry.rows.any(1)
    try:
        count = whole_number("queries", queries, 1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f'queries must be "all", "last", a number of rows or a tensor of positions, got {queries!r}'
        ) from error
    return geometry.spread_rows(min(count, n))


def inversion_bounds(
    inversions: Float[Tensor, "*axes top_n"], top_n: Sequence[int] | int
) -> tuple[
    Float[Tensor, "*axes top_n"], Float[Tensor, "*axes top_n"], Float[Tensor, "*axes top_n"]
]:
    """Lower bounds on precision, recall and F from the number of inversions alone.

    With G inversions among N selected: P >= N / (N + G), R >= max(0, 1 - G / N), and
    F >= 2 N (N - G) / (2 N^2 - G^2) for G < N.

    >>> [bound.tolist() for bound in inversion_bounds(torch.tensor([0.0, 1.0]), (1, 2))]
    [[1.0, 0.6666666865348816], [1.0, 0.5], [1.0, 0.5714285969734192]]

    Raises:
        TypeError: ``inversions`` is not floating point.
        ValueError: ``top_n`` has not one size per entry of the last axis.
    """
    sizes = checked_sizes(top_n)
    check_float("inversions", inversions, "... top_n")
    if inversions.ndim == 0 or inversions.shape[-1] != len(sizes):
        raise ValueError(
            f"inversions has shape {tuple(inversions.shape)}; its last axis must have the {len(sizes)} sizes of top_n"
        )
    inversions = inversions.to(work_dtype(inversions))
    n = constants(sizes, inversions)
    precision = n / (n + inversions)
    recall = (1 - inversions / n).clamp(min=0)
    below = torch.where(inversions < n, inversions, 0)
    f_score = torch.where(
        inversions < n, 2 * n * (n - below) / (2 * n.square() - below.square()), 0
    )
    return precision, recall, torch.where(inversions.isnan(), torch.nan, f_score)
