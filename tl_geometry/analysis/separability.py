"""Separability over a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.arguments import whole_number, whole_seed
from tl_geometry.measures.certificate import certify_rows
from tl_geometry.measures.clusters import (
    Scorer,
    SeparabilityScores,
    random_rankings,
)
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.row_blocks import row_blocks
from tl_geometry.measures.separability import TOP_N, checked_sizes, inversion_bounds

__all__ = ["Separability"]

_TS = "Mudarisov et al., arXiv 2602.01893"
_WORDS = {
    "precision": "precision of the N most attended keys as a cluster around their sum",
    "recall": "recall of the N most attended keys as a cluster around their sum",
    "f_score": "F score of the N most attended keys as a cluster around their sum",
}
_VARIANTS = {
    "": "",
    "_no_sink": ", sinks left out",
    "_random": ", random keys instead (the control)",
}


def _variable(long_name: str, units: str = "1") -> Variable:
    return Variable(long_name, units, _TS, ("top_n",))


class Separability(Accumulator):
    """Whether the most attended keys form a cluster of their own, against random keys and without the sink.

    >>> probe = Probe(model, [Separability(top_n=(2, 8))])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result().f_score.sel(layer=5, top_n=8)

    Args:
        top_n: sizes N of the selected set.
        queries: evenly spaced queries per document that are scored.
        repeats: random rankings per query for the control.
        control_queries: evenly spaced queries per document for the control, ``queries`` at most.
        seed: of the control; the same document gets the same rankings in any batch.
    """

    variables: Mapping[str, Variable] = {
        **{
            f"{name}{suffix}": _variable(words + more)
            for suffix, more in _VARIANTS.items()
            for name, words in _WORDS.items()
        },
        "separable_share": _variable(
            "rows in which the selected keys are separated from all others", "share of rows"
        ),
        "inversion_bound": _variable("lower bound on F from the number of inversions"),
        "certificate": _variable("lower bound on F from lengths and cosine bounds alone"),
        "separability_rows": Variable(
            "rows that were scored", "rows", _TS, ("top_n",), over="rows"
        ),
    }

    def __init__(
        self,
        top_n: Sequence[int] = TOP_N,
        *,
        queries: int = 64,
        repeats: int = 1,
        control_queries: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.queries = whole_number("queries", queries, 1)
        self.repeats = whole_number("repeats", repeats, 1)
        self.control_queries = whole_number("control_queries", control_queries, 1)
        self.seed = whole_seed(seed)
        self.top_n = checked_sizes(top_n)
        if len(set(self.top_n)) < len(self.top_n):
            raise ValueError(f"top_n must hold different sizes, got {top_n!r}")
        self.coords = {"top_n": self.top_n}

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        return {
            "top_n": list(self.top_n),
            "queries": self.queries,
            "repeats": self.repeats,
            "control_queries": self.control_queries,
            "seed": self.seed,
        }

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head for each variable."""
        rows, real = geometry.spread_rows(min(self.queries, geometry.n_queries))
        blocks = list(row_blocks(geometry, rows, real, self.top_n))
        score = Scorer(geometry, self.top_n, margins=False).score_rows
        scores = score(blocks)
        found = _means(scores, "") | _means(
            score(blocks, exclude_sink=True, inversions=False), "_no_sink"
        )
        known = ~scores.f_score.isnan()
        found["separable_share"] = _mean(
            torch.where(known, (scores.margin > 0).to(scores.margin), torch.nan)
        )
        found["inversion_bound"] = _mean(inversion_bounds(scores.inversions, self.top_n)[2])
        found["separability_rows"] = known.sum(2)
        if geometry.sinks.shape[1] == 1 and geometry.sink_keys[0].shape[-1] == 1:
            found["certificate"] = _mean(certify_rows(geometry, blocks, self.top_n).f_score)
        n = min(self.control_queries, self.queries)
        rows, real = geometry.spread_rows(n)
        rankings = random_rankings(geometry, n, self.repeats, self.seed)
        control = score(
            row_blocks(
                geometry, rows.repeat(1, self.repeats), real.repeat(1, self.repeats), self.top_n
            ),
            rank_by="random",
            random=rearrange(rankings, "repeat batch row key -> batch (repeat row) key"),
            inversions=False,
        )
        return found | _means(control, "_random")


def _means(scores: SeparabilityScores, suffix: str) -> dict[str, Tensor]:
    return {f"{name}{suffix}": _mean(getattr(scores, name)) for name in _WORDS}


def _mean(x: Tensor) -> Tensor:
    """Mean over the rows of a document in which x is defined."""
    return x.nanmean(2)
