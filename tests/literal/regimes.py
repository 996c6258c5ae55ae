"""Winners of attention rows and the regimes of heads, counted one row at a time."""

from __future__ import annotations

import numpy as np

from .contributions import projected_values
from .masks import available_mask, sink_mask, to_array

SELF, SINK, OTHER, SKIPPED = 0, 1, 2, -1
LABELS = {SELF: "retriever", SINK: "mixer", OTHER: "reset"}


def source_winners(
    pattern,
    v,
    W_O=None,
    *,
    space="head",
    available=None,
    sink="first",
    cross=False,
    queries="all",
):
    """(position, category), each ``batch head query``; -1 where there is none."""
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    pattern, v = to_array(pattern), to_array(v)
    batch, heads, n_queries, keys = pattern.shape
    group = heads // v.shape[2]
    projected = projected_values(v, W_O) if space == "model" else None
    position = np.full((batch, heads, n_queries), -1)
    category = np.full((batch, heads, n_queries), SKIPPED)
    for b in range(batch):
        real = [i for i in range(n_queries) if mask[b, :, i].any()]
        for h in range(heads):
            for i in real:
                best = -1.0
                for j in range(keys):
                    value = v[b, j, h // group] if projected is None else projected[b, h, j]
                    score = pattern[b, h, i, j] * np.sqrt(np.sum(value * value))
                    if mask[b, h, i, j] and score > best:
                        best, position[b, h, i] = score, j
                if queries == "last" and i != real[-1]:
                    continue
                winner = position[b, h, i]
                if winner < 0 or (not cross and sinks[b, h, i]):
                    continue
                if not cross and winner == i:
                    category[b, h, i] = SELF
                else:
                    category[b, h, i] = SINK if sinks[b, h, winner] else OTHER
    return position, category


def head_regimes(pattern, v, W_O=None, *, cross=False, **options):
    """Per head: (label, self share, sink share, other share, rows, margin to the runner-up)."""
    category = source_winners(pattern, v, W_O, cross=cross, **options)[1]
    result = []
    for h in range(category.shape[1]):
        rows = [c for c in category[:, h].ravel() if c != SKIPPED]
        if not rows:
            result.append(("", np.nan, np.nan, np.nan, 0, np.nan))
            continue
        counts = {kind: sum(c == kind for c in rows) for kind in LABELS}
        first, second = sorted(counts.values(), reverse=True)[:2]
        leaders = [kind for kind in LABELS if counts[kind] == first]
        label = LABELS[leaders[0]] if len(leaders) == 1 else "reset"
        shares = [counts[kind] / len(rows) for kind in LABELS]
        result.append((label, *shares, len(rows), (first - second) / len(rows)))
    return result
