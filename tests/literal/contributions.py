"""Contribution weights and their baselines with every projected value written out."""

from __future__ import annotations

import numpy as np

from .masks import available_mask, to_array

UNDEFINED = 2.0**-20


def projected_values(
    v, W_O, *, value_bias="as_hooked", b_V=None, output="raw", norm_weight=None
) -> np.ndarray:
    """``batch head key d_model``: v_j W_O^h of the key-value head that each query head reads."""
    v, W_O = to_array(v), to_array(W_O)
    batch, keys, kv_heads, _ = v.shape
    heads, _, d_model = W_O.shape
    group = heads // kv_heads
    result = np.zeros((batch, heads, keys, d_model))
    for b in range(batch):
        for h in range(heads):
            weight = W_O[h] if output == "raw" else W_O[h] @ np.diag(to_array(norm_weight))
            for j in range(keys):
                value = v[b, j, h // group]
                if value_bias == "remove":
                    bias = to_array(b_V)
                    value = value - bias[h if len(bias) == heads else h // group]
                result[b, h, j] = value @ weight
    return result


def _terms(pattern, v, W_O, mode, available, options):
    """What every function needs: mask, attention, projected values, outputs, total term norms."""
    mask = available_mask(pattern, available)
    pattern = to_array(pattern)
    values = projected_values(v, W_O, **options)
    batch, heads, queries, keys = pattern.shape
    outputs = np.zeros((batch, heads, queries, values.shape[-1]))
    totals = np.zeros((batch, heads, queries))
    attention = np.zeros(pattern.shape)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for j in range(keys):
                    if not mask[b, h, i, j]:
                        continue
                    attention[b, h, i, j] = pattern[b, h, i, j]
                    term = pattern[b, h, i, j] * values[b, h, j]
                    outputs[b, h, i] += term
                    totals[b, h, i] += np.linalg.norm(term)
                if not mask[b, h, i].any():
                    attention[b, h, i] = np.nan
    if mode == "inter":
        for b in range(batch):
            for i in range(queries):
                outputs[b, :, i] = sum(outputs[b, h, i] for h in range(heads))
                totals[b, :, i] = sum(totals[b, h, i] for h in range(heads))
    return mask, attention, values, outputs, totals


def contribution_weights(pattern, v, W_O, *, mode="intra", available=None, **options):
    """c_ij = <o_i, alpha_ij v~_j> / |o_i|^2."""
    mask, attention, values, outputs, totals = _terms(pattern, v, W_O, mode, available, options)
    result = np.zeros(attention.shape)
    for b, h, i in np.ndindex(totals.shape):
        output = outputs[b, h, i]
        if not mask[b, h, i].any() or np.linalg.norm(output) <= UNDEFINED * totals[b, h, i]:
            result[b, h, i] = np.nan
            continue
        for j in range(attention.shape[-1]):
            if mask[b, h, i, j]:
                term = attention[b, h, i, j] * values[b, h, j]
                result[b, h, i, j] = (output @ term) / (output @ output)
    return result


def contribution_factors(pattern, v, W_O, *, mode="intra", available=None, **options):
    """Attention, |v~_j| / |o_i| and cos(o_i, v~_j) (0 where v~_j = 0), each as an array."""
    mask, attention, values, outputs, totals = _terms(pattern, v, W_O, mode, available, options)
    relative_norm = np.full(attention.shape, np.nan)
    cosine = np.full(attention.shape, np.nan)
    for b, h, i in np.ndindex(totals.shape):
        length = np.linalg.norm(outputs[b, h, i])
        if not mask[b, h, i].any() or length <= UNDEFINED * totals[b, h, i]:
            continue
        for j in range(attention.shape[-1]):
            norm = np.linalg.norm(values[b, h, j])
            relative_norm[b, h, i, j] = norm / length
            cosine[b, h, i, j] = 0
            if norm > 0:
                cosine[b, h, i, j] = outputs[b, h, i] @ values[b, h, j] / (length * norm)
    return attention, relative_norm, cosine


def value_weighted_attention(
    pattern, v, W_O, *, normalized=False, mode="intra", available=None, **options
):
    """alpha_ij |v~_j|, divided by |o_i| if normalized."""
    mask, attention, values, outputs, totals = _terms(pattern, v, W_O, mode, available, options)
    result = np.zeros(attention.shape)
    for b, h, i in np.ndindex(totals.shape):
        length = np.linalg.norm(outputs[b, h, i])
        undefined = normalized and length <= UNDEFINED * totals[b, h, i]
        if not mask[b, h, i].any() or undefined:
            result[b, h, i] = np.nan
            continue
        for j in range(attention.shape[-1]):
            if mask[b, h, i, j]:
                result[b, h, i, j] = attention[b, h, i, j] * np.linalg.norm(values[b, h, j])
                if normalized:
                    result[b, h, i, j] /= length
    return result


def suppression(pattern, v, W_O, *, mode="intra", available=None, **options):
    """alpha_ij sum_k c_ik - c_ij, the sum over the keys of the head."""
    attention = _terms(pattern, v, W_O, mode, available, options)[1]
    weights = contribution_weights(pattern, v, W_O, mode=mode, available=available, **options)
    result = np.zeros(weights.shape)
    for b, h, i, j in np.ndindex(weights.shape):
        share = sum(weights[b, h, i])
        result[b, h, i, j] = attention[b, h, i, j] * share - weights[b, h, i, j]
    return result


def importance(
    pattern, v, W_O, *, kind="contribution", mode="intra", absolute=False, available=None, **options
):
    """The importance of each entry by name (``random`` has no literal form)."""
    same = {"available": available, **options}
    if kind == "attention":
        result = _terms(pattern, v, W_O, mode, available, options)[1]
    elif kind == "contribution":
        result = contribution_weights(pattern, v, W_O, mode=mode, **same)
    else:
        normalized = {"value_weighted": False, "value_weighted_normalized": True}[kind]
        result = value_weighted_attention(pattern, v, W_O, normalized=normalized, mode=mode, **same)
    return np.abs(result) if absolute else result
