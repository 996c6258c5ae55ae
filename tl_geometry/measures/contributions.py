"""Contribution weights: how far each token moves a head's output.

    c_ij = <o_i, alpha_ij v_j W_O> / |o_i|^2 = alpha_ij * (|v_j W_O| / |o_i|) * cos(o_i, v_j W_O)

Source: Cunningham & Muca Cirone, "Contribution Weights: A Geometrical Analysis of Self-Attention
Transformers", arXiv 2606.07604. All functions take the attention pattern, the values and the output projection of
one layer, as TransformerLens caches them (``hook_pattern``, ``hook_v``, ``attn.W_O``), leave them
as they are, and are differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.arguments import one_of, true_or_false, whole_seed
from tl_geometry.measures.devices import seeded
from tl_geometry.measures.geometry import AttentionGeometry, Mode
from tl_geometry.measures.importances import IMPORTANCES, Importance, layer_importance
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.scaling import full_precision


@dataclass(frozen=True)
class ContributionFactors:
    """The three factors of a contribution weight; their product is the weight.

    Attributes:
        attention: alpha_ij.
        relative_norm: |v_j W_O| / |o_i|, non-negative.
        cosine: cos(o_i, v_j W_O) in [-1, 1]; 0 where the value is zero.
    """

    attention: Float[Tensor, "batch head query key"]
    relative_norm: Float[Tensor, "batch head query key"]
    cosine: Float[Tensor, "batch head query key"]


@full_precision
def contribution_weights(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    mode: Mode = "intra",
    available: Tensor | None = None,
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Share of each key in the length of the output: positive pushes along it, negative against it.

    >>> pattern, v, W_O = torch.full((1, 1, 2, 2), 0.5), torch.tensor([[[[3.0]], [[-1.0]]]]), torch.ones(1, 1, 4)
    >>> contribution_weights(pattern, v, W_O)[0, 0, 1].tolist()
    [1.5, -0.5]

    Args:
        pattern: attention weights after the softmax.
        v: values as hooked; grouped-query layers have fewer kv heads than heads.
        W_O: output projection, one matrix per query head.
        mode: ``"intra"`` measures against the head's own output (sums to 1 over keys), ``"inter"``
            against the whole layer's output without b_O (sums to 1 over heads and keys).
        available: bool, broadcastable to ``batch query key`` or ``batch head query key``: entries
            that count. Default: causal, unless the pattern has weight above its diagonal.
        value_bias: ``"remove"`` subtracts ``b_V`` from the hooked values, as in the paper, whose
            values have no bias.
        b_V: value bias, one row per kv head (or per query head).
        output: ``"normed"`` measures after a post-attention norm whose scale is ``norm_weight``:
            directions change, sums stay 1.
        norm_weight: the elementwise scale of that norm.

    Returns:
        Dimensionless weights, float32 (float64 for float64 inputs). A row is NaN where it belongs
        to a padding query or where the output has cancelled to rounding error, |o_i| <= 2^-20 sum_j
        alpha_ij |v_j W_O|.

    Raises:
        TypeError: a mask that is not bool, or inputs that are not floating point.
        ValueError: shapes that do not fit, or an unknown option.
    """
    geometry = AttentionGeometry(
        pattern,
        v,
        W_O,
        available=available,
        value_bias=value_bias,
        b_V=b_V,
        output=output,
        norm_weight=norm_weight,
    )
    return geometry.contributions(mode)


@full_precision
def contribution_factors(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    mode: Mode = "intra",
    available: Tensor | None = None,
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
) -> ContributionFactors:
    """Split contribution weights into attention, relative norm and cosine.

    >>> pattern, v, W_O = torch.full((1, 1, 2, 2), 0.5), torch.tensor([[[[3.0]], [[-1.0]]]]), torch.ones(1, 1, 4)
    >>> factors = contribution_factors(pattern, v, W_O)
    >>> [f[0, 0, 1].tolist() for f in (factors.attention, factors.relative_norm, factors.cosine)]
    [[0.5, 0.5], [3.0, 1.0], [1.0, -1.0]]

    Arguments, NaN rows and errors as in :func:`contribution_weights`.
    """
    geometry = AttentionGeometry(
        pattern,
        v,
        W_O,
        available=available,
        value_bias=value_bias,
        b_V=b_V,
        output=output,
        norm_weight=norm_weight,
    )
    return ContributionFactors(*geometry.factors(mode))


@full_precision
def value_weighted_attention(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    normalized: bool = False,
    mode: Mode = "intra",
    available: Tensor | None = None,
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Attention times the length of the projected value: alpha_ij |v_j W_O|, the baseline without direction.

    >>> pattern, v, W_O = torch.full((1, 1, 2, 2), 0.5), torch.tensor([[[[3.0]], [[-1.0]]]]), torch.ones(1, 1, 4)
    >>> value_weighted_attention(pattern, v, W_O)[0, 0, 1].tolist()
    [3.0, 1.0]

    Args:
        normalized: divide by |o_i| (of the head or the layer, by ``mode``); undefined rows are then
            NaN.

    In units of the residual stream, or dimensionless when normalized. Other arguments as in
    :func:`contribution_weights`.
    """
    geometry = AttentionGeometry(
        pattern,
        v,
        W_O,
        available=available,
        value_bias=value_bias,
        b_V=b_V,
        output=output,
        norm_weight=norm_weight,
    )
    if true_or_false("normalized", normalized):
        return geometry.relative_lengths(mode)
    return layer_importance(geometry, "value_weighted", mode)


@full_precision
def suppression(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    mode: Mode = "intra",
    available: Tensor | None = None,
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """How strongly more attention to a key would shorten the output: alpha_ij sum_k c_ik - c_ij.

    It is minus the derivative of log |o_i| by the attention logit of (i, j). Positive: a
    *suppressor*, even where c is still positive. The gradient identity is our own derivation; c is
    that of Cunningham & Muca Cirone.

    >>> pattern, v, W_O = torch.full((1, 1, 2, 2), 0.5), torch.tensor([[[[3.0]], [[-1.0]]]]), torch.ones(1, 1, 4)
    >>> suppression(pattern, v, W_O)[0, 0, 1].tolist()
    [-1.0, 1.0]

    Arguments, NaN rows and errors as in :func:`contribution_weights`.
    """
    geometry = AttentionGeometry(
        pattern,
        v,
        W_O,
        available=available,
        value_bias=value_bias,
        b_V=b_V,
        output=output,
        norm_weight=norm_weight,
    )
    return geometry.suppression(mode)


@full_precision
def importance(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    *,
    kind: Importance = "contribution",
    mode: Mode = "intra",
    absolute: bool = False,
    seed: int = 0,
    generator: torch.Generator | None = None,
    available: Tensor | None = None,
    value_bias: ValueBias = "as_hooked",
    b_V: Float[Tensor, "any_head d_head"] | None = None,
    output: Output = "raw",
    norm_weight: Float[Tensor, " d_model"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """One of the importances that a faithfulness experiment compares, by its name in the paper.

    >>> pattern, v, W_O = torch.full((1, 1, 2, 2), 0.5), torch.tensor([[[[3.0]], [[-1.0]]]]), torch.ones(1, 1, 4)
    >>> importance(pattern, v, W_O, kind="contribution", absolute=True)[0, 0, 1].tolist()
    [1.5, 0.5]

    Args:
        kind: ``"attention"``, ``"value_weighted"``, ``"value_weighted_normalized"``,
            ``"contribution"`` or ``"random"`` (uniform in [0, 1), the control).
        absolute: take absolute values, since strongly negative entries matter too.
        seed: of the random control; ``generator`` takes precedence.

    Other arguments, NaN rows and errors as in :func:`contribution_weights`.
    """
    one_of("kind", kind, IMPORTANCES)
    absolute = true_or_false("absolute", absolute)
    geometry = AttentionGeometry(
        pattern,
        v,
        W_O,
        available=available,
        value_bias=value_bias,
        b_V=b_V,
        output=output,
        norm_weight=norm_weight,
    )
    if kind != "random":
        return layer_importance(geometry, kind, mode, absolute=absolute)
    drawn = seeded(pattern.device, whole_seed(seed), generator)
    scores = torch.rand(pattern.shape, generator=drawn, device=pattern.device, dtype=geometry.dtype)
    scores = scores * geometry.available
    return scores.masked_fill(~geometry.rows.unsqueeze(-1), torch.nan)
