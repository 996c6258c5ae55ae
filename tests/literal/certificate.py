"""The sink-aware certificate: which pairs could be in the wrong order, given lengths and angles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .contributions import projected_values
from .masks import available_mask, sink_mask, to_array
from .separability import DOUBLE, TIE, inversion_bounds, norm, ranked

FIELDS = ("precision", "recall", "f_score", "inversions")


def cosine_bounds(values, sinks, keys):
    """((lowest, highest) between others, (lowest, highest) between a sink and the others)."""
    others, between = [], []
    for i in keys:
        for j in keys:
            if i == j or sinks[j]:
                continue
            cosine = 0.0  # by convention where a value is zero
            if np.any(values[i]) and np.any(values[j]):
                cosine = float(values[i] / norm(values[i]) @ (values[j] / norm(values[j])))
            (between if sinks[i] else others).append(cosine)
    return tuple((min(c), max(c)) if c else (0.0, 0.0) for c in (others, between))


@dataclass(frozen=True)
class Possible:
    """Possible inversions: how many, and how many if rounding decides for or against them."""

    count: int
    fewest: int
    most: int


def possible_inversions(q, selected, others, sink, cosine, sink_cosine, eps=DOUBLE) -> Possible:
    """Pairs whose upper bound (selected) reaches the lower bound (unselected) of D^2 - |s|^2."""
    (c_lo, c_hi), (s_lo, s_hi) = cosine, sink_cosine
    Q = sum(q[i] for i in selected if i != sink)
    t = 1 if sink in selected else 0
    q_0 = q[sink] if sink is not None else 0.0
    upper, lower = {}, {}
    for i in selected:
        if i == sink:
            upper[i] = -(q_0**2) - 2 * q_0 * s_lo * Q
        else:
            upper[i] = -(q[i] ** 2) - 2 * q[i] * (c_lo * (Q - q[i]) + t * q_0 * s_lo)
    for u in others:
        if u == sink:
            lower[u] = q_0**2 - 2 * q_0 * s_hi * Q
        else:
            lower[u] = q[u] ** 2 - 2 * q[u] * (c_hi * Q + t * q_0 * s_hi)
    largest = max(q[j] for j in [*selected, *others])
    scale = (Q + t * q_0) ** 2 + largest**2
    gaps = [upper[i] - lower[u] for i in selected for u in others]
    return Possible(
        sum(gap >= 0 for gap in gaps),
        sum(gap >= -TIE * eps * scale for gap in gaps),
        sum(gap >= -32 * TIE * eps * scale for gap in gaps),
    )


def certificate(
    pattern,
    v,
    W_O=None,
    *,
    top_n=(1, 2, 4, 8, 16, 32),
    cosine=None,
    sink_cosine=None,
    sink_norm_ratio=None,
    space="head",
    available=None,
    sink="first",
    eps=DOUBLE,
) -> dict[str, np.ndarray]:
    """Bounds ``batch head query top_n`` for all queries; ``fewest``, ``most``: see Possible."""
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    attention, v = to_array(pattern), to_array(v)
    group = attention.shape[1] // v.shape[2]
    projected = projected_values(v, W_O) if space == "model" else None
    shape = (*attention.shape[:3], len(top_n))
    result = {name: np.full(shape, np.nan) for name in (*FIELDS, "fewest", "most")}
    for b, h in np.ndindex(shape[:2]):
        values = v[b, :, h // group] if projected is None else projected[b, h]
        keys = [j for j in range(len(values)) if mask[b, h, :, j].any()]
        measured = cosine_bounds(values, sinks[b, h], keys)
        c = measured[0] if cosine is None else cosine
        s = measured[1] if sink_cosine is None else sink_cosine
        for i in range(shape[2]):
            seen = [j for j in keys if mask[b, h, i, j]]
            marked = [j for j in seen if sinks[b, h, j]]
            assert len(marked) <= 1
            place = marked[0] if marked else None
            alpha = attention[b, h, i]
            if sink_norm_ratio is None:
                q = [alpha[j] * norm(values[j]) for j in range(len(alpha))]
            else:
                q = [alpha[j] * (sink_norm_ratio if j == place else 1) for j in range(len(alpha))]
            unit = max((q[j] for j in seen), default=0) or 1.0
            q = [x / unit for x in q]  # the count does not depend on it
            order = ranked(alpha, seen)
            for k, n in enumerate(top_n):
                if n >= len(order):
                    continue
                found = possible_inversions(q, order[:n], order[n:], place, c, s, eps)
                bounds = inversion_bounds(found.count, n)
                for name, value in zip(
                    (*FIELDS, "fewest", "most"),
                    (*bounds, found.count, found.fewest, found.most),
                    strict=True,
                ):
                    result[name][b, h, i, k] = value
    return result
