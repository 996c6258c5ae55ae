"""Synthetic variables of `Sinks`, `Switches` and `Smoothing` that tell how sinks work."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

RATES = [round((k + 0.5) / 10, 3) for k in range(10)]
GAPS = [round(2 * (k + 0.5) / 20 - 1, 3) for k in range(20)]
THRESHOLDS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
FRACTIONS = [0.05, 0.1, 0.2, 0.3]
COORDS = {
    "sink_rate_bin": RATES,
    "gap_bin": GAPS,
    "norm_threshold": THRESHOLDS,
    "fraction": FRACTIONS,
}
FLAGS = ("dormant_by_rate", "dormant_by_norm", "low_norm")
"""Without standard errors, as in a result of `analyze`."""


def make_mechanisms(
    sink_rate: NDArray[Any], seed: int, blank_layers: tuple[int, ...], error: float = 0.01
) -> dict[str, Any]:
    """Variables by name with their dimensions; what the papers claim holds in them."""
    rng = np.random.default_rng([seed, 1])
    held = _sinks(rng, sink_rate) | _switches(rng, sink_rate) | _smoothing(rng, len(sink_rate))
    for _, values in held.values():
        values[list(blank_layers)] = np.nan
    errors = {
        f"{name}_se": (dims, np.where(np.isnan(values), np.nan, error))
        for name, (dims, values) in held.items()
        if name not in FLAGS
    }
    return held | errors


def _sinks(rng: np.random.Generator, sink_rate: NDArray[Any]) -> dict[str, Any]:
    shape = sink_rate.shape
    optimum = rng.uniform(0.3, 0.6, shape)
    a = np.array(RATES)
    lengths = np.sqrt(0.4 + 2 * (a - optimum[..., None]) ** 2)
    reach = rng.integers(4, 11, shape)[..., None]  # not every head has rows at every rate
    lengths[np.arange(10) >= reach] = np.nan
    norm = rng.uniform(0.5, 2, shape)
    ratio = norm / norm.mean(-1, keepdims=True)
    quartile = np.quantile(norm, 0.25, axis=-1, keepdims=True)
    per_head = {
        "sink_norm_ratio_model": np.exp(rng.normal(-1.5, 0.4, shape)),
        "sink_cosine_model": rng.uniform(-0.5, 0.1, shape),
        "sink_spearman_attention": rng.uniform(-0.3, 0.3, shape),
        "sink_spearman_relative_norm": rng.uniform(-0.8, -0.4, shape),
        "sink_spearman_cosine": rng.uniform(0.7, 1, shape),
        "tail_spearman_attention": rng.uniform(0.4, 0.7, shape),
        "tail_spearman_relative_norm": rng.uniform(-0.1, 0.2, shape),
        "tail_spearman_cosine": rng.uniform(0.6, 0.9, shape),
        "output_norm_with_sink": norm,
        "output_norm_no_sink": norm * rng.uniform(1.1, 1.5, shape),
        "output_norm_ratio": ratio,
        "cone_alignment": rng.uniform(0.1, 0.4, shape),
        "cone_alignment_no_sink": rng.uniform(0.5, 0.8, shape),
        "sink_optimum": optimum,
        "sink_optimum_gap": sink_rate - optimum,
        "sink_optimum_inside": rng.uniform(0.7, 1, shape),
        "sink_below_optimum": rng.uniform(0.2, 0.6, shape),
        "sink_fit_convex": rng.uniform(0.6, 1, shape),
        "dormant_by_rate": (sink_rate > 0.8).astype(float),
        "low_norm": (norm <= quartile).astype(float),
    }
    gaps = np.exp(-(((np.array(GAPS) - (sink_rate - optimum)[..., None]) / 0.3) ** 2))
    held: dict[str, Any] = {name: (("layer", "head"), x) for name, x in per_head.items()}
    return held | {
        "norm_by_sink_rate": (("layer", "head", "sink_rate_bin"), lengths),
        "optimum_gap_histogram": (("layer", "head", "gap_bin"), gaps / gaps.sum(-1, keepdims=True)),
        "dormant_by_norm": (
            ("layer", "head", "norm_threshold"),
            (ratio[..., None] < THRESHOLDS).astype(float),
        ),
    }


def _switches(rng: np.random.Generator, sink_rate: NDArray[Any]) -> dict[str, Any]:
    shape = sink_rate.shape
    f = np.array(FRACTIONS)
    off = sink_rate[..., None] * f * rng.uniform(1.5, 3, (*shape, 1))
    rate_on = np.broadcast_to(0.7 * sink_rate[..., None], off.shape).copy()
    diagonal = rng.uniform(0, 0.2, shape)
    diagonal[0, 0] = 0.7
    return {
        "off_rate": (("layer", "head", "fraction"), off),
        "sink_rate_off": (("layer", "head", "fraction"), 0.6 + 0.4 * rate_on),
        "sink_rate_on": (("layer", "head", "fraction"), rate_on),
        "diagonal_attention": (("layer", "head"), diagonal),
        "mixing_ratio": (("layer", "head"), rng.uniform(0.5, 1, shape)),
        "mixing_ratio_no_sink": (("layer", "head"), 1 - diagonal),
        "sink_logit_margin_min": (("layer", "head"), rng.normal(0, 2, shape)),
        "sink_logit_margin_mean": (("layer", "head"), rng.uniform(2, 8, shape)),
    }


def _smoothing(rng: np.random.Generator, n_layers: int) -> dict[str, Any]:
    depth = (np.arange(n_layers) + 0.5) / n_layers
    similar = 0.1 + 0.6 * depth
    cosine = 2 * np.abs(depth - 0.5) ** 2 - 0.2
    per_layer = {
        "similarity_in": similar,
        "similarity_out": similar + 0.6 / n_layers,
        "residual_in": np.sqrt(1 - similar),
        "residual_out": np.sqrt(1 - similar) - 0.1 / n_layers,
        "bos_cosine": cosine,
        "bos_cosine_max": cosine + rng.uniform(0.1, 0.2, n_layers),
        "halfspace_feasible": np.ones(n_layers),
        "halfspace_rank": np.full(n_layers, 500.0),
        "halfspace_tokens": np.full(n_layers, 512.0),
        "halfspace_origin_margin": 0.2 + 0.2 * depth,
        "halfspace_origin_margin_random": np.full(n_layers, 0.05),
        "halfspace_sink_margin": 0.7 - 0.2 * depth,
        "halfspace_sink_margin_random": np.full(n_layers, 0.12),
    }
    return {name: (("layer",), x) for name, x in per_layer.items()}
