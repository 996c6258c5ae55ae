"""Every public measure with the tensors that it takes, for tests that hold for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch
from literal.masks import causal
from literal.problems import problem

from tl_geometry import measures


@dataclass(frozen=True)
class Call:
    """A function with its tensors by name, and its other arguments."""

    function: Callable[..., Any]
    tensors: dict[str, torch.Tensor]
    host: str = ""
    """The argument whose numbers decide the result's shape, where a meta tensor must be refused."""

    def __call__(self, **changed: Any) -> dict[str, Any]:
        """The results by name; arguments may be changed."""
        return results(self.function(**{**self.tensors, **changed}))


def results(found: Any) -> dict[str, Any]:
    """What a measure returned, by name."""
    if is_dataclass(found):
        return {field.name: getattr(found, field.name) for field in fields(found)}
    return {str(k): x for k, x in enumerate(found if isinstance(found, tuple) else (found,))}


def tensors_of(found: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Only the tensors among the results."""
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


MADE = problem(queries=8, available=causal(8)[None], seed=3)  # 2 documents, 4 heads, 2 kv heads
LAYER = {"pattern": MADE.pattern, "v": MADE.v, "W_O": MADE.W_O}
AVAILABLE = causal(8)[None].expand(2, -1, -1).clone()
SINK = torch.zeros(2, 8, dtype=torch.bool)
SINK[:, 1] = True
B_V, NORM = torch.ones(2, 3), torch.linspace(0.5, 2, 7)
BIASED = {"b_V": B_V, "norm_weight": NORM}
REMOVED: dict[str, Any] = {"value_bias": "remove", "output": "normed"}
MASKED = {**LAYER, "available": AVAILABLE}
SUNK = {**MASKED, "sink": SINK}
TOKENS = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
TOKEN_MASK = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()
MOMENTS = {
    "W": torch.eye(5) / 3,
    "mean": torch.ones(5),
    "covariance": torch.eye(5),
    "normed_mean": torch.ones(5),
    "normed_covariance": torch.eye(5),
    "cross_covariance": torch.eye(5) / 2,
}


def _summary(**tensors: Any) -> Any:
    return measures.sink_curve_summary(measures.SinkNormCurve(**tensors))


_WITH_BIAS = {
    name: partial(getattr(measures, name), **REMOVED)
    for name in (
        "contribution_weights",
        "contribution_factors",
        "value_weighted_attention",
        "suppression",
        "importance",
    )
}
_WITH_SINK = {
    name: partial(getattr(measures, name), **REMOVED)
    for name in (
        "sink_norm_curve",
        "semantic_alignment",
        "dormant_heads",
        "mixing_ratio",
        "switch_rates",
    )
}
CALLS: dict[str, Call] = {
    **{name: Call(f, {**MASKED, **BIASED}) for name, f in _WITH_BIAS.items()},
    **{name: Call(f, {**SUNK, **BIASED}) for name, f in _WITH_SINK.items()},
    "sink_geometry": Call(
        partial(measures.sink_geometry, value_bias="remove"), {**SUNK, "b_V": B_V}
    ),
    "separability": Call(
        partial(measures.separability, space="model", top_n=(1, 2)),
        {**SUNK, "queries": torch.tensor([3, 7])},
    ),
    "sink_aware_certificate": Call(
        partial(measures.sink_aware_certificate, space="model", top_n=(1, 2)),
        {**SUNK, "queries": torch.tensor([3, 7])},
    ),
    "source_winners": Call(partial(measures.source_winners, space="model"), SUNK),
    "head_regimes": Call(measures.head_regimes, SUNK, host="pattern"),
    "sink_rate": Call(
        measures.sink_rate, {"pattern": MADE.pattern, "available": AVAILABLE, "sink": SINK}
    ),
    "null_sink_rate": Call(
        measures.null_sink_rate, {"pattern": MADE.pattern, "available": AVAILABLE}
    ),
    "sink_metric": Call(measures.sink_metric, {"pattern": MADE.pattern, "available": AVAILABLE}),
    "sink_logit_margin": Call(
        measures.sink_logit_margin,
        {"scores": MADE.pattern.log(), "available": AVAILABLE, "sink": SINK},
    ),
    "sink_curve_summary": Call(_summary, vars(measures.sink_norm_curve(**SUNK))),
    "token_similarity": Call(measures.token_similarity, {"x": TOKENS, "mask": TOKEN_MASK}),
    "relative_residual": Call(measures.relative_residual, {"x": TOKENS, "mask": TOKEN_MASK}),
    "one_step_similarity": Call(partial(measures.one_step_similarity, length=4), MOMENTS),
    "halfspace_margins": Call(
        measures.halfspace_margins, {"x": TOKENS, "mask": TOKEN_MASK}, host="x"
    ),
    "representation_cost": Call(
        partial(measures.representation_cost, target="sink"), {"x": TOKENS[1]}, host="x"
    ),
    "cost_scaling": Call(
        partial(measures.cost_scaling, (2, 4), seeds=(0,)), {"tokens": TOKENS[1]}, host="tokens"
    ),
    "inversion_bounds": Call(
        partial(measures.inversion_bounds, top_n=(1, 2)), {"inversions": torch.tensor([0.0, 1.0])}
    ),
}
