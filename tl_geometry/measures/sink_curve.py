"""How long a head's output would be if its sink received more attention, or less.

Let a be the attention of a row to its sink, s the sink's projected value and m what the row takes
from elsewhere, over 1 - a. Then o = a s + (1 - a) m, and

    |o|^2(a) = |a s + (1 - a) m|^2

is convex in a: its second derivative is 2 |s - m|^2 >= 0, its minimum lies at
a* = <m, m - s> / |s - m|^2.

Source: Cunningham & Muca Cirone, arXiv 2606.07604, who report that the output's length is convex in
the sink's attention, smallest at an intermediate one. The algebra is a reconstruction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.measures.devices import check_devices
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.scaling import full_precision, scale, scaled_length, work_dtype
from tl_geometry.measures.sink_split import length_of, split_outputs
from tl_geometry.measures.sinks import masked_mean

ATTENTION_BINS = 10
GAP_BINS = 20
_SAME = 2.0**-20


@dataclass(frozen=True)
class SinkNormCurve:
    """|o|^2 of each row as a function of its sink's attention; NaN in rows that are skipped.

    Lengths are in units of the residual stream, products of two lengths in its square; these are
    float64 where the device has it, since they leave the range of float32 sooner.

    Attributes:
        attention: a, the sink's attention (of all sinks together).
        optimum: the attention at which the output would be shortest, clipped to [0, 1].
        optimum_unclipped: the same a* before clipping. NaN where s = m: the length does not depend
            on a.
        norm: |o| as observed.
        minimal_norm: |o| at ``optimum`` (as observed, where s = m).
        curvature: 2 |s - m|^2, the second derivative of |o|^2 by a.
        sink_length: |s|.
        rest_length: |m|.
        inner: <s, m>.
        sign_change: the attention below which the sink's contribution weight is negative,
            -<s,m> / (|s|^2 - <s,m>); NaN where it never is, <s,m> >= 0.
    """

    attention: Float[Tensor, "batch head query"]
    optimum: Float[Tensor, "batch head query"]
    optimum_unclipped: Float[Tensor, "batch head query"]
    norm: Float[Tensor, "batch head query"]
    minimal_norm: Float[Tensor, "batch head query"]
    curvature: Float[Tensor, "batch head query"]
    sink_length: Float[Tensor, "batch head query"]
    rest_length: Float[Tensor, "batch head query"]
    inner: Float[Tensor, "batch head query"]
    sign_change: Float[Tensor, "batch head query"]


@full_precision
def sink_norm_curve(
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
) -> SinkNormCurve:
    """Length of each output as a function of the sink's attention, with its minimum.

    >>> pattern, v = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]), torch.tensor([[[[-1.0]], [[3.0]]]])
    >>> curve = sink_norm_curve(pattern, v, torch.ones(1, 1, 1))
    >>> [x[0, 0, 1].item() for x in (curve.optimum, curve.norm, curve.minimal_norm, curve.sign_change)]
    [0.75, 2.0, 0.0, 0.75]

    With several sinks, a is their attention together and s the mean of their projected values
    weighted by it, so that o = a s + (1 - a) m holds. Where a learned null sink takes attention, its
    part belongs to m, with the value 0.

    Skipped are padding, the sinks' own rows, rows from which no sink can be seen, rows with
    1 - a <= 2^-23, and rows that give several sinks no attention at all, where s is undefined.

    Args:
        pattern: attention weights after the softmax.
        v: values as hooked.
        W_O: output projection, one matrix per query head.
        available: entries that count.
        sink: which keys are sinks.
        value_bias, b_V, output, norm_weight: as in
            :func:`tl_geometry.measures.contributions.contribution_weights`.
        cross: queries and keys are different sequences.

    Raises:
        TypeError: a mask that is not bool, or inputs that are not floating point.
        ValueError: shapes that do not fit, an unknown option, or a sink outside the sequence.
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
    curve = split.curve
    exponent = geometry.frame.exponent[:, None]
    skipped = ~split.in_plane

    def length(x: Tensor) -> Tensor:
        return scaled_length(x, exponent).masked_fill(skipped, torch.nan)

    def product(x: Tensor, y: Tensor) -> Tensor:
        x, y = (scale(widened(z), exponent) for z in (x, y))
        return (x * y).masked_fill(skipped, torch.nan)

    return SinkNormCurve(
        attention=split.attention.masked_fill(skipped, torch.nan),
        optimum=curve.optimum,
        optimum_unclipped=curve.optimum_unclipped,
        norm=length(split.norm),
        minimal_norm=length(curve.minimal_norm),
        curvature=2 * product(curve.distance, curve.distance),
        sink_length=length(split.sink_length),
        rest_length=length(length_of(curve.along, curve.across)),
        inner=product(split.sink_length, curve.along),
        sign_change=curve.sign_change,
    )


@dataclass(frozen=True)
class SinkCurveSummary:
    """The rows of each document and head together: what |o| does as the sink's attention varies between rows.

    Attributes:
        norm_by_attention: mean |o| of the rows in each tenth of [0, 1] by the sink's attention, units
            of the residual stream; NaN where there are none.
        share_by_attention: share of the rows in each tenth.
        quadratic: c_0, c_1, c_2 of the least-squares fit |o|^2 = c_0 + c_1 a + c_2 a^2; NaN where
            fewer than three different values of a occur.
        curvature: 2 c_2; positive where the fit is convex.
        gap_histogram: share of the rows in each twentieth of [-1, 1] by a - a*, a* clipped; negative
            where the sink receives less than what makes the output shortest.
    """

    norm_by_attention: Float[Tensor, "batch head attention_bin"]
    share_by_attention: Float[Tensor, "batch head attention_bin"]
    quadratic: Float[Tensor, "batch head 3"]
    curvature: Float[Tensor, "batch head"]
    gap_histogram: Float[Tensor, "batch head gap_bin"]


def sink_curve_summary(curve: SinkNormCurve) -> SinkCurveSummary:
    """Binned lengths, a fitted parabola and the distances from the optimum, per document and head.

    >>> pattern, v = torch.eye(4)[None, None] / 2, torch.tensor([-1.0, 3.0, 3.0, 3.0]).view(1, 4, 1, 1)
    >>> pattern[0, 0, :, 0] = torch.tensor([1.0, 0.25, 0.5, 0.75])
    >>> pattern[0, 0, 1:, 1:] = torch.diag(1 - pattern[0, 0, 1:, 0])
    >>> summary = sink_curve_summary(sink_norm_curve(pattern, v, torch.ones(1, 1, 1)))
    >>> [round(c, 3) for c in summary.quadratic[0, 0].tolist()]
    [9.0, -24.0, 16.0]

    Skipped rows take no part; a document without rows is NaN throughout.
    """
    check_devices(**vars(curve))
    known = ~curve.attention.isnan()
    attention, optimum, norm = (
        x.to(work_dtype(x)) for x in (curve.attention, curve.optimum, curve.norm)
    )
    norms, shares = bin_means(norm, attention, known, (0, 1), ATTENTION_BINS)
    coefficients = fit_quadratic(widened(attention), widened(norm).square(), known)
    gap = attention - optimum
    _, gaps = bin_means(gap, gap, ~gap.isnan(), (-1, 1), GAP_BINS)
    return SinkCurveSummary(norms, shares, coefficients, 2 * coefficients[..., 2], gaps)


def bin_means(
    x: Float[Tensor, "*axes n"],
    by: Float[Tensor, "*axes n"],
    keep: Bool[Tensor, "*axes n"],
    span: tuple[int, int],
    bins: int,
) -> tuple[Float[Tensor, "*axes bin"], Float[Tensor, "*axes bin"]]:
    """Mean of the kept ``x`` in equal bins of ``by``, and the share of the kept entries in each.

    A bin holds its lower end, the last one its upper end too; what lies outside is counted in the
    nearest bin. Means of empty bins, and shares of nothing, are NaN.

    >>> x, keep = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([True, True, True])
    >>> [y.tolist() for y in bin_means(x, torch.tensor([0.1, 0.2, 1.0]), keep, (0, 1), 2)]
    [[2.0, 5.0], [0.6666666865348816, 0.3333333432674408]]
    """
    low, high = span
    place = ((torch.where(keep, by, low) - low) * (bins / (high - low))).long().clamp(0, bins - 1)
    empty = x.new_zeros(*x.shape[:-1], bins)
    counts = empty.scatter_add(-1, place, keep.to(x.dtype))
    sums = empty.scatter_add(-1, place, torch.where(keep, x, 0))
    return sums / counts, counts / counts.sum(-1, keepdim=True)


def fit_quadratic(
    x: Float[Tensor, "*axes n"], y: Float[Tensor, "*axes n"], keep: Bool[Tensor, "*axes n"]
) -> Float[Tensor, "*axes 3"]:
    """Least-squares coefficients of 1, x, x^2 over the kept entries; NaN where x takes fewer than three values.

    >>> x = torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> fit_quadratic(x, 2 - x + 3 * x.square(), torch.ones(4, dtype=torch.bool)).round().tolist()
    [2.0, -1.0, 3.0]
    """

    def mean(values: Tensor) -> Tensor:
        return masked_mean(values, keep).unsqueeze(-1)

    # In polynomials that are orthogonal over the kept entries, so that each coefficient is one ratio.
    centre = mean(x)
    spread = mean((x - centre).square()).sqrt()
    t = (x - centre) / torch.where(spread > _SAME, spread, torch.nan)
    skew = mean(t * t.square())
    bend = t.square() - skew * t - 1
    size = mean(bend.square())
    level, slope = mean(y), mean(y * t)
    c2 = mean(y * bend) / torch.where(size > _SAME, size, torch.nan)
    linear, square = (slope - c2 * skew) / spread, c2 / spread.square()
    constant = level - c2 - linear * centre + square * centre.square()
    return torch.cat([constant, linear - 2 * square * centre, square], -1)


def widened(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """float64, or as it is on a device without."""
    return x if x.device.type == "mps" else x.double()
