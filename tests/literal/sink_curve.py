"""The length of each output as a function of its sink's attention, by evaluating that function."""

from __future__ import annotations

import math

import numpy as np

from .contributions import UNDEFINED, projected_values
from .masks import available_mask, sink_mask, to_array
from .problems import assert_same

LENGTHS = ("norm", "minimal_norm", "sink_length", "rest_length")
PRODUCTS = ("curvature", "inner")
RATIOS = ("attention", "optimum", "optimum_unclipped", "sign_change")
FIELDS = (*RATIOS, *LENGTHS, *PRODUCTS)


def sink_rows(mask, sinks, b, h, cross=False):
    """Each later query of a head with the sinks it sees and its other keys."""
    queries, keys = mask.shape[2:]
    cross = cross or queries != keys
    for i in range(queries):
        seen = [j for j in range(keys) if mask[b, h, i, j]]
        marked = [j for j in seen if sinks[b, h, j]]
        if marked and (cross or not sinks[b, h, i]):
            yield i, marked, [j for j in seen if not sinks[b, h, j]]


def row_curve(weights, values, marked, others) -> dict[str, float] | None:
    """One row's curve, or None where s or m is undefined."""
    a = sum(weights[j] for j in marked)
    if 1 - a <= 2.0**-23:
        return None
    if len(marked) == 1:
        s = values[marked[0]]
    elif a > 0:
        s = sum(weights[j] * values[j] for j in marked) / a
    else:
        return None
    m = sum((weights[j] * values[j] for j in others), 0 * s) / (1 - a)
    gross = sum(weights[j] * np.linalg.norm(values[j]) for j in others) / (1 - a)

    def length(x: float) -> float:
        return float(np.linalg.norm(x * s + (1 - x) * m))

    def towards_sink(x: float) -> float:
        return float((x * s + (1 - x) * m) @ s)

    # A parabola through three of its points.
    start, middle, end = (length(x) ** 2 for x in (0, 0.5, 1))
    square = 2 * (start - 2 * middle + end)
    flat = np.linalg.norm(s - m) <= UNDEFINED * (np.linalg.norm(s) + gross)
    vertex = math.nan if flat else (square + start - end) / (2 * square)
    clipped = math.nan if flat else min(max(vertex, 0.0), 1.0)
    at_zero, at_one = towards_sink(0), towards_sink(1)
    return {
        "attention": a,
        "optimum": clipped,
        "optimum_unclipped": vertex,
        "norm": length(a),
        "minimal_norm": length(a if flat else clipped),
        "curvature": 2 * square,
        "sink_length": end**0.5,
        "rest_length": start**0.5,
        "inner": at_zero,
        "sign_change": at_zero / (at_zero - at_one) if at_zero < 0 else math.nan,
    }


def sink_norm_curve(
    pattern, v, W_O, *, available=None, sink="first", cross=False, **options
) -> dict[str, np.ndarray]:
    """Every field as an array ``batch head query``."""
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    values = projected_values(v, W_O, **options)
    pattern = to_array(pattern)
    result = {name: np.full(pattern.shape[:3], np.nan) for name in FIELDS}
    for b, h in np.ndindex(pattern.shape[:2]):
        for i, marked, others in sink_rows(mask, sinks, b, h, cross):
            for name, value in (
                row_curve(pattern[b, h, i], values[b, h], marked, others) or {}
            ).items():
                result[name][b, h, i] = value
    return result


def binned(x, by, edges) -> tuple[list[float], list[float]]:
    """Mean of x in each bin of ``by`` (the last one closed), and the share of the entries in each."""
    means, shares = [], []
    for k in range(len(edges) - 1):
        last = k == len(edges) - 2
        inside = [
            value
            for value, place in zip(x, by, strict=True)
            if edges[k] <= place and (place < edges[k + 1] or last)
        ]
        means.append(sum(inside) / len(inside) if inside else math.nan)
        shares.append(len(inside) / len(x) if len(x) else math.nan)
    return means, shares


def outputs(pattern, v, W_O):
    """``batch head query d_model``, straight from the definition."""
    values = v.repeat_interleave(pattern.shape[1] // v.shape[2], 2).transpose(1, 2)
    return pattern @ values @ W_O


def assert_curve(curve, expected, relative):
    """Every field, within ``relative`` of its row's scale."""
    lengths = expected["sink_length"] + expected["rest_length"]
    distance = np.sqrt(expected["curvature"] / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # a* moves by as much as a length over |s - m| where that length is rounded.
        worse = 1 + np.nan_to_num((lengths / distance) ** 2, posinf=0)
    assert set(vars(curve)) == set(expected)
    for name, values in expected.items():
        size = dict.fromkeys(LENGTHS, lengths) | dict.fromkeys(PRODUCTS, lengths**2)
        size |= {"optimum": worse, "optimum_unclipped": worse * (1 + np.abs(values))}
        assert_same(
            getattr(curve, name), values, relative * np.nan_to_num(size.get(name, 1), nan=1)
        )
