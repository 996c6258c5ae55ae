"""Which entries of a pattern an equal-budget experiment removes: the first or last of a ranking.

Source: comprehensiveness and sufficiency as in DeYoung et al., arXiv 1911.03429 (ERASER), on attention entries as
in Cunningham & Muca Cirone, arXiv 2606.07604.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tl_geometry.arguments import one_of
from tl_geometry.measures.devices import upload

__all__ = ["Scope", "check_fraction", "exact_share", "select_entries"]

Scope: TypeAlias = Literal["row", "query", "head", "layer", "token"]


_ROWS = 64  # queries that are looked at together


def check_fraction(fraction: float | int) -> float:
    """A share of entries.

    Raises:
        ValueError: not a number in [0, 1].
    """
    if isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be a number in [0, 1], got {fraction!r}")
    return float(fraction)


def exact_share(share: float | int) -> Fraction:
    """A share as it is written, so that shares of counts are those of a reader.

    >>> math.floor(100 * 0.29), math.floor(100 * exact_share(0.29))
    (28, 29)
    """
    return Fraction(repr(float(share)))


@lru_cache(maxsize=2**16)
def _floor(share: float, n: int) -> int:
    return math.floor(exact_share(share) * n)


def select_entries(
    scores: Float[Tensor, "batch head query key"],
    candidates: Bool[Tensor, "batch head_or_1 query key"],
    fraction: float | int,
    *,
    scope: Scope = "query",
    largest: bool = True,
    causal: bool = False,
) -> Bool[Tensor, "batch head query key"]:
    """Mark the first floor(fraction n) of the n candidates of each group in the order of their scores, or the last.

    >>> scores = torch.tensor([[[[0.5, 0.1], [0.2, 0.5]]]])
    >>> every = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    >>> select_entries(scores, every, 0.25, scope="layer")[0, 0].int().tolist()
    [[1, 0], [0, 0]]
    >>> select_entries(scores, every, 0.5, scope="layer", largest=False)[0, 0].int().tolist()
    [[0, 1], [1, 0]]

    Args:
        scores: importance of each entry; NaN comes last.
        candidates: entries that may be marked.
        fraction: share of the candidates of each group, in [0, 1], taken as it is written: 0.29 of 100
            are 29.
        scope: what is ranked together, always within one document: ``"row"`` one head and query,
            ``"query"`` one query over all heads, ``"head"``, ``"layer"``, or ``"token"``: whole keys,
            ranked by the sum of their scores over queries and heads.
        largest: the first of the order by falling score, else the last of it. Equal scores are in
            the order of head, query, key.
        causal: no candidate lies above the diagonal, which halves the work.

    Raises:
        ValueError: a fraction outside [0, 1], an unknown scope.
    """
    share = check_fraction(fraction)
    one_of("scope", scope, get_args(Scope))
    candidates = candidates.expand(scores.shape)
    if scope == "token":
        totals = torch.where(candidates, scores, 0).nansum((1, 2))
        chosen = _marked([(totals, candidates.any(1).any(1))], share, largest)[0]
        return chosen[:, None, None, :] & candidates
    if scope in ("head", "layer"):
        first = 2 if scope == "head" else 1
        group = (scores.flatten(first), candidates.flatten(first))
        return _marked([group], share, largest)[0].reshape(scores.shape)
    blocks = list(_blocks(*scores.shape[2:], causal=causal))
    parts = [[x[:, :, rows, keys] for x in (scores, candidates)] for rows, keys in blocks]
    if scope == "query":  # one query's entries side by side, head after head
        parts = [[x.transpose(1, 2) for x in part] for part in parts]
    shapes = [part[0].shape for part in parts]
    flat = [(x.flatten(2), kept.flatten(2)) if scope == "query" else (x, kept) for x, kept in parts]
    chosen = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    found = _marked(flat, share, largest)
    for (rows, keys), block, shape in zip(blocks, found, shapes, strict=True):
        block = block.reshape(shape)
        chosen[:, :, rows, keys] = block.transpose(1, 2) if scope == "query" else block
    return chosen


def _blocks(n_query: int, n_key: int, *, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Slices of queries, each with the slice of keys that may hold candidates: half of a causal pattern."""
    for start in range(0, n_query, _ROWS):
        stop = min(start + _ROWS, n_query)
        yield slice(start, stop), slice(0, min(stop, n_key) if causal else n_key)


def _marked(
    groups: Sequence[tuple[Tensor, Tensor]], share: float, largest: bool
) -> list[Bool[Tensor, "*groups item"]]:
    """The first or last of several groups of scores, with one question to the device: where are ties?"""
    found = [_first_or_last(scores, kept, share, largest) for scores, kept in groups]
    tied = [(part.marked.sum(-1) != part.count).any() for part in found]
    again = torch.stack(tied).cpu().tolist() if tied else []
    return [
        _without_surplus(*group, part, largest) if repair else part.marked
        for group, part, repair in zip(groups, found, again, strict=True)
    ]


@dataclass(frozen=True)
class _Chosen:
    """All scores up to the bound of their group, and how many there should be."""

    marked: Bool[Tensor, "*groups item"]
    bound: Float[Tensor, "*groups 1"]
    count: Int64[Tensor, "*groups"]


def _first_or_last(
    scores: Float[Tensor, "*groups item"],
    candidates: Bool[Tensor, "*groups item"],
    share: float,
    largest: bool,
) -> _Chosen:
    """What is chosen, where no equal scores at the bound spoil it."""
    most = _floor(share, candidates.shape[-1])
    if most == 0:
        bound = torch.full_like(scores[..., :1], torch.nan)
        none = torch.zeros_like(candidates)
        return _Chosen(none, bound, none.sum(-1))
    count = _counts(candidates, share)
    ranked = _ranked(scores, candidates, largest)
    found = ranked.topk(most, dim=-1, largest=largest).values
    bound = found.gather(-1, (count - 1).clamp(min=0).unsqueeze(-1))
    bound = bound.masked_fill((count == 0).unsqueeze(-1), torch.nan)
    return _Chosen(ranked >= bound if largest else ranked <= bound, bound, count)


def _without_surplus(
    scores: Float[Tensor, "*groups item"],
    candidates: Bool[Tensor, "*groups item"],
    chosen: _Chosen,
    largest: bool,
) -> Bool[Tensor, "*groups item"]:
    """Of equal scores at the bound as many as are missing, from the front or from the back."""
    equal = (_ranked(scores, candidates, largest) == chosen.bound) & candidates
    sure = chosen.marked & candidates & ~equal
    missing = (chosen.count - sure.sum(-1)).unsqueeze(-1)
    rank = equal.cumsum(-1) if largest else equal.flip(-1).cumsum(-1).flip(-1)
    return sure | (equal & (rank <= missing))


def _ranked(
    scores: Float[Tensor, "*groups item"], candidates: Bool[Tensor, "*groups item"], largest: bool
) -> Float[Tensor, "*groups item"]:
    """Scores in which NaN comes after all numbers, and what is no candidate after that."""
    limits = torch.finfo(scores.dtype)
    ranked = scores.nan_to_num(limits.min, torch.inf, limits.min * (1 - limits.eps))
    return ranked.masked_fill_(~candidates, -torch.inf if largest else torch.inf)


def _counts(candidates: Bool[Tensor, "*groups item"], share: float) -> Int64[Tensor, "*groups"]:
    """How many candidates of each group are chosen."""
    exact, sizes = exact_share(share), candidates.sum(-1)
    if exact.numerator * candidates.shape[-1] < 2**63:
        counts: Tensor = (sizes * exact.numerator).div(exact.denominator, rounding_mode="floor")
        return counts
    table = [_floor(share, n) for n in range(candidates.shape[-1] + 1)]
    return upload(torch.tensor(table), candidates.device)[sizes]
