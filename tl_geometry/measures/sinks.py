"""Attention sinks: how much they receive, and what their values look like.

Sources: Cunningham & Muca Cirone, arXiv 2606.07604 (value geometry, sign and drivers of a sink's
contribution); Mudarisov et al., arXiv 2602.01893 (small, anti-aligned sink values); Gu et al., arXiv 2410.10781
(the sink metric).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.arguments import real_number
from tl_geometry.measures.checks import check_pattern
from tl_geometry.measures.devices import check_devices
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import ValueBias
from tl_geometry.measures.masks import (
    SinkRule,
    mask_of,
    received_attention,
    resolve_available,
    resolve_sinks,
)
from tl_geometry.measures.ranking import masked_median
from tl_geometry.measures.ranks import spearman
from tl_geometry.measures.scaling import full_precision, scaled_length


@dataclass(frozen=True)
class SinkGeometry:
    """The sink's values against all others, per document (batch row) and head; NaN where there is nothing to compare.

    Lengths without suffix are in head space (|v|); those ending in ``_model`` after the output
    projection (|v W_O|, units of the residual stream). With several sinks their mean is taken.

    Attributes:
        sink_norm, other_norm: length of the sink's value; median length of the others.
        norm_ratio: sink_norm / other_norm.
        cosine_mean, cosine_max: cosine of the sink's value with the other values.
        negative_share: share of later rows in which the sink's contribution weight (intra) is
            negative.
        sink_spearman_attention, sink_spearman_relative_norm, sink_spearman_cosine: rank correlation
            over rows of the sink's contribution weight with each of its factors.
        tail_spearman_attention, tail_spearman_relative_norm, tail_spearman_cosine: the same, pooled
            over all entries (row, key) whose key is not a sink.
    """

    sink_norm: Float[Tensor, "batch head"]
    other_norm: Float[Tensor, "batch head"]
    norm_ratio: Float[Tensor, "batch head"]
    cosine_mean: Float[Tensor, "batch head"]
    cosine_max: Float[Tensor, "batch head"]
    sink_norm_model: Float[Tensor, "batch head"]
    other_norm_model: Float[Tensor, "batch head"]
    norm_ratio_model: Float[Tensor, "batch head"]
    cosine_mean_model: Float[Tensor, "batch head"]
    cosine_max_model: Float[Tensor, "batch head"]
    negative_share: Float[Tensor, "batch head"]
    sink_spearman_attention: Float[Tensor, "batch head"]
    sink_spearman_relative_norm: Float[Tensor, "batch head"]
    sink_spearman_cosine: Float[Tensor, "batch head"]
    tail_spearman_attention: Float[Tensor, "batch head"]
    tail_spearman_relative_norm: Float[Tensor, "batch head"]
    tail_spearman_cosine: Float[Tensor, "batch head"]


def sink_rate(
    pattern: Float[Tensor, "batch head query key"],
    *,
    available: Tensor | None = None,
    sink: SinkRule = "first",
) -> Float[Tensor, "batch head query"]:
    """Attention that each row gives to the sinks, in [0, 1].

    Rows of padding queries, and rows from which a window hides every sink, are NaN. The row of the
    sink itself is included here; means over heads leave it out.

    >>> sink_rate(torch.tensor([[[[1.0, 0.0], [0.7, 0.3]]]]))[0, 0].tolist()
    [1.0, 0.699999988079071]

    Raises:
        ValueError: a mask of another shape, or a sink outside the sequence.
    """
    check_pattern(pattern)
    check_devices(pattern=pattern, available=available, sink=mask_of(sink))
    keep = resolve_available(pattern, available)
    sinks = resolve_sinks(sink, keep, pattern)
    seen = keep & sinks.unsqueeze(-2)
    wide = pattern if pattern.dtype == torch.float64 else pattern.float()
    return torch.where(seen, wide, 0).sum(-1).masked_fill(~seen.any(-1), torch.nan)


def null_sink_rate(
    pattern: Float[Tensor, "batch head query key"], *, available: Tensor | None = None
) -> Float[Tensor, "batch head query"]:
    """Attention that each row gives to no key: 1 - sum_j alpha_ij, what a learned null sink takes (gpt-oss).

    A null sink has value 0: it shortens outputs and contributes nothing. Nothing is renormalised.
    Where attention is a plain softmax this is 0 up to rounding; rows of padding queries are NaN.

    >>> null_sink_rate(torch.tensor([[[[0.25, 0.0], [0.5, 0.5]]]]))[0, 0].tolist()
    [0.75, 0.0]

    Raises:
        ValueError: a mask of another shape or on another device.
    """
    check_pattern(pattern)
    check_devices(pattern=pattern, available=available)
    keep = resolve_available(pattern, available)
    wide = pattern if pattern.dtype == torch.float64 else pattern.float()
    return (1 - torch.where(keep, wide, 0).sum(-1)).masked_fill(~keep.any(-1), torch.nan)


def sink_metric(
    pattern: Float[Tensor, "batch head query key"],
    epsilon: float | int = 0.3,
    *,
    available: Tensor | None = None,
) -> Float[Tensor, "batch head key"]:
    """Which keys are sinks in the sense of Gu et al.: 1.0 where they receive more than ``epsilon`` on average.

    The mean runs over the queries that can see the key. Keys that no query sees are NaN. Averaging
    the result for one key over layers, heads and samples (of 64 tokens, for their figures) gives
    the paper's sink rate.

    >>> sink_metric(torch.tensor([[[[1.0, 0.0], [0.7, 0.3]]]]))[0, 0].tolist()
    [1.0, 0.0]

    Raises:
        TypeError: epsilon is no number.
        ValueError: epsilon outside [0, 1].
    """
    check_pattern(pattern)
    check_devices(pattern=pattern, available=available)
    epsilon = real_number("epsilon", epsilon)
    if not 0 <= epsilon <= 1:
        raise ValueError(
            f"epsilon is a share of attention, so it must lie in [0, 1], got {epsilon}"
        )
    wide = pattern if pattern.dtype == torch.float64 else pattern.float()
    received, _ = received_attention(wide, resolve_available(pattern, available))
    return torch.where(received.isnan(), torch.nan, (received > epsilon).to(wide.dtype))


@full_precision
def sink_geometry(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    available: Tensor | None = None,
    sink: SinkRule = "first",
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    cross: bool = False,
) -> SinkGeometry:
    """Compare the sink's values with all others: lengths, angles, and what drives their contributions.

    >>> v = torch.tensor([[[[0.5, 0.0]], [[-2.0, 0.0]], [[-1.0, 1.0]]]])
    >>> geometry = sink_geometry(torch.ones(1, 1, 3, 3).tril(), v, torch.eye(2)[None])
    >>> round(geometry.cosine_mean.item(), 3)
    -0.854

    Raises:
        ValueError: shapes that do not fit, or a sink outside the sequence.
    """
    geometry = AttentionGeometry(
        pattern,
        v,
        W_O,
        available=available,
        sink=sink,
        value_bias=value_bias,
        b_V=b_V,
        cross=cross,
    )
    return SinkGeometry(
        **value_geometry(geometry),
        negative_share=negative_share(geometry),
        **{f"sink_spearman_{name}": value for name, value in sink_correlations(geometry).items()},
        **{f"tail_spearman_{name}": value for name, value in tail_correlations(geometry).items()},
    )


def value_geometry(geometry: AttentionGeometry) -> dict[str, Float[Tensor, "batch head"]]:
    """Lengths and cosines of the sinks' values against the others', in head space and in model space."""
    real = geometry.real_keys.expand(-1, geometry.n_heads, -1)
    sinks = geometry.sinks.expand(-1, geometry.n_heads, -1)
    others = real & ~sinks
    found = {}
    spaces = (
        ("", geometry.head_values, geometry.raw_value_norms),
        ("_model", geometry.values, geometry.value_norms),
    )
    for suffix, values, norms in spaces:
        sink_norm = masked_mean(norms, sinks)
        other_norm = masked_median(norms, others)
        # Cosines to several sinks average into the product with their mean direction.
        per_length = 1 / norms.masked_fill(norms == 0, torch.nan)
        index, known = geometry.sink_keys
        shares = torch.where(known, per_length.gather(-1, index), 0).unsqueeze(-2)
        # Divided last: without any sink there is nothing to multiply, and 0 / 0 says so.
        direction = (shares @ geometry.sink_vectors(values)) / known.sum(-1)[..., None, None]
        along = (values @ direction.transpose(-1, -2)).squeeze(-1)
        cosine = (along * per_length).clamp(-1, 1)
        use = others & ~cosine.isnan()
        found[f"norm_ratio{suffix}"] = sink_norm / other_norm
        if suffix:
            exponent = geometry.frame.exponent
            sink_norm, other_norm = (
                scaled_length(sink_norm, exponent),
                scaled_length(other_norm, exponent),
            )
        found[f"sink_norm{suffix}"] = sink_norm
        found[f"other_norm{suffix}"] = other_norm
        found[f"cosine_mean{suffix}"] = masked_mean(cosine, use)
        largest = torch.where(use, cosine, -torch.inf).amax(-1)
        found[f"cosine_max{suffix}"] = torch.where(use.any(-1), largest, torch.nan)
    return found


def negative_share(geometry: AttentionGeometry) -> Float[Tensor, "batch head"]:
    """Share of later rows in which the sink's contribution is negative."""
    c = geometry.sink_contributions("intra")
    return masked_mean((c < 0).to(c.dtype), geometry.sink_rows & ~c.isnan())


def sink_correlations(geometry: AttentionGeometry) -> dict[str, Float[Tensor, "batch head"]]:
    """Rank correlation over rows of the sink's contribution with each factor."""
    attention = geometry.sink_columns(geometry.pattern)
    norms = geometry.sink_vectors(geometry.value_norms.unsqueeze(-1))[..., 0].unsqueeze(-2)
    scores = geometry.dual("intra") @ geometry.sink_vectors(geometry.values).transpose(-1, -2)
    output_norms = geometry.output_norms("intra").unsqueeze(-1)
    keep = geometry.sink_seen & geometry.sink_rows.unsqueeze(-1)
    cosine = scores * output_norms / torch.where(norms == 0, 1, norms)
    return _correlations(scores * attention, (attention, norms / output_norms, cosine), keep)


def tail_correlations(
    geometry: AttentionGeometry, queries: int | None = None
) -> dict[str, Float[Tensor, "batch head"]]:
    """Rank correlation of contribution and factors, pooled over the entries (row, key) whose key is no sink.

    All rows, or ``queries`` evenly spaced ones of each document.
    """
    rows, keep = None, geometry.available
    if queries is not None:
        rows, real = geometry.spread_rows(queries)
        keep = geometry.take_rows(keep, rows) & real[:, None, :, None]
    keep = keep & ~geometry.sinks.unsqueeze(-2)
    factors = geometry.factors("intra", rows)
    return _correlations(factors[0] * factors[1] * factors[2], factors, keep)


def _correlations(
    c: Tensor, factors: tuple[Tensor, Tensor, Tensor], keep: Tensor
) -> dict[str, Tensor]:
    attention, relative_norm, cosine = (factor.expand_as(c).flatten(-2) for factor in factors)
    # A cosine is rounded on the scale of one, a contribution on that of its other factors.
    sizes = (attention * relative_norm, None, None, torch.ones_like(cosine))
    found = spearman(
        c.flatten(-2), (attention, relative_norm, cosine), keep.expand_as(c).flatten(-2), sizes
    )
    return dict(zip(("attention", "relative_norm", "cosine"), found, strict=True))


def masked_mean(
    x: Float[Tensor, "*axes n"], keep: Bool[Tensor, "*keep_axes n"]
) -> Float[Tensor, "*axes"]:
    """Mean over the kept entries of the last axis; NaN where none is kept."""
    keep = keep.expand_as(x)
    return torch.where(keep, x, 0).sum(-1) / keep.sum(-1)
