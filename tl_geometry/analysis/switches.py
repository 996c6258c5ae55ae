"""Attention switches over a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.arguments import whole_number, whole_seed
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.halfspace import halfspace_margins
from tl_geometry.measures.masks import spread_tokens
from tl_geometry.measures.mixing import mixing_ratios, row_rests
from tl_geometry.measures.sink_margin import log_leads
from tl_geometry.measures.sinks import masked_mean
from tl_geometry.measures.switches import FRACTIONS, checked_fractions, own_rows, switches

__all__ = ["Switches"]

_SD = "Sukenik et al., arXiv 2605.08453"
_MIX = "Kobayashi et al., arXiv 2109.07152"


_HALFSPACE = {
    "value_halfspace_feasible": Variable(
        "documents whose projected values, sinks included, lie strictly to one side of the origin, "
        "so that only short values can silence the head",
        "share of documents", _SD,
    ),
    "value_halfspace_margin": Variable(
        "shortest output that any attention to these values could give, over the longest value",
        "1", _SD,
    ),
    "value_halfspace_margin_random": Variable(
        "the same for random values (the control)", "1", _SD
    ),
    "value_rank": Variable("dimensions that the projected values span", "dimensions", _SD),
    "value_halfspace_tokens": Variable("tokens that were looked at", "tokens", _SD),
}  # fmt: skip


class Switches(Accumulator):
    """How heads say nothing (hard switch) or keep to themselves (soft switch), per document.

    >>> probe = Probe(model, [Switches()])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result().off_rate.sel(fraction=0.1)

    Rows whose query is a sink are left out. Where a head acts like an MLP,
    ``mixing_ratio_no_sink`` is near 0.

    Args:
        fractions: a row is off if its output is shorter than this share of the document's median
            |v W_O| over keys that are no sink.
        queries: how many evenly spaced queries of a document mixing ratios and logit margins are
            means over.
        halfspace: test as well whether the head's projected values, sinks included, lie strictly to
            one side of the origin (:func:`tl_geometry.halfspace_margins`): then no attention cancels
            them. Some tenths of a second per layer and document of 256 tokens and 9 heads.
        halfspace_tokens: look at so many evenly spaced tokens of a document at most. Fewer tokens
            are easier to separate: compare with the control.
        seed: of the control.
    """

    variables: Mapping[str, Variable] = {
        "off_rate": Variable(
            "rows whose output is shorter than a fraction of a typical value",
            "share of rows", _SD, ("fraction",),
        ),
        "sink_rate_off": Variable(
            "attention of the rows that are off to the sinks", "1", _SD, ("fraction",)
        ),
        "sink_rate_on": Variable(
            "attention of the rows that are on to the sinks", "1", _SD, ("fraction",)
        ),
        "null_sink_rate_off": Variable(
            "attention of the rows that are off to no token (a learned null sink)", "1", _SD, ("fraction",)
        ),
        "null_sink_rate_on": Variable(
            "attention of the rows that are on to no token (a learned null sink)", "1", _SD, ("fraction",)
        ),
        "diagonal_attention": Variable("attention of a row to its own token", "1", _SD),
        "mixing_ratio": Variable(
            "part of other tokens in a row's output, by length, against that of its own", "1", _MIX
        ),
        "mixing_ratio_no_sink": Variable(
            "part of other tokens in a row's output, by length, sinks left out", "1", _MIX
        ),
        "sink_logit_margin_min": Variable(
            "lead of the sink's logit over the largest other", "nats", _SD
        ),
        "sink_logit_margin_mean": Variable(
            "mean lead of the sink's logit over the others that do not round to a weight of zero",
            "nats", _SD,
        ),
    }  # fmt: skip

    def __init__(
        self,
        fractions: Sequence[float] = FRACTIONS,
        *,
        queries: int = 64,
        halfspace: bool = False,
        halfspace_tokens: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.queries = whole_number("queries", queries, 1)
        self.most_tokens = whole_number("halfspace_tokens", halfspace_tokens, 1)
        self.fractions = checked_fractions(fractions)
        if len(set(self.fractions)) < len(self.fractions):
            raise ValueError(f"fractions must hold different shares, got {fractions!r}")
        self.coords = {"fraction": self.fractions}
        self.halfspace, self.seed = halfspace, whole_seed(seed)
        if halfspace:
            self.variables = {**self.variables, **_HALFSPACE}

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        given = {"fractions": list(self.fractions), "queries": self.queries}
        if not self.halfspace:
            return {**given, "halfspace": False}
        tested = {"halfspace": True, "halfspace_tokens": self.most_tokens, "seed": self.seed}
        return {**given, **tested}

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head for each variable."""
        rates = switches(geometry, self.fractions)
        chosen, _ = geometry.spread_rows(min(self.queries, geometry.n_queries))
        rests = row_rests(geometry, chosen)
        rows, later = (rests.of(x) for x in (own_rows(geometry), geometry.sink_rows))
        mixed, unsunk = mixing_ratios(geometry, rests)
        smallest, mean = log_leads(geometry, rests)
        per_row = {
            "mixing_ratio": (mixed, rows),
            "mixing_ratio_no_sink": (unsunk, rows),
            "sink_logit_margin_min": (smallest, later),
            "sink_logit_margin_mean": (mean, later),
        }
        return {
            "off_rate": rates.off_rate,
            "sink_rate_off": rates.sink_rate_off,
            "sink_rate_on": rates.sink_rate_on,
            "null_sink_rate_off": rates.null_sink_rate_off,
            "null_sink_rate_on": rates.null_sink_rate_on,
            "diagonal_attention": rates.diagonal_attention,
            **{name: masked_mean(x, keep & ~x.isnan()) for name, (x, keep) in per_row.items()},
            **(self._halfspace(geometry) if self.halfspace else {}),
        }

    def _halfspace(self, geometry: AttentionGeometry) -> Measured:
        """The values of each head apart, the tokens alike."""
        kept = spread_tokens(geometry.real_keys.any(1), self.most_tokens)
        count = kept.sum(-1)
        heads = [
            halfspace_margins(x, None, mask=kept, seed=self.seed) for x in geometry.values.unbind(1)
        ]
        found = {
            "value_halfspace_feasible": [h.origin_margin.sign() for h in heads],
            "value_halfspace_margin": [h.origin_margin / h.longest for h in heads],
            "value_halfspace_margin_random": [h.control_origin_margin / h.longest for h in heads],
            "value_rank": [h.rank.to(geometry.dtype) for h in heads],
            "value_halfspace_tokens": [count.to(geometry.dtype) for _ in heads],
        }
        return {name: torch.stack(values, 1) for name, values in found.items()}
