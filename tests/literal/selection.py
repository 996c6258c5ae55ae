"""Which entries an experiment of equal budget removes: every group sorted by Python's own ``sorted``."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

from .masks import to_array


def select_entries(
    scores, candidates, fraction: float, *, scope: str = "query", largest: bool = True
) -> np.ndarray:
    """The first floor(fraction n) candidates of each group by falling score, or the last; NaN comes last.

    Equal scores are in the order of head, query and key.
    """
    scores, candidates = to_array(scores), to_array(candidates)
    chosen = np.zeros(scores.shape, dtype=bool)
    groups: dict[tuple[int, ...], list[tuple[int, int, int, int]]] = {}
    for b, h, i, j in np.ndindex(scores.shape):
        if candidates[b, h, i, j]:
            group = {
                "row": (b, h, i),
                "query": (b, i),
                "head": (b, h),
                "layer": (b,),
                "token": (b,),
            }[scope]
            groups.setdefault(group, []).append((b, h, i, j))
    for entries in groups.values():
        if scope == "token":
            totals: dict[int, float] = {}
            for b, h, i, j in entries:
                score = scores[b, h, i, j]
                totals[j] = totals.get(j, 0.0) + (0.0 if math.isnan(score) else score)
            keys = set(_cut(sorted(totals), totals, fraction, largest))
            picked = [entry for entry in entries if entry[3] in keys]
        else:
            of_entry = {entry: scores[entry] for entry in entries}
            picked = _cut(sorted(entries), of_entry, fraction, largest)
        for entry in picked:
            chosen[entry] = True
    return chosen


def _cut(items: list, scores: dict, fraction: float, largest: bool) -> list:
    """The first or the last items of a stable sort by falling score."""

    def rank(item) -> tuple[bool, float]:
        missing = math.isnan(scores[item])
        return missing, 0.0 if missing else -scores[item]

    order = sorted(items, key=rank)
    count = int(Decimal(str(fraction)) * len(order))  # by its decimal digits, as on paper
    return order[:count] if largest else order[len(order) - count :]
