"""Oversmoothing over a corpus: how alike tokens are before and after each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, Measured, ResidualStream, Variable
from tl_geometry.arguments import whole_number, whole_seed
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.halfspace import halfspace_margins
from tl_geometry.measures.masks import spread_tokens

__all__ = ["Smoothing"]

_SD = "Sukenik et al., arXiv 2605.08453"
_WORDS = {
    "origin_margin": "distance of the tokens' convex hull from the origin, over the longest token",
    "sink_margin": "distance of the first token from the others' convex hull, over the longest token",
}


def _variable(long_name: str, units: str = "1") -> Variable:
    return Variable(long_name, units, _SD, per="layer")


_STREAM = {
    "similarity_in": _variable("mean cosine between tokens at the layer's input, bos apart"),
    "similarity_out": _variable("mean cosine between tokens at the layer's output, bos apart"),
    "residual_in": _variable("share of the tokens that is not their mean, at the layer's input"),
    "residual_out": _variable("share of the tokens that is not their mean, at the layer's output"),
    "bos_cosine": _variable(
        "mean cosine of the first token with the others, as attention reads them"
    ),
    "bos_cosine_max": _variable(
        "largest cosine of the first token with another, as attention reads them"
    ),
}
_HALFSPACE = {
    "halfspace_feasible": _variable(
        "documents in which some bilinear form makes every token attend to the first most",
        "share of documents",
    ),
    "halfspace_rank": _variable("dimensions that the other tokens span", "dimensions"),
    "halfspace_tokens": _variable("tokens that were looked at", "tokens"),
    **{
        f"halfspace_{name}{suffix}": _variable(words + more)
        for suffix, more in (("", ""), ("_random", ", for random vectors (the control)"))
        for name, words in _WORDS.items()
    },
}


class Smoothing(Accumulator):
    """How alike the tokens are at the input and output of each layer, per document and layer.

    >>> probe = Probe(model, [Smoothing()])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result().similarity_out

    Read from the residual stream around each block, the first real token apart. Under an ablation
    it shows what the ablated attention makes of the tokens.

    Args:
        halfspace: test the half-space conditions of a sink at the first token as well
            (:func:`tl_geometry.halfspace_margins`), on what the attention reads. It takes about a
            second per layer and document of 512 tokens.
        halfspace_tokens: look at so many evenly spaced tokens of a document at most, the first
            always among them. Fewer tokens are easier to separate: compare with the control.
        seed: of the control.
    """

    reads_stream = True
    variables: Mapping[str, Variable] = _STREAM

    def __init__(
        self, *, halfspace: bool = False, halfspace_tokens: int = 512, seed: int = 0
    ) -> None:
        super().__init__()
        self.most_tokens = whole_number("halfspace_tokens", halfspace_tokens, 2)
        self.halfspace, self.seed = halfspace, whole_seed(seed)
        if halfspace:
            self.variables = {**_STREAM, **_HALFSPACE}

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        if not self.halfspace:
            return {"halfspace": False}
        return {
            "halfspace": True,
            "halfspace_tokens": self.most_tokens,
            "seed": self.seed,
        }

    def measure(self, geometry: AttentionGeometry) -> Measured:  # noqa: ARG002
        """Nothing: all is read from the residual stream."""
        return {}

    def measure_stream(self, stream: ResidualStream) -> Measured:
        """One number per document for each variable."""
        found: dict[str, Tensor] = {}
        for place, tokens in (("in", stream.tokens_before), ("out", stream.tokens_after)):
            found[f"similarity_{place}"] = tokens.similarity()
            found[f"residual_{place}"] = tokens.residual()
        if stream.cross:  # the first token of the queries is no key
            return found
        mean, largest = stream.tokens_attended.first_cosines()
        found |= {"bos_cosine": mean, "bos_cosine_max": largest}
        return found | (self._halfspace(stream) if self.halfspace else {})

    def _halfspace(self, stream: ResidualStream) -> dict[str, Tensor]:
        kept = spread_tokens(stream.real, self.most_tokens)
        margins = halfspace_margins(stream.attended, mask=kept, seed=self.seed)
        longest = margins.longest
        values = {
            "feasible": torch.where(
                margins.origin_margin.isnan(), torch.nan, margins.feasible.to(longest)
            ),
            "rank": margins.rank,
            "tokens": kept.sum(-1),
            "origin_margin": margins.origin_margin / longest,
            "sink_margin": margins.sink_margin / longest,
            "origin_margin_random": margins.control_origin_margin / longest,
            "sink_margin_random": margins.control_sink_margin / longest,
        }
        return {f"halfspace_{name}": value for name, value in values.items()}
