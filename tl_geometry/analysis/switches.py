"""Attention switches over a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.mixing import mixing_ratios, row_rests
from tl_geometry.measures.sink_margin import log_leads
from tl_geometry.measures.sinks import masked_mean
from tl_geometry.measures.switches import FRACTIONS, checked_fractions, own_rows, switches

__all__ = ["Switches"]

_SD = "Sukenik et al., arXiv 2605.08453"
_MIX = "Kobayashi et al., arXiv 2109.07152"


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

    def __init__(self, fractions: Sequence[float] = FRACTIONS, *, queries: int = 64) -> None:
        super().__init__()
        if queries < 1:
            raise ValueError(f"queries must be at least 1, got {queries}")
        self.fractions = checked_fractions(fractions)
        if len(set(self.fractions)) < len(self.fractions):
            raise ValueError(f"fractions must hold different shares, got {fractions!r}")
        self.coords = {"fraction": self.fractions}
        self.queries = queries

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        return {"fractions": list(self.fractions), "queries": self.queries}

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
            "diagonal_attention": rates.diagonal_attention,
            **{name: masked_mean(x, keep & ~x.isnan()) for name, (x, keep) in per_row.items()},
        }
