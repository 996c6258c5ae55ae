"""The semantic cone: do outputs point where the mean value points, and does the sink keep them from it?

    mu = mean over the keys that are no sinks of v_j W_O / |v_j W_O|

is the axis of the cone in which a head's values lie, its length their tightness. Many small weights
add up along it. Source: Cunningham & Muca Cirone, arXiv 2606.07604, who claim that a sink's value
counteracts this drift: with it set to zero, the heads with small outputs collapse into the cone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.measures.geometry import UNDEFINED_BELOW, AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.scaling import full_precision, safe_norm, scale, scaled_length
from tl_geometry.measures.sink_split import SinkSplit, split_outputs
from tl_geometry.measures.sinks import masked_mean


@dataclass(frozen=True)
class SemanticAlignment:
    """How far a head's outputs point along the mean direction mu of its values, with and without its sink.

    Per row: later queries from which a sink can be seen, else NaN.

    Attributes:
        tightness: |mu|, from 0 (directions cancel) to 1 (all values point the same way); NaN without
            a non-zero value other than the sinks'.
        alignment: cos(o_i, mu) in [-1, 1]; NaN also where the output or mu has cancelled to rounding
            error.
        alignment_no_sink: the same with the sinks' values set to zero.
        norm, norm_no_sink: |o_i| as it is and with the sinks' values set to zero, units of the residual
            stream.
        low_norm: heads whose mean ``norm`` is in the lowest quartile of their layer, see
            :func:`lowest_quartile`.
    """

    tightness: Float[Tensor, "batch head"]
    alignment: Float[Tensor, "batch head query"]
    alignment_no_sink: Float[Tensor, "batch head query"]
    norm: Float[Tensor, "batch head query"]
    norm_no_sink: Float[Tensor, "batch head query"]
    low_norm: Bool[Tensor, "batch head"]


@full_precision
def semantic_alignment(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    available: Tensor | None = None,
    sink: SinkRule = "first",
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
    cross: bool = False,
) -> SemanticAlignment:
    """Cosine of each output with the axis of its head's values, with and without the sink.

    >>> v = torch.tensor([[[[-2.0, 0.0]], [[1.0, 1.0]], [[1.0, -1.0]]]])
    >>> found = semantic_alignment(torch.ones(1, 1, 3, 3).tril() / 3, v, torch.eye(2)[None])
    >>> [round(x[0, 0, 1].item(), 3) for x in (found.alignment, found.alignment_no_sink)]
    [-0.707, 0.707]

    The sinks' attention is kept when their values are set to zero: nothing is renormalised.
    Arguments and errors as in :func:`tl_geometry.measures.sink_curve.sink_norm_curve`.
    """
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
    split = split_outputs(geometry)
    axis = cone_axis(geometry)
    exponent = geometry.frame.exponent
    hidden = ~split.rows
    means = scale(masked_mean(split.norm, split.rows), exponent - exponent.max())
    return SemanticAlignment(
        axis_length(axis),
        *alignments(geometry, split, axis),
        scaled_length(split.norm, exponent[:, None]).masked_fill(hidden, torch.nan),
        scaled_length(split.rest_norm, exponent[:, None]).masked_fill(hidden, torch.nan),
        lowest_quartile(means),
    )


def cone_axis(geometry: AttentionGeometry) -> Float[Tensor, "batch head rank"]:
    """Mean direction mu of the values of each head, sinks and zero values apart; NaN where there are none."""
    real = geometry.real_keys
    norms = geometry.value_norms
    keep = real & ~geometry.sinks & (norms > torch.finfo(norms.dtype).tiny)
    shares = torch.where(keep, 1 / torch.where(keep, norms, 1), 0)
    total = (shares.unsqueeze(-2) @ geometry.values).squeeze(-2)
    return total / keep.sum(-1, keepdim=True)


def axis_length(axis: Float[Tensor, "batch head rank"]) -> Float[Tensor, "batch head"]:
    """Tightness |mu| of the cone; NaN where there is no axis."""
    return safe_norm(axis).masked_fill(axis.isnan().any(-1), torch.nan)


def alignments(
    geometry: AttentionGeometry, split: SinkSplit, axis: Float[Tensor, "batch head rank"]
) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
    """Cosine with the axis of each output, and of each output without its sinks' part."""
    size = axis_length(axis).unsqueeze(-1)
    defined = split.rows & (size > UNDEFINED_BELOW)
    direction = (axis / torch.where(size > UNDEFINED_BELOW, size, 1)).unsqueeze(-1)
    rest = (split.rest @ direction).squeeze(-1)
    whole = split.attention * (split.sink @ direction).squeeze(-1) + rest
    found = []
    for along, norm, gross in (
        (whole, split.norm, geometry.gross),
        (rest, split.rest_norm, split.rest_gross),
    ):
        known = defined & (norm > UNDEFINED_BELOW * gross)
        cosine = (along / torch.where(known, norm, 1)).clamp(-1, 1)
        found.append(cosine.masked_fill(~known, torch.nan))
    return found[0], found[1]


def lowest_quartile(norms: Float[Tensor, "*axes head"]) -> Bool[Tensor, "*axes head"]:
    """Heads whose mean norm is at most the 25% quantile of their layer's heads (linearly interpolated).

    Heads that tie with the quantile are all low, so where all are equal, all are. A layer with a
    single head has none: there is nothing to compare it with. Heads without a norm (NaN) take no
    part.

    >>> lowest_quartile(torch.tensor([4.0, 1.0, 2.0, 3.0])).tolist()
    [False, True, False, False]
    """
    quantile = norms.nanquantile(0.25, dim=-1, keepdim=True)
    return (norms <= quantile) & ((~norms.isnan()).sum(-1, keepdim=True) > 1)
