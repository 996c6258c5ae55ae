"""Dormant heads: heads that rest on their sink, or write next to nothing.

Two criteria, no agreed threshold: a mean sink rate above ``rate`` (after Gu et al., arXiv
2410.10781), and a mean output norm below a share of the layer's mean (Sandoval-Segura et al., arXiv
2504.03889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from tl_geometry.arguments import real_number
from tl_geometry.measures.devices import constants
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.scaling import full_precision, scale
from tl_geometry.measures.sinks import masked_mean

DORMANT_RATE = 0.8
NORM_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class DormantHeads:
    """Both criteria for dormant heads, per document (batch row).

    Attributes:
        sink_rate: attention to the sinks, mean over later queries that see one.
        null_sink_rate: what is left of the attention of these rows: that of a learned null sink.
        norm_ratio: mean |o_i| of the head over the mean of that over the layer's heads; NaN where all
            heads write nothing, and for the whole layer where one head's outputs are not finite.
        by_rate: sink_rate + null_sink_rate > ``rate``.
        by_norm: norm_ratio below each threshold.
        thresholds: those thresholds.
    """

    sink_rate: Float[Tensor, "batch head"]
    null_sink_rate: Float[Tensor, "batch head"]
    norm_ratio: Float[Tensor, "batch head"]
    by_rate: Bool[Tensor, "batch head"]
    by_norm: Bool[Tensor, "batch head threshold"]
    thresholds: tuple[float | int, ...]


@full_precision
def dormant_heads(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    rate: float | int = DORMANT_RATE,
    norm: float | int | Sequence[float | int] | NDArray[Any] | Tensor | None = None,
    available: Tensor | None = None,
    sink: SinkRule = "first",
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
    cross: bool = False,
) -> DormantHeads:
    """Which heads are dormant in each document, by their sink rate and by the length of what they write.

    >>> pattern = torch.ones(1, 2, 3, 3).tril() / torch.arange(1, 4)[:, None]
    >>> W_O = torch.stack([torch.eye(2), 0.1 * torch.eye(2)])
    >>> found = dormant_heads(pattern, torch.ones(1, 3, 1, 2), W_O, norm=0.5)
    >>> found.by_norm[0, :, 0].tolist(), found.by_rate[0].tolist()
    ([False, True], [False, False])

    Args:
        rate: mean sink rate above which a head is dormant.
        norm: share of the layer's mean output norm below which a head is dormant, or several; by
            default the curve over 0.1, 0.2, ..., 0.8. A row whose output has cancelled to rounding
            error counts as 0.

    Where a criterion is NaN, the head is not called dormant. Other arguments and errors as in
    :func:`tl_geometry.measures.sink_curve.sink_norm_curve`.

    Raises:
        ValueError: a rate outside [0, 1], or a threshold that is not positive.
    """
    rate = real_number("rate", rate)
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is a share of attention, so it must lie in [0, 1], got {rate}")
    given: Any = norm.tolist() if isinstance(norm, (np.ndarray, Tensor)) else norm
    given = NORM_THRESHOLDS if given is None else given
    several = isinstance(given, Sequence) and not isinstance(given, str)
    thresholds = tuple(real_number("norm", x) for x in (given if several else (given,)))
    if not thresholds or any(not threshold > 0 for threshold in thresholds):
        raise ValueError(
            f"norm is a share of the layer's mean output norm, so it must be positive, got {norm}"
        )
    geometry = AttentionGeometry(
        pattern,
        v,
        W_O,
        available=available,
        sink=sink,
        value_bias=value_bias,
        b_V=b_V,
        output=output,
        norm_weight=norm_weight,
        cross=cross,
    )
    sink_rate = masked_mean(geometry.sink_attention, geometry.sink_rows)
    null_rate = masked_mean(geometry.null_attention, geometry.sink_rows)
    ratio = output_norm_ratio(geometry)
    return DormantHeads(
        sink_rate,
        null_rate,
        ratio,
        sink_rate + null_rate > rate,
        ratio.unsqueeze(-1) < constants(thresholds, ratio),
        thresholds,
    )


def output_norm_ratio(geometry: AttentionGeometry) -> Float[Tensor, "batch head"]:
    """Mean |o_i| of each head over all its rows, over the mean of the layer's heads that have rows."""
    norms = geometry.output_norms("intra")
    # What has cancelled is nothing written; values that are NaN stay NaN.
    norms = torch.where(norms.isnan(), 0 * geometry.totals.along, norms)
    exponent = geometry.frame.exponent
    means = scale(masked_mean(norms, geometry.rows), exponent - exponent.max())
    unknown = (~means.isfinite() & geometry.rows.any(-1)).any(-1, keepdim=True)
    layer = means.nanmean(-1, keepdim=True).masked_fill(unknown, torch.nan)
    return means / torch.where(layer > 0, layer, torch.nan)
