"""What ablations do to one attention layer, entry by entry: new attention weights, values and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .masks import to_array


def visible(
    real_queries: np.ndarray, real_keys: np.ndarray, *, causal: bool, window: int | None
) -> np.ndarray:
    """``batch query key``: what padding, causality and a sliding window leave."""
    (batch, queries), keys = real_queries.shape, real_keys.shape[1]
    found = np.zeros((batch, queries, keys), dtype=bool)
    for b, i, j in np.ndindex(found.shape):
        seen = bool(real_queries[b, i]) and bool(real_keys[b, j])
        if causal and j > i:
            seen = False
        if window is not None and i - j >= window:
            seen = False
        found[b, i, j] = seen
    return found


def nth_real(real: np.ndarray, ordinals: Iterable[int]) -> np.ndarray:
    """``batch key``: the k-th real token of each row, for every k."""
    chosen = np.zeros(real.shape, dtype=bool)
    for b, row in enumerate(real):
        places = [j for j, is_real in enumerate(row) if is_real]
        for k in ordinals:
            if k < len(places):
                chosen[b, places[k]] = True
    return chosen


def columns(chosen: np.ndarray, heads: Sequence[int], n_heads: int, n_queries: int) -> np.ndarray:
    """Entries of chosen keys (``batch key``) in all rows of some heads."""
    batch, n_keys = chosen.shape
    entries = np.zeros((batch, n_heads, n_queries, n_keys), dtype=bool)
    for b, h, i, j in np.ndindex(entries.shape):
        entries[b, h, i, j] = h in heads and chosen[b, j]
    return entries


def mix(pattern, v) -> np.ndarray:
    """z, ``batch query head d_head``: sums of values, each weighted by the attention to it."""
    pattern, v = to_array(pattern), to_array(v)
    batch, heads, queries, _ = pattern.shape
    group = heads // v.shape[2]
    z = np.zeros((batch, queries, heads, v.shape[3]))
    for b, h, i, j in np.ndindex(pattern.shape):
        z[b, i, h] += pattern[b, h, i, j] * v[b, j, h // group]
    return z


def project(z, W_O, b_O=None) -> np.ndarray:
    """``batch query d_model``: the sum over heads of z W_O, plus the bias."""
    z, W_O = to_array(z), to_array(W_O)
    out = np.zeros((*z.shape[:2], W_O.shape[2]))
    for b, i, h in np.ndindex(z.shape[:3]):
        out[b, i] += z[b, i, h] @ W_O[h]
    return out if b_O is None else out + to_array(b_O)


def removed_terms(pattern, v, W_O, entries: np.ndarray) -> np.ndarray:
    """The sum of alpha_ij v_j W_O over some entries, ``batch query d_model``."""
    pattern, v, W_O = to_array(pattern), to_array(v), to_array(W_O)
    group = pattern.shape[1] // v.shape[2]
    total = np.zeros((pattern.shape[0], pattern.shape[2], W_O.shape[2]))
    for b, h, i, j in np.argwhere(entries):
        total[b, i] += pattern[b, h, i, j] * (v[b, j, h // group] @ W_O[h])
    return total


def removed_heads(pattern, v, W_O, heads: Sequence[int]) -> np.ndarray:
    """The sum of z W_O over some heads, ``batch query d_model``."""
    pattern = to_array(pattern)
    entries = np.zeros(pattern.shape, dtype=bool)
    for h in heads:
        entries[:, h] = True
    return removed_terms(pattern, v, W_O, entries)


def renormalized(pattern, entries: np.ndarray, *, null: bool = False) -> np.ndarray:
    """Entries removed, the rest of each row over its sum; with ``null``, a learned sink has what rows lack of 1."""
    pattern = to_array(pattern)
    result = pattern.copy()
    for b, h, i in np.ndindex(pattern.shape[:3]):
        kept = [
            0.0 if gone else w for w, gone in zip(pattern[b, h, i], entries[b, h, i], strict=True)
        ]
        rest = sum(kept) + (1 - sum(pattern[b, h, i]) if null else 0)
        if entries[b, h, i].any() and rest > 0:
            result[b, h, i] = [w / rest for w in kept]
    return result


def values_replaced_by_means(pattern, v, entries: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """z where each query finds, in place of a value, the mean of the values that it can see."""
    pattern, v = to_array(pattern), to_array(v)
    group = pattern.shape[1] // v.shape[2]
    z = np.zeros((pattern.shape[0], pattern.shape[2], pattern.shape[1], v.shape[3]))
    for b, h, i in np.ndindex(pattern.shape[:3]):
        values = v[b, :, h // group]
        visible_values = [values[j] for j in range(len(values)) if seen[b, i, j]]
        for j in range(len(values)):
            value = values[j]
            if entries[b, h, i, j] and visible_values:
                value = sum(visible_values) / len(visible_values)
            z[b, i, h] += pattern[b, h, i, j] * value
    return z


def running_mean(z, real: np.ndarray, *, causal: bool) -> np.ndarray:
    """Mean of z over the real positions up to each one, or over all real ones."""
    z = to_array(z)
    result = np.zeros(z.shape)
    for b, i in np.ndindex(z.shape[:2]):
        some = [z[b, k] for k in range(z.shape[1]) if real[b, k] and (k <= i or not causal)]
        if some:
            result[b, i] = sum(some) / len(some)
    return result


def target_pattern(kind: str, seen: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """``batch query key``: attention to oneself, to all visible keys, or to the visible sinks; NaN rows have none."""
    goal = np.full(seen.shape, np.nan)
    for b, i in np.ndindex(seen.shape[:2]):
        keys = [j for j in range(seen.shape[2]) if seen[b, i, j]]
        if kind == "identity":
            keys = [j for j in keys if j == i]
        if kind == "sink":
            keys = [j for j in keys if sinks[b, j]]
        if keys:
            goal[b, i] = [1 / len(keys) if j in keys else 0.0 for j in range(seen.shape[2])]
    return goal


def moved_towards(pattern, goal: np.ndarray, t: float, heads: Sequence[int]) -> np.ndarray:
    """(1 - t) pattern + t goal in some heads, where there is a goal."""
    result = to_array(pattern).copy()
    for b, h, i in np.ndindex(result.shape[:3]):
        if h in heads and not np.isnan(goal[b, i]).any():
            result[b, h, i] = (1 - t) * result[b, h, i] + t * goal[b, i]
    return result
