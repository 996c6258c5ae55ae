"""The semantic cone and dormant heads with every projected value and output written out."""

from __future__ import annotations

import math

import numpy as np

from .contributions import UNDEFINED, projected_values
from .masks import available_mask, sink_mask, to_array
from .sink_curve import sink_rows


def cosine(x, y) -> float:
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def cone_axis(values, seen, sinks) -> np.ndarray:
    """Mean direction of the values of one head at the keys that are seen and are no sinks."""
    units = [
        values[j] / np.linalg.norm(values[j])
        for j in range(len(values))
        if seen[j] and not sinks[j] and np.linalg.norm(values[j]) > 0
    ]
    return sum(units) / len(units) if units else np.full(values.shape[-1], np.nan)


def lowest_quartile(norms) -> list[bool]:
    """Which of the heads are not above the 25% quantile, by the definition of linear interpolation."""
    ordered = sorted(x for x in norms if not math.isnan(x))
    if len(ordered) < 2:
        return [False for _ in norms]
    place = (len(ordered) - 1) / 4
    below = int(place)
    quantile = ordered[below]
    if place > below:
        quantile += (place - below) * (ordered[below + 1] - ordered[below])
    return [bool(x <= quantile) for x in norms]


def semantic_alignment(
    pattern, v, W_O, *, available=None, sink="first", cross=False, **options
) -> dict[str, np.ndarray]:
    """The fields as arrays; ``low_norm`` is bool."""
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    values = projected_values(v, W_O, **options)
    pattern = to_array(pattern)
    names = ("alignment", "norm", "alignment_no_sink", "norm_no_sink")
    result = {name: np.full(pattern.shape[:3], np.nan) for name in names}
    result["tightness"] = np.full(pattern.shape[:2], np.nan)
    result["low_norm"] = np.zeros(pattern.shape[:2], dtype=bool)
    for b, h in np.ndindex(pattern.shape[:2]):
        seen = [bool(mask[b, h, :, j].any()) for j in range(pattern.shape[3])]
        axis = cone_axis(values[b, h], seen, sinks[b, h])
        result["tightness"][b, h] = np.linalg.norm(axis)
        for i, marked, others in sink_rows(mask, sinks, b, h, cross):
            for suffix, keys in (("", marked + others), ("_no_sink", others)):
                terms = [pattern[b, h, i, j] * values[b, h, j] for j in keys]
                output = sum(terms, np.zeros(values.shape[-1]))
                norm = np.linalg.norm(output)
                result[f"norm{suffix}"][b, h, i] = norm
                total = sum(np.linalg.norm(term) for term in terms)
                if norm > UNDEFINED * total and np.linalg.norm(axis) > UNDEFINED:
                    result[f"alignment{suffix}"][b, h, i] = cosine(output, axis)
    for b in range(len(pattern)):
        rows = [row[~np.isnan(row)] for row in result["norm"][b]]
        means = [row.mean() if len(row) else math.nan for row in rows]
        result["low_norm"][b] = lowest_quartile(means)
    return result


def output_norm_ratios(pattern, v, W_O, *, available=None, **options) -> np.ndarray:
    """``batch head``: mean |o_i| over all rows of a head, over the mean of the layer's heads."""
    mask = available_mask(pattern, available)
    values = projected_values(v, W_O, **options)
    pattern = to_array(pattern)
    means = np.full(pattern.shape[:2], np.nan)
    for b, h in np.ndindex(means.shape):
        lengths = [
            np.linalg.norm(pattern[b, h, i, mask[b, h, i]] @ values[b, h, mask[b, h, i]])
            for i in range(pattern.shape[2])
            if mask[b, h, i].any()
        ]
        if lengths:
            means[b, h] = sum(lengths) / len(lengths)
    result = np.full(means.shape, np.nan)
    for b, row in enumerate(means):
        known = [x for x in row if not math.isnan(x)]
        if known and sum(known) > 0:
            result[b] = row / (sum(known) / len(known))
    return result
