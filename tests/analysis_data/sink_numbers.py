"""What Sinks must say of outputs, their curves and their cone: one document at a time, slowly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from literal import cone as literal_cone, sink_curve as literal_curve
from literal.contributions import contribution_weights

RATE_EDGES = [k / 10 for k in range(11)]
GAP_EDGES = [k / 10 - 1 for k in range(21)]
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
LABELS = ("dormant_by_rate", "dormant_by_norm", "low_norm", "sink_fit", "sink_fit_curvature")


def _mean(values: Any) -> float:
    known = [float(x) for x in values if not math.isnan(x)]
    return sum(known) / len(known) if known else math.nan


def _parabola(lengths: np.ndarray) -> np.ndarray:
    """Through the squared lengths in the middle of each tenth that has any."""
    middles = np.arange(0.05, 1, 0.1)
    known = ~np.isnan(lengths)
    if known.sum() < 3:
        return np.full(3, math.nan)
    return np.polyfit(middles[known], lengths[known] ** 2, 2)[::-1]


def _convex(a: np.ndarray, square: np.ndarray) -> float:
    if len(set(np.round(a, 9))) < 3:
        return math.nan
    return float(np.polyfit(a, square, 2)[0] > 0)


def sink_numbers(
    pattern: torch.Tensor,
    v: torch.Tensor,
    W_O: torch.Tensor,
    available: torch.Tensor,
    *,
    sink: int = 0,
    cross: bool = False,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Every variable for one document without padding: an array over heads (and bins)."""
    tensors, inputs = (pattern, v, W_O), {"available": available, **options}
    sinks = {"sink": sink, "cross": cross}
    curve = {
        name: x[0] for name, x in literal_curve.sink_norm_curve(*tensors, **inputs, **sinks).items()
    }
    cone = {
        name: x[0]
        for name, x in literal_cone.semantic_alignment(*tensors, **inputs, **sinks).items()
    }
    cancelled = np.isnan(contribution_weights(*tensors, **inputs)[0]).any(-1)
    found: dict[str, list[Any]] = {}

    def put(name: str, value: Any) -> None:
        found.setdefault(name, []).append(value)

    for h in range(pattern.shape[1]):
        put("output_norm_with_sink", _mean(cone["norm"][h]))
        put("output_norm_no_sink", _mean(cone["norm_no_sink"][h]))
        put("cone_tightness", cone["tightness"][h])
        put("cone_alignment", _mean(cone["alignment"][h]))
        put("cone_alignment_no_sink", _mean(cone["alignment_no_sink"][h]))
        rows = ~np.isnan(curve["norm"][h])
        a, norm, minimal = (curve[name][h][rows] for name in ("attention", "norm", "minimal_norm"))
        written = ~cancelled[h][rows]
        put("minimal_norm", _mean(minimal))
        put("minimal_norm_ratio", _mean(minimal[written] / norm[written]))
        put("sink_fit_convex", _convex(a, norm**2))
        means, _ = literal_curve.binned(norm, a, RATE_EDGES)
        overall = _mean(norm)
        put("norm_by_sink_rate", [x / overall if overall > 0 else math.nan for x in means])
        optimum = curve["optimum"][h][rows]
        a, optimum = a[~np.isnan(optimum)], optimum[~np.isnan(optimum)]
        gap = a - optimum
        put("sink_optimum", _mean(optimum))
        put("sink_optimum_gap", _mean(gap))
        put("sink_optimum_inside", _mean((optimum > 0) & (optimum < 1)))
        put("sink_below_optimum", _mean(gap < 0))
        put("optimum_gap_histogram", literal_curve.binned(gap, gap, GAP_EDGES)[1])
    result = {name: np.array(values, dtype=float) for name, values in found.items()}
    result["output_norm_ratio"] = literal_cone.output_norm_ratios(*tensors, **inputs)[0]
    return result


def sink_labels(result: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Dormant and low-norm heads of one layer and the parabolas, from the means over documents."""
    rate, ratio, norm = (
        result[name] for name in ("sink_rate", "output_norm_ratio", "output_norm_with_sink")
    )
    rate = rate + result["null_sink_rate"]
    below = [[float(x < t) if x == x else math.nan for t in THRESHOLDS] for x in ratio]
    low = literal_cone.lowest_quartile(norm)
    fits = np.array([_parabola(lengths) for lengths in result["norm_by_sink_rate"]])
    return {
        "dormant_by_rate": np.array([float(x > 0.8) if x == x else math.nan for x in rate]),
        "dormant_by_norm": np.array(below),
        "sink_fit": fits,
        "sink_fit_curvature": 2 * fits[:, 2],
        "low_norm": np.array(
            [float(y) if x == x else math.nan for x, y in zip(norm, low, strict=True)]
        ),
    }
