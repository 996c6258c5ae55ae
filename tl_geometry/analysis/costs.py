"""What a sink and the diagonal cost to represent on the tokens of each layer, over a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, Measured, ResidualStream, Variable
from tl_geometry.analysis.layer_tokens import distinct_tokens
from tl_geometry.arguments import whole_number
from tl_geometry.measures.cost import Target, representation_cost
from tl_geometry.measures.cost_solver import Norm
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.masks import spread_tokens

__all__ = ["Costs"]

_SD = "Sukenik et al., arXiv 2605.08453"
_TOLERANCE = 1e-3
_TARGETS: tuple[Target, ...] = ("sink", "diagonal")
_NORMS: tuple[Norm, ...] = ("frobenius", "nuclear")


class Costs(Accumulator):
    """Least norm of a W that makes a document's tokens attend to its first one, or each to itself, per layer.

    >>> ds = analyze(model, texts, ["sinks", "costs"])
    >>> ds.representation_cost.sel(norm="nuclear", target="sink")

    Read from what each layer's attention reads, after its norm, scaled to mean squared length 1; a
    token that occurred before is left out. A document in which no W does it counts in
    ``representation_infeasible`` alone, one on which the solver can't bring its bounds together to
    0.1 % in ``representation_undecided`` alone. :func:`tl_geometry.token_costs` shows how the costs grow
    with the number of tokens.

    Args:
        tokens: look at so many evenly spaced tokens of a document at most, the first always among
            them. Four convex programs per layer and document; with 32 tokens a quarter of a second,
            or seconds where the tokens are nearly parallel.
        causal: only keys up to the query compete; by default as the layer has it.
    """

    reads_stream = True
    variables: Mapping[str, Variable] = {
        "representation_cost": Variable(
            "least norm of a W whose scores put the target ahead by 1, tokens of length 1",
            "1",
            _SD,
            ("target", "norm"),
            per="layer",
        ),
        "representation_infeasible": Variable(
            "documents in which no W does it",
            "share of documents",
            _SD,
            ("target", "norm"),
            per="layer",
        ),
        "representation_undecided": Variable(
            "documents in which the solver's bounds stay apart, which therefore have no cost",
            "share of documents",
            _SD,
            ("target", "norm"),
            per="layer",
        ),
        "representation_tokens": Variable(
            "different tokens that were looked at", "tokens", _SD, per="layer"
        ),
    }
    coords: Mapping[str, Sequence[str | int | float]] = {"target": _TARGETS, "norm": _NORMS}

    def __init__(self, tokens: int = 32, *, causal: bool | None = None) -> None:
        super().__init__()
        self.most_tokens, self.causal = whole_number("tokens", tokens, 2), causal

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        return {"tokens": self.most_tokens, "causal": self.causal}

    def measure(self, geometry: AttentionGeometry) -> Measured:  # noqa: ARG002
        """Nothing: all is read from the residual stream."""
        return {}

    def measure_stream(self, stream: ResidualStream) -> Measured:
        """One number per document for each variable."""
        if stream.cross:  # the first token of the queries is no key
            return {}
        kept = spread_tokens(stream.real, self.most_tokens).cpu()
        rows = [
            self._costs(x[keep], stream.causal)
            for x, keep in zip(stream.attended.cpu(), kept, strict=True)
        ]
        return {name: torch.stack([row[name] for row in rows]) for name in self.variables}

    def _costs(self, x: Float[Tensor, "pos d_model"], causal: bool) -> dict[str, Tensor]:
        found = {name: torch.full((2, 2), torch.nan).double() for name in self.variables}
        causal = causal if self.causal is None else self.causal
        tokens = distinct_tokens(x.double()).x if len(x) else x
        found["representation_tokens"] = torch.tensor(float(len(tokens)), dtype=torch.float64)
        if len(tokens) < 2:  # nothing competes
            return found
        for t, target in enumerate(_TARGETS):
            for n, norm in enumerate(_NORMS):
                cost = representation_cost(
                    tokens, target, norm, causal=causal, tolerance=_TOLERANCE
                )
                found["representation_cost"][t, n] = cost.cost
                found["representation_infeasible"][t, n] = float(cost.infeasible)
                undecided = isnan(cost.cost) and not cost.infeasible
                found["representation_undecided"][t, n] = float(undecided)
        return found
