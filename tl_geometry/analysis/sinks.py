"""Attention sinks over a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.arguments import whole_number
from tl_geometry.measures.cone import alignments, axis_length, cone_axis, lowest_quartile
from tl_geometry.measures.dormant import DORMANT_RATE, NORM_THRESHOLDS, output_norm_ratio
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.scaling import scale
from tl_geometry.measures.sink_curve import (
    ATTENTION_BINS,
    GAP_BINS,
    bin_means,
    fit_quadratic,
    widened,
)
from tl_geometry.measures.sink_split import SinkSplit, split_outputs
from tl_geometry.measures.sinks import (
    masked_mean,
    negative_share,
    sink_correlations,
    tail_correlations,
    value_geometry,
)

__all__ = ["Sinks"]

_CW = "Cunningham & Muca Cirone, arXiv 2606.07604"
_TS = "Mudarisov et al., arXiv 2602.01893"
_GU = "Gu et al., arXiv 2410.10781"
_HONOR = "Sandoval-Segura et al., arXiv 2504.03889"
_METRIC_TOKENS = 64
_FACTORS = {"attention": "attention", "relative_norm": "relative norm", "cosine": "cosine"}
_NAMES = {
    "sink_norm": "sink_norm", "other_norm": "other_norm", "norm_ratio": "sink_norm_ratio",
    "cosine_mean": "sink_cosine", "cosine_max": "sink_cosine_max",
}  # fmt: skip
_RENAMED = {k + space: v + space for k, v in _NAMES.items() for space in ("", "_model")}


class Sinks(Accumulator):
    """How much attention sinks receive, what their values look like, what they do to outputs; per document.

    >>> probe = Probe(model, [Sinks()])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result().sink_norm_ratio

    Args:
        epsilon: mean received attention above which Gu et al. call a token a sink. Their metric is
            taken over the first 64 real tokens of a causal layer's document; shorter documents
            don't define it.
        tail_queries: how many evenly spaced queries of a document enter the rank correlations of
            tail tokens.
    """

    variables: Mapping[str, Variable] = {
        "sink_rate": Variable("attention given to the sinks, mean over later queries", "1", _GU),
        "null_sink_rate": Variable(
            "attention given to no token at all (a learned null sink), mean over rows", "1", _GU
        ),
        "sink_metric": Variable(
            "documents in which a sink receives more than epsilon", "share of documents", _GU
        ),
        "null_sink_metric": Variable(
            "documents in which a null sink receives more than epsilon", "share of documents", _GU
        ),
        "sink_norm": Variable("length of the sink's value, |v|", "value space", _TS),
        "other_norm": Variable("median length of the other values, |v|", "value space", _TS),
        "sink_norm_ratio": Variable("length of the sink's value over the others' median", "1", _TS),
        "sink_cosine": Variable("mean cosine of the sink's value with the others", "1", _TS),
        "sink_cosine_max": Variable("largest cosine of the sink's value with another", "1", _TS),
        "sink_norm_model": Variable(
            "length of the sink's projected value, |v W_O|", "residual stream", _CW
        ),
        "other_norm_model": Variable(
            "median length of the other projected values", "residual stream", _CW
        ),
        "sink_norm_ratio_model": Variable(
            "length of the sink's projected value over the others' median", "1", _CW
        ),
        "sink_cosine_model": Variable(
            "mean cosine of the sink's projected value with the others", "1", _CW
        ),
        "sink_cosine_max_model": Variable(
            "largest cosine of the sink's projected value with another", "1", _CW
        ),
        "sink_negative_share": Variable(
            "later rows with a negative contribution of the sink", "share of rows", _CW
        ),
        **{
            f"{token}_spearman_{name}": Variable(
                f"rank correlation of the {token} tokens' contribution with {words}", "1", _CW
            )
            for token in ("sink", "tail")
            for name, words in _FACTORS.items()
        },
        "output_norm_with_sink": Variable(
            "length of the head's output, mean over later queries", "residual stream", _CW
        ),
        "output_norm_no_sink": Variable(
            "the same with the sinks' values set to zero", "residual stream", _CW
        ),
        "output_norm_ratio": Variable(
            "mean length of the head's outputs over the mean of the layer's heads", "1", _HONOR
        ),
        "cone_tightness": Variable("length of the mean direction of the other values", "1", _CW),
        "cone_alignment": Variable(
            "cosine of the head's output with the mean direction of the other values", "1", _CW
        ),
        "cone_alignment_no_sink": Variable("the same with the sinks' values set to zero", "1", _CW),
        "sink_optimum": Variable(
            "attention to the sinks at which the output would be shortest", "1", _CW
        ),
        "sink_optimum_gap": Variable("attention to the sinks minus that optimum", "1", _CW),
        "sink_optimum_inside": Variable(
            "later rows whose optimum lies strictly between 0 and 1", "share of rows", _CW
        ),
        "sink_below_optimum": Variable(
            "later rows that give the sinks less attention than their optimum",
            "share of rows",
            _CW,
        ),
        "minimal_norm": Variable(
            "length of the output at the optimum, mean over later queries", "residual stream", _CW
        ),
        "minimal_norm_ratio": Variable(
            "length of the output at the optimum over its length", "1", _CW
        ),
        "sink_fit_convex": Variable(
            "documents in which a parabola fitted to |o|^2 over the sinks' attention is convex",
            "share of documents",
            _CW,
        ),
        "norm_by_sink_rate": Variable(
            "mean |o| of the rows by their attention to the sinks, over the mean of all rows",
            "1",
            _CW,
            ("sink_rate_bin",),
        ),
        "optimum_gap_histogram": Variable(
            "rows by attention to the sinks minus the optimum", "share of rows", _CW, ("gap_bin",)
        ),
    }
    coords: Mapping[str, Sequence[str | int | float]] = {
        "sink_rate_bin": [round((k + 0.5) / ATTENTION_BINS, 3) for k in range(ATTENTION_BINS)],
        "gap_bin": [round(2 * (k + 0.5) / GAP_BINS - 1, 3) for k in range(GAP_BINS)],
        "norm_threshold": NORM_THRESHOLDS,
        "power": [0, 1, 2],
    }

    def __init__(self, epsilon: float = 0.3, tail_queries: int = 4) -> None:
        super().__init__()
        if not 0 <= epsilon <= 1:
            raise ValueError(
                f"epsilon is a share of attention, so it must lie in [0, 1], got {epsilon}"
            )
        self.epsilon = epsilon
        self.tail_queries = whole_number("tail_queries", tail_queries, 1)

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        return {"epsilon": self.epsilon, "tail_queries": self.tail_queries}

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head for each variable."""
        found = {_RENAMED[name]: value for name, value in value_geometry(geometry).items()}
        found["sink_rate"] = masked_mean(geometry.sink_attention, geometry.sink_rows)
        found["null_sink_rate"] = masked_mean(geometry.null_attention, geometry.sink_rows)
        found |= self._metrics(geometry)
        found["sink_negative_share"] = negative_share(geometry)
        for token, correlations in (
            ("sink", sink_correlations(geometry)),
            ("tail", tail_correlations(geometry, self.tail_queries)),
        ):
            found |= {f"{token}_spearman_{name}": value for name, value in correlations.items()}
        split = split_outputs(geometry)
        return found | _outputs(geometry, split) | _curves(geometry, split)

    def derived(self, found: Mapping[str, Tensor]) -> dict[str, tuple[Variable, Any]]:
        """Which heads are dormant or write little, and their parabolas, from the means over documents.

        A flag is 1, 0, or NaN where it is unknown.
        """
        ratio, norm = (found[name] for name in ("output_norm_ratio", "output_norm_with_sink"))
        rate = found["sink_rate"] + found["null_sink_rate"]
        lengths = found["norm_by_sink_rate"]
        places = lengths.new_tensor(self.coords["sink_rate_bin"]).expand(lengths.shape)
        fit = fit_quadratic(places, lengths.square(), ~lengths.isnan())
        thresholds = torch.tensor(NORM_THRESHOLDS, dtype=ratio.dtype, device=ratio.device)
        return {
            "dormant_by_rate": (
                Variable(
                    f"whether the mean sink rate, a null sink's included, exceeds {DORMANT_RATE}",
                    "",
                    _GU,
                ),
                _flag(rate > DORMANT_RATE, rate),
            ),
            "dormant_by_norm": (
                Variable(
                    "whether the output norm ratio is below the threshold",
                    "",
                    _HONOR,
                    ("norm_threshold",),
                ),
                _flag(ratio[..., None] < thresholds, ratio[..., None]),
            ),
            "sink_fit": (
                Variable(
                    "c_0, c_1, c_2 of the parabola c_0 + c_1 a + c_2 a^2 through the squares of norm_by_sink_rate; "
                    "NaN with fewer than three bins",
                    "1",
                    _CW,
                    ("power",),
                ),
                fit,
            ),
            "sink_fit_curvature": (
                Variable("curvature of that parabola, 2 c_2", "1", _CW),
                2 * fit[..., 2],
            ),
            "low_norm": (
                Variable("whether the output norm is in its layer's lowest quartile", "", _CW),
                _flag(lowest_quartile(norm), norm),
            ),
        }

    def _metrics(self, geometry: AttentionGeometry) -> Measured:
        """Whether any sink, or the null sink, receives more than epsilon from the first 64 real queries."""
        rank = geometry.rows.long().cumsum(-1)
        early = geometry.rows & (rank <= _METRIC_TOKENS)
        columns = geometry.sink_columns(geometry.pattern)
        seen = geometry.sink_seen
        received = masked_mean(
            columns.transpose(-1, -2), (seen & early.unsqueeze(-1)).transpose(-1, -2)
        )
        null = masked_mean(geometry.null_attention, early) > self.epsilon
        full = (rank[..., -1] >= _METRIC_TOKENS) & geometry.causal
        above = {"sink_metric": (received > self.epsilon).any(-1), "null_sink_metric": null}
        return {
            name: torch.where(full, flag.to(received.dtype), torch.nan)
            for name, flag in above.items()
        }


def _flag(
    flag: Bool[Tensor, "*axes"], known: Float[Tensor, "*known_axes"]
) -> Float[Tensor, "*axes"]:
    return flag.to(known.dtype).masked_fill(known.isnan(), torch.nan)


def _outputs(geometry: AttentionGeometry, split: SinkSplit) -> Measured:
    """Lengths and directions of the outputs with their sinks and without."""
    axis = cone_axis(geometry)
    aligned, aligned_no_sink = alignments(geometry, split, axis)
    exponent = geometry.frame.exponent
    return {
        "output_norm_with_sink": scale(widened(masked_mean(split.norm, split.rows)), exponent),
        "output_norm_no_sink": scale(widened(masked_mean(split.rest_norm, split.rows)), exponent),
        "output_norm_ratio": output_norm_ratio(geometry),
        "cone_tightness": axis_length(axis),
        "cone_alignment": masked_mean(aligned, ~aligned.isnan()),
        "cone_alignment_no_sink": masked_mean(aligned_no_sink, ~aligned_no_sink.isnan()),
    }


def _curves(geometry: AttentionGeometry, split: SinkSplit) -> Measured:
    """Where the rows lie on their curves |o|(a), and |o| against a between rows."""
    curve, attention, optimum = split.curve, split.attention, split.curve.optimum
    known = ~optimum.isnan()
    gap = attention - optimum
    inside = (optimum > 0) & (optimum < 1)
    written = split.in_plane & geometry.defined("intra")
    shortening = curve.minimal_norm / torch.where(written, split.norm, 1)
    relative = split.norm / masked_mean(split.norm, split.in_plane).unsqueeze(-1)
    by_rate, _ = bin_means(relative, attention, split.in_plane, (0, 1), ATTENTION_BINS)
    _, gaps = bin_means(gap, gap, known, (-1, 1), GAP_BINS)
    bend = fit_quadratic(widened(attention), widened(relative).square(), split.in_plane)[..., 2]
    minimal = masked_mean(curve.minimal_norm, split.in_plane & ~curve.minimal_norm.isnan())
    return {
        "sink_optimum": masked_mean(optimum, known),
        "sink_optimum_gap": masked_mean(gap, known),
        "sink_optimum_inside": masked_mean(inside.to(gap.dtype), known),
        "sink_below_optimum": masked_mean((gap < 0).to(gap.dtype), known),
        "minimal_norm_ratio": masked_mean(shortening, written),
        "minimal_norm": scale(widened(minimal), geometry.frame.exponent),
        "sink_fit_convex": _flag(bend > 0, bend),
        "norm_by_sink_rate": by_rate,
        "optimum_gap_histogram": gaps,
    }
