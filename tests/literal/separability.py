"""Separability straight from its definition: distances to the sum, compared pair by pair.

Everything is float64. A comparison takes squared distances within 4 ulp of the row's scale,
|s|^2 + max |y_i|^2 over the selected, as equal (cosine distances: within 4 ulp of 1), where the ulp
is that of the precision under test. A form in that precision rounds its distances, so it may decide pairs whose
difference is near the *edge* of that tie window either way. ``rounding`` bounds, from float64
numbers alone, by how much. The scores are given with every such pair decided one way and the other;
a correct fast form lies between, and the two coincide on all rows that are not truly ambiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .contributions import projected_values
from .masks import available_mask, sink_mask, to_array

DOUBLE = 2.0**-52
TIE = 4
GUARD = 1e-12
FIELDS = ("precision", "recall", "f_score", "margin", "inversions")


def norm(x: np.ndarray) -> float:
    """The length, without over- or underflow of the squares."""
    size = max(abs(c) for c in x.tolist())
    if size == 0:
        return 0.0
    return size * math.sqrt(sum((c / size) ** 2 for c in x.tolist()))


@dataclass(frozen=True)
class Cluster:
    """Scores of one selected set; ``false_positives`` and ``false_negatives`` explain them."""

    precision: float
    recall: float
    f_score: float
    margin: float
    inversions: float
    false_positives: float = math.nan
    false_negatives: float = math.nan
    margin_error: float = 0.0


NOTHING = Cluster(*[math.nan] * 5)


LEANS = (0, -1, 1)


def _euclidean(y, s, unit):
    return {j: (norm(x - s) / unit) ** 2 for j, x in y.items()}


def _cosine(y, s):
    return {j: 1 - float(x @ s) / (norm(x) * norm(s) + GUARD) for j, x in y.items()}


def clusters(
    y: np.ndarray,
    selected: Sequence[int],
    others: Sequence[int],
    *,
    distance: str = "euclidean",
    eps: float = DOUBLE,
) -> tuple[Cluster, Cluster, Cluster]:
    """Scores of the selected rows of ``y`` (``key d``) among selected and others, three times.

    The first goes by the exact numbers. Pairs that rounding may decide either way count as being in
    the right order in the second, and as being in the wrong order in the third.
    """
    y = {j: y[j] for j in [*selected, *others]}
    s = sum(y[i] for i in selected)
    length = {j: norm(x) for j, x in y.items()}
    unit = math.hypot(norm(s), max(length.values())) or 1.0
    tie = TIE * eps
    if distance == "euclidean":
        tie *= (math.hypot(norm(s), max(length[i] for i in selected)) / unit) ** 2
    D = _euclidean(y, s, unit) if distance == "euclidean" else _cosine(y, s)
    # Each summand and each partial sum is off by half an ulp, and these errors are independent.
    partial = np.cumsum([y[i] for i in selected], axis=0)
    sum_error = math.hypot(*(length[i] for i in selected), *(norm(x) for x in partial)) / 2
    lost = sum_error / unit if distance == "euclidean" else min(sum_error / (norm(s) or 1), 2 / eps)

    def rounding(i: int, j: int) -> float:
        """What an error of s, common to both distances, and the two products may amount to."""
        if np.array_equal(y[i], y[j]) or not np.any(s):
            return 0.0
        if distance == "euclidean":
            largest = max(length[i], length[j], norm(s)) / unit
            return eps * (2 * largest**2 + 2 * norm(y[i] - y[j]) / unit * lost)
        return eps * (3 + norm(y[i] / (length[i] or 1) - y[j] / (length[j] or 1)) * lost)

    wrong = {lean: [] for lean in LEANS}
    for i in selected:
        for j in others:
            ahead = D[j] - D[i] - tie  # not above 0: at least as near as the selected one
            near_the_edge = abs(ahead) <= eps * (3 + 4 * lost)
            error = rounding(i, j) if near_the_edge else 0.0
            for lean in LEANS:
                if ahead <= lean * error:
                    wrong[lean].append((i, j))
    far, near = max(D[i] for i in selected), min(D[j] for j in others)
    slack = 2 * eps * (TIE + lost)
    if distance == "euclidean":
        margin = unit * (math.sqrt(near) - math.sqrt(far))
        # The error of sqrt(x) when x is off by e.
        errors = [min(math.sqrt(slack), slack / math.sqrt(x or slack)) for x in (near, far)]
        error = unit * sum(errors)
    else:
        margin, error = near - far, slack if np.any(s) else 0.0
    nowhere = distance == "cosine" and not np.any(s)
    return tuple(_scores(wrong[lean], len(selected), nowhere, margin, error) for lean in LEANS)


def _scores(wrong, n, nowhere, margin, margin_error) -> Cluster:
    false_positives = len({j for _, j in wrong})
    false_negatives = n if nowhere else len({i for i, _ in wrong})
    precision = n / (n + false_positives)
    recall = (n - false_negatives) / n
    f_score = 2 * precision * recall / (precision + recall) if recall > 0 else 0.0
    return Cluster(
        precision,
        recall,
        f_score,
        margin,
        len(wrong),
        false_positives,
        false_negatives,
        margin_error,
    )


def ranked(scores: Sequence[float], candidates: Iterable[int]) -> list[int]:
    """Candidates by falling score, equal ones by rising index."""
    return sorted(candidates, key=lambda j: (-scores[j], j))


@dataclass(frozen=True)
class Row:
    """One query of one head: its contributions and its candidates, best first."""

    y: np.ndarray
    order: list[int]
    scores: list[float]

    def uncertain(self, n: int, eps: float) -> bool:
        """The n-th and the next score differ by less than rounding of a norm allows, yet differ."""
        last, following = (self.scores[self.order[place]] for place in (n - 1, n))
        return 0 < last - following <= 8 * eps * last

    def scores_of(self, n: int, **options) -> tuple[Cluster, Cluster, Cluster]:
        """As :func:`clusters` for the n best candidates; NaN if that leaves none."""
        if n >= len(self.order):
            return NOTHING, NOTHING, NOTHING
        return clusters(self.y, self.order[:n], self.order[n:], **options)


def rows(
    pattern,
    v,
    W_O=None,
    *,
    rank_by="attention",
    exclude_sink=False,
    space="head",
    available=None,
    sink="first",
) -> dict[tuple[int, int, int], Row]:
    """Every (batch, head, query) with its contributions; padding queries have no candidates."""
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    attention, v = to_array(pattern), to_array(v)
    group = attention.shape[1] // v.shape[2]
    projected = projected_values(v, W_O) if space == "model" else None
    found = {}
    for b, h, i in np.ndindex(attention.shape[:3]):
        values = v[b, :, h // group] if projected is None else projected[b, h]
        candidates = [
            j
            for j in range(attention.shape[3])
            if mask[b, h, i, j] and not (exclude_sink and sinks[b, h, j])
        ]
        alpha = attention[b, h, i]
        y = np.array(
            [alpha[j] * values[j] if j in candidates else 0 * values[j] for j in range(len(alpha))]
        )
        if rank_by == "attention":
            scores = [float(a) for a in alpha]
        else:
            assert rank_by == "value_weighted"
            scores = [
                float(alpha[j]) * norm(values[j]) if j in candidates else 0.0
                for j in range(len(alpha))
            ]
        found[b, h, i] = Row(y, ranked(scores, candidates), scores)
    return found


def separability(
    pattern,
    v,
    W_O=None,
    *,
    top_n=(1, 2, 4, 8, 16, 32),
    distance="euclidean",
    eps=DOUBLE,
    **options,
) -> dict[str, np.ndarray]:
    """Each field as an array ``batch head query top_n``, for all queries."""
    shape = (*pattern.shape[:3], len(top_n))
    result = {name: np.full(shape, np.nan) for name in FIELDS}
    for place, row in rows(pattern, v, W_O, **options).items():
        for k, n in enumerate(top_n):
            found = row.scores_of(n, distance=distance, eps=eps)[0]
            for name in FIELDS:
                result[name][(*place, k)] = getattr(found, name)
    return result


def inversion_bounds(inversions: float, n: int) -> tuple[float, float, float]:
    """Precision, recall and F are at least this much with so many inversions."""
    f_score = 0.0
    if inversions < n:
        f_score = 2 * n * (n - inversions) / (2 * n * n - inversions * inversions)
    return n / (n + inversions), max(0.0, 1 - inversions / n), f_score


def evenly_spaced(positions: Sequence[int], count: int) -> list[int]:
    """So many of the positions, evenly spaced, the last included; all if there are no more."""
    n = len(positions)
    if n <= count:
        return list(positions)
    return [positions[n * k // count - 1] for k in range(1, count + 1)]
