"""Attention sinks over a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.measures.geometry import AttentionGeometry
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
_METRIC_TOKENS = 64
_FACTORS = {"attention": "attention", "relative_norm": "relative norm", "cosine": "cosine"}
_RENAMED = {
    "sink_norm": "sink_norm",
    "other_norm": "other_norm",
    "norm_ratio": "sink_norm_ratio",
    "cosine_mean": "sink_cosine",
    "cosine_max": "sink_cosine_max",
    "sink_norm_model": "sink_norm_model",
    "other_norm_model": "other_norm_model",
    "norm_ratio_model": "sink_norm_ratio_model",
    "cosine_mean_model": "sink_cosine_model",
    "cosine_max_model": "sink_cosine_max_model",
}


class Sinks(Accumulator):
    """How much attention sinks receive and what their values look like, per document.

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
    }

    def __init__(self, epsilon: float = 0.3, tail_queries: int = 8) -> None:
        super().__init__()
        if not 0 <= epsilon <= 1:
            raise ValueError(
                f"epsilon is a share of attention, so it must lie in [0, 1], got {epsilon}"
            )
        if tail_queries < 1:
            raise ValueError(f"tail_queries must be at least 1, got {tail_queries}")
        self.epsilon = epsilon
        self.tail_queries = tail_queries

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        return {"epsilon": self.epsilon, "tail_queries": self.tail_queries}

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head for each variable."""
        found = {_RENAMED[name]: value for name, value in value_geometry(geometry).items()}
        found["sink_rate"] = masked_mean(geometry.sink_attention, geometry.sink_rows)
        found["null_sink_rate"] = masked_mean(1 - geometry.totals.attention, geometry.rows)
        found["sink_metric"] = self._metric(geometry)
        found["sink_negative_share"] = negative_share(geometry)
        for token, correlations in (
            ("sink", sink_correlations(geometry)),
            ("tail", tail_correlations(geometry, self.tail_queries)),
        ):
            found |= {f"{token}_spearman_{name}": value for name, value in correlations.items()}
        return found

    def _metric(self, geometry: AttentionGeometry) -> Float[Tensor, "batch head"]:
        """Whether any sink receives more than epsilon among the first 64 real queries (itself included)."""
        rank = geometry.rows.long().cumsum(-1)
        early = geometry.rows & (rank <= _METRIC_TOKENS)
        columns = geometry.sink_columns(geometry.pattern)
        seen = geometry.sink_seen
        received = masked_mean(
            columns.transpose(-1, -2), (seen & early.unsqueeze(-1)).transpose(-1, -2)
        )
        sink = (received > self.epsilon).any(-1).to(received.dtype)
        full = (rank[..., -1] >= _METRIC_TOKENS) & geometry.causal
        return torch.where(full, sink, torch.nan)
