"""Switches and mixing ratios one row at a time, with every term written out."""

from __future__ import annotations

import math

import numpy as np

from .contributions import projected_values
from .masks import available_mask, sink_mask, to_array


def _layer(pattern, v, W_O, available, sink, options):
    mask = available_mask(pattern, available)
    sinks = sink_mask(sink, pattern, available)
    return mask, sinks, to_array(pattern), projected_values(v, W_O, **options)


def mixing_ratio(
    pattern, v, W_O, *, without_sink=False, available=None, sink="first", cross=False, **options
):
    """``batch head query``: length of what other tokens give, over that plus the own token's part."""
    mask, sinks, alpha, values = _layer(pattern, v, W_O, available, sink, options)
    ratio = np.full(alpha.shape[:3], np.nan)
    for b, h, i in np.ndindex(ratio.shape):
        if cross or alpha.shape[2] != alpha.shape[3] or not mask[b, h, i].any():
            continue
        mixed, own = np.zeros(values.shape[-1]), np.zeros(values.shape[-1])
        for j in range(alpha.shape[3]):
            term = alpha[b, h, i, j] * values[b, h, j] if mask[b, h, i, j] else 0 * own
            if j == i:
                own = term
            elif not (without_sink and sinks[b, h, j]):
                mixed = mixed + term
        total = np.linalg.norm(mixed) + np.linalg.norm(own)
        ratio[b, h, i] = np.linalg.norm(mixed) / total if total > 0 else math.nan
    return ratio


def _mean(values):
    return sum(values) / len(values) if values else math.nan


def switch_rates(
    pattern, v, W_O, *, fractions, available=None, sink="first", cross=False, **options
):
    """A dictionary of arrays ``batch head fraction``, and ``batch head`` for the diagonal."""
    mask, sinks, alpha, values = _layer(pattern, v, W_O, available, sink, options)
    batch, heads, queries, keys = alpha.shape
    cross = cross or queries != keys
    names = ("off_rate", "sink_rate_off", "sink_rate_on", "null_sink_rate_off", "null_sink_rate_on")
    found = {name: np.full((batch, heads, len(fractions)), np.nan) for name in names}
    found["diagonal_attention"] = np.full((batch, heads), np.nan)
    for b, h in np.ndindex(batch, heads):
        lengths = [
            np.linalg.norm(values[b, h, j])
            for j in range(keys)
            if mask[b, :, :, j].any() and not sinks[b, h, j]
        ]
        typical = float(np.median(lengths)) if lengths else math.nan
        rows = [i for i in range(queries) if mask[b, h, i].any() and (cross or not sinks[b, h, i])]
        if not cross:
            found["diagonal_attention"][b, h] = _mean([alpha[b, h, i, i] for i in rows])
        if not typical > 0:
            continue
        for k, fraction in enumerate(fractions):
            off, rates, nulls = [], {True: [], False: []}, {True: [], False: []}
            for i in rows:
                seen = [j for j in range(keys) if mask[b, h, i, j]]
                output = sum(alpha[b, h, i, j] * values[b, h, j] for j in seen)
                is_off = bool(np.linalg.norm(output) < fraction * typical)
                off.append(is_off)
                if any(sinks[b, h, j] for j in seen):
                    rates[is_off].append(sum(alpha[b, h, i, j] for j in seen if sinks[b, h, j]))
                    nulls[is_off].append(1 - sum(alpha[b, h, i, j] for j in seen))
            found["off_rate"][b, h, k] = _mean(off)
            found["sink_rate_off"][b, h, k] = _mean(rates[True])
            found["sink_rate_on"][b, h, k] = _mean(rates[False])
            found["null_sink_rate_off"][b, h, k] = _mean(nulls[True])
            found["null_sink_rate_on"][b, h, k] = _mean(nulls[False])
    return found


def sink_logit_margin(scores, *, available=None, sink="first", pattern=None):
    """``batch head query`` twice: smallest and mean lead; minus infinity is left out."""
    like = scores if pattern is None else pattern
    mask = available_mask(like, available)
    sinks = sink_mask(sink, like, available)
    logits = to_array(scores)
    smallest, mean = np.full(logits.shape[:3], np.nan), np.full(logits.shape[:3], np.nan)
    for b, h, i in np.ndindex(smallest.shape):
        seen = [
            j for j in range(logits.shape[3]) if mask[b, h, i, j] and logits[b, h, i, j] > -math.inf
        ]
        best = [logits[b, h, i, j] for j in seen if sinks[b, h, j]]
        leads = [max(best) - logits[b, h, i, j] for j in seen if best and not sinks[b, h, j]]
        if leads:
            smallest[b, h, i], mean[b, h, i] = min(leads), _mean(leads)
    return smallest, mean
