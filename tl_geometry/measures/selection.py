"""Which entries of a pattern an equal-budget experiment removes: the first or last of a ranking.

Source: comprehensiveness and sufficiency as in DeYoung et al., arXiv 1911.03429 (ERASER), on attention entries as
in Cunningham & Muca Cirone, arXiv 2606.07604.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tl_geometry.arguments import one_of

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

    Raises:
        ValueError: a fraction outside [0, 1], an unknown scope.
    """
    share = check_fraction(fraction)
    one_of("scope", scope, get_args(Scope))
    candidates = candidates.expand(scores.shape)
    if scope == "token":
        totals = torch.where(candidates, scores, 0).nansum((1, 2))
        chosen = _first_or_last(totals, candidates.any(1).any(1), share, largest)
        return chosen[:, None, None, :] & candidates
    if scope in ("head", "layer"):
        first = 2 if scope == "head" else 1
        flat = _first_or_last(scores.flatten(first), candidates.flatten(first), share, largest)
        return flat.reshape(scores.shape)
    chosen = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    for rows, keys in _blocks(candidates):
        block, kept = scores[:, :, rows, keys], candidates[:, :, rows, keys]
        if scope == "query":  # one query's entries side by side, head after head
            block, kept = block.transpose(1, 2), kept.transpose(1, 2)
            found = _first_or_last(block.flatten(2), kept.flatten(2), share, largest)
            chosen[:, :, rows, keys] = found.reshape(block.shape).transpose(1, 2)
        else:
            chosen[:, :, rows, keys] = _first_or_last(block, kept, share, largest)
    return chosen


def _blocks(
    candidates: Bool[Tensor, "batch head query key"],
) -> Iterator[tuple[slice, slice]]:
    """Slices of queries, each with the slice of keys that hold all of its candidates: half of a causal pattern."""
    seen = candidates.any(0).any(0)
    order = torch.arange(1, seen.shape[-1] + 1, device=seen.device)
    reach = (seen * order).amax(-1).tolist()
    for start in range(0, len(reach), _ROWS):
        rows = slice(start, min(start + _ROWS, len(reach)))
        yield rows, slice(0, max(reach[rows]))


def _first_or_last(
    scores: Float[Tensor, "*groups item"],
    candidates: Bool[Tensor, "*groups item"],
    share: float,
    largest: bool,
) -> Bool[Tensor, "*groups item"]:
    most = _floor(share, candidates.shape[-1])
    if most == 0:
        return torch.zeros_like(candidates)
    count = _counts(candidates, share)
    limits = torch.finfo(scores.dtype)
    ranked = scores.nan_to_num(limits.min, torch.inf, limits.min * (1 - limits.eps))
    ranked.masked_fill_(~candidates, -torch.inf if largest else torch.inf)
    found = ranked.topk(most, dim=-1, largest=largest).values
    bound = found.gather(-1, (count - 1).clamp(min=0).unsqueeze(-1))
    bound = bound.masked_fill((count == 0).unsqueeze(-1), torch.nan)
    reached = ranked >= bound if largest else ranked <= bound
    if torch.equal(reached.sum(-1), count):
        return reached
    # Equal scores at the bound: as many as are missing, from the front or from the back.
    equal = (ranked == bound) & candidates
    missing = count - (reached & candidates & ~equal).sum(-1)
    rank = equal.cumsum(-1) if largest else equal.flip(-1).cumsum(-1).flip(-1)
    return reached & candidates & (~equal | (rank <= missing.unsqueeze(-1)))


def _counts(candidates: Bool[Tensor, "*groups item"], share: float) -> Int64[Tensor, "*groups"]:
    """How many candidates of each group are chosen."""
    sizes, group = torch.unique(candidates.sum(-1), return_inverse=True)
    counts = [_floor(share, size) for size in sizes.tolist()]
    return torch.tensor(counts, dtype=torch.int64, device=candidates.device)[group]
