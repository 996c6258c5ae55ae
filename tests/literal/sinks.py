"""Sink rate, sink metric and sink geometry, one head of one document at a time."""

from __future__ import annotations

import math

import numpy as np

from .contributions import contribution_factors, contribution_weights, projected_values
from .masks import available_mask, received_attention, sink_mask, to_array


def sink_rate(pattern, *, available=None, sink="first"):
    """``batch head query``: attention on the sinks; NaN where no sink may be looked at."""
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    pattern = to_array(pattern)
    result = np.full(pattern.shape[:3], np.nan)
    for b, h, i in np.ndindex(result.shape):
        seen = [j for j in range(pattern.shape[3]) if mask[b, h, i, j] and sinks[b, h, j]]
        if seen:
            result[b, h, i] = sum(pattern[b, h, i, j] for j in seen)
    return result


def null_sink_rate(pattern, *, available=None):
    """``batch head query``: what a row's weights lack of 1; NaN where no key may be looked at."""
    mask = available_mask(pattern, available)
    pattern = to_array(pattern)
    result = np.full(pattern.shape[:3], np.nan)
    for b, h, i in np.ndindex(result.shape):
        seen = [j for j in range(pattern.shape[3]) if mask[b, h, i, j]]
        if seen:
            result[b, h, i] = 1 - sum(pattern[b, h, i, j] for j in seen)
    return result


def sink_metric(pattern, epsilon=0.3, *, available=None):
    """``batch head key``: 1 where the mean attention received exceeds epsilon, else 0."""
    received = received_attention(pattern, available)
    return np.where(np.isnan(received), np.nan, (received > epsilon).astype(float))


def average_ranks(values, sizes) -> list[float]:
    """Ranks from 1; neighbours closer than 2^-20 of their size share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    groups: list[list[tuple[int, int]]] = []
    for rank, place in enumerate(order, start=1):
        if groups:
            before = groups[-1][-1][1]
            if values[place] - values[before] <= 2.0**-20 * max(sizes[place], sizes[before]):
                groups[-1].append((rank, place))
                continue
        groups.append([(rank, place)])
    ranks = [0.0] * len(values)
    for group in groups:
        for _, place in group:
            ranks[place] = sum(rank for rank, _ in group) / len(group)
    return ranks


def spearman(left, right, left_size=None, right_size=None) -> float:
    """Pearson correlation of the average ranks; NaN if either side is constant."""
    if len(left) < 2:
        return math.nan
    x = np.array(average_ranks(left, np.abs(left) if left_size is None else left_size))
    y = np.array(average_ranks(right, np.abs(right) if right_size is None else right_size))
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt((x @ x) * (y @ y))
    return float(x @ y) / scale if scale > 0 else math.nan


def factor_correlations(c, attention, relative_norm, cosine) -> dict[str, float]:
    """Of contributions with each factor; a cosine is rounded on the scale of one, c on its factors'."""
    size = np.asarray(attention) * np.asarray(relative_norm)
    return {
        "attention": spearman(c, attention, size),
        "relative_norm": spearman(c, relative_norm, size),
        "cosine": spearman(c, cosine, size, np.ones(len(c))),
    }


def _values_around_sink(values, sinks, others):
    """Norms and cosines of the sink's value(s) among the others."""
    if not sinks or not others:
        return [math.nan] * 5
    sink_norm = sum(np.linalg.norm(values[s]) for s in sinks) / len(sinks)
    ordered = sorted(np.linalg.norm(values[j]) for j in others)
    middle = len(ordered) // 2
    median = ordered[middle]
    if len(ordered) % 2 == 0:
        median = (ordered[middle - 1] + ordered[middle]) / 2
    cosines = [
        values[s] @ values[j] / (np.linalg.norm(values[s]) * np.linalg.norm(values[j]))
        for s in sinks
        for j in others
    ]
    return sink_norm, median, sink_norm / median, sum(cosines) / len(cosines), max(cosines)


def sink_geometry(pattern, v, W_O, *, available=None, sink="first", **bias):
    """A dictionary of arrays ``batch head``; see the names at the end."""
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    projected = projected_values(v, W_O, **bias)
    head_space = projected_values(v, np.stack([np.eye(len(w)) for w in to_array(W_O)]), **bias)
    weights = contribution_weights(pattern, v, W_O, available=available, **bias)
    factors = contribution_factors(pattern, v, W_O, available=available, **bias)
    batch, heads, queries, keys = mask.shape
    cross = queries != keys
    result: dict[str, np.ndarray] = {}

    def put(name: str, value: float) -> None:
        result.setdefault(name, np.full((batch, heads), np.nan))[b, h] = value

    for b in range(batch):
        for h in range(heads):
            seen = [j for j in range(keys) if mask[b, h, :, j].any()]
            marked = [j for j in seen if sinks[b, h, j]]
            others = [j for j in seen if not sinks[b, h, j]]
            for suffix, values in (("", head_space[b, h]), ("_model", projected[b, h])):
                numbers = _values_around_sink(values, marked, others)
                names = ("sink_norm", "other_norm", "norm_ratio", "cosine_mean", "cosine_max")
                for name, number in zip(names, numbers, strict=True):
                    put(name + suffix, number)
            entries = [
                (i, j)
                for i in range(queries)
                for j in seen
                if mask[b, h, i, j] and not np.isnan(weights[b, h, i, j])
            ]
            at_sink = [
                (i, j) for i, j in entries if sinks[b, h, j] and (cross or not sinks[b, h, i])
            ]
            tail = [(i, j) for i, j in entries if not sinks[b, h, j]]
            negative = [weights[b, h, i, j] < 0 for i, j in at_sink]
            put("negative_share", sum(negative) / len(negative) if negative else math.nan)
            for group, places in (("sink", at_sink), ("tail", tail)):
                c = [weights[b, h, i, j] for i, j in places]
                chosen = [[factor[b, h, i, j] for i, j in places] for factor in factors]
                for name, value in factor_correlations(c, *chosen).items():
                    put(f"{group}_spearman_{name}", value)
    return result
