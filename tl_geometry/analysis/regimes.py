"""Head regimes over a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.arguments import one_of
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.regimes import (
    CATEGORIES,
    Queries,
    Space,
    category_counts,
    last_only,
    regime_labels,
    winner_categories,
    winner_positions,
)
from tl_geometry.measures.sinks import masked_mean

__all__ = ["Regimes"]

_TS = "Mudarisov et al., arXiv 2602.01893"
_LAST_BIN = 13
_BINS = (
    "<0",
    "0",
    "1",
    *(f"{2**k}-{2 ** (k + 1) - 1}" for k in range(1, _LAST_BIN - 1)),
    f"{2 ** (_LAST_BIN - 1)}+",
)


class Regimes(Accumulator):
    """Retriever, mixer or reset: each head's label over all rows of all documents, with its evidence.

    >>> probe = Probe(model, [Regimes()])
    >>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
    >>> probe.result().regime.sel(layer=5)

    The label is the plurality of the winners counted over all rows; the shares are means over
    documents with standard errors, so with documents of unequal length the largest share and the
    label can differ.

    Args:
        space: lengths of values in ``"head"`` space (the paper's) or ``"model"`` space.
        queries: ``"last"`` counts the last query of each document only.
    """

    variables: Mapping[str, Variable] = {
        "self_share": Variable("rows won by the query's own token", "share of rows", _TS),
        "sink_share": Variable("rows won by a sink", "share of rows", _TS),
        "other_share": Variable("rows won by another token", "share of rows", _TS),
        "winner_count": Variable(
            "rows by winner category", "rows", _TS, ("category",), over="rows"
        ),
        "winner_offset": Variable(
            "distance from query to winner", "share of rows", _TS, ("offset_bin",)
        ),
        "output_sink_cosine": Variable(
            "cosine of the head's output with the sink's projected value", "1", _TS
        ),
        "output_self_cosine": Variable(
            "cosine of the head's output with the query's projected value", "1", _TS
        ),
    }
    coords: Mapping[str, Sequence[str | int]] = {"category": CATEGORIES, "offset_bin": _BINS}

    def __init__(self, space: Space = "head", queries: Queries = "all") -> None:
        super().__init__()
        one_of("space", space, ("head", "model"))
        one_of("queries", queries, ("all", "last"))
        self.space, self.queries = space, queries

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        return {"space": self.space, "queries": self.queries}

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head for each variable."""
        position = winner_positions(geometry, self.space)
        category = winner_categories(geometry, position)
        if self.queries == "last":
            category = last_only(geometry, category)
        counts = category_counts(category)
        shares = counts / counts.sum(-1, keepdim=True)
        found: dict[str, Tensor] = {
            f"{name}_share": shares[..., code] for code, name in enumerate(CATEGORIES)
        }
        found["winner_count"] = counts
        if not geometry.cross:
            found["winner_offset"] = _offsets(geometry, position, category)
        counted = category >= 0
        unit_sinks = _units(geometry.sink_vectors(geometry.values))
        direction = geometry.dual("intra") * geometry.output_norms("intra").unsqueeze(-1)
        towards = direction @ unit_sinks.transpose(-1, -2)
        seen = geometry.sink_seen
        found["output_sink_cosine"] = _mean(
            towards.flatten(-2), (seen & counted.unsqueeze(-1)).flatten(-2)
        )
        if not geometry.cross:
            own = (direction * _units(geometry.values)).sum(-1)
            found["output_self_cosine"] = _mean(own, counted)
        return found

    def derived(self, found: Mapping[str, Tensor]) -> dict[str, tuple[Variable, Any]]:
        """Labels, rows and margins from the winner counts."""
        counts = found["winner_count"]
        rows = counts.sum(-1)
        top = (counts / torch.where(rows > 0, rows, torch.nan).unsqueeze(-1)).topk(2, dim=-1).values
        labels = np.array([regime_labels(layer) for layer in counts.long()])
        return {
            "regime": (
                Variable("plurality of the winner categories over all rows", "", _TS),
                labels,
            ),
            "regime_rows": (Variable("rows that were counted", "rows", _TS), rows),
            "regime_margin": (
                Variable(
                    "share of the winning category minus the runner-up's", "share of rows", _TS
                ),
                top[..., 0] - top[..., 1],
            ),
        }


def _units(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)


def _mean(x: Tensor, keep: Tensor) -> Tensor:
    return masked_mean(x, keep & ~x.isnan())


def _offsets(
    geometry: AttentionGeometry,
    position: Int[Tensor, "batch head query"],
    category: Int[Tensor, "batch head query"],
) -> Float[Tensor, "batch head offset_bin"]:
    """Share of the counted rows by distance from the query back to its winner, in bins that double.

    Distances count real tokens, so that padding in between changes nothing.
    """
    rank = geometry.rows.any(1).long().cumsum(-1)[:, None].expand(position.shape)
    offset = rank - rank.gather(-1, position.clamp(min=0))
    bins = torch.where(offset > 0, offset.clamp(min=1).float().log2().floor().long() + 2, 1).clamp(
        max=_LAST_BIN + 1
    )
    bins = torch.where(offset < 0, 0, bins)
    counted = (category >= 0).to(torch.float32)
    counts = counted.new_zeros(*position.shape[:2], _LAST_BIN + 2)
    counts.scatter_add_(-1, bins, counted)
    return counts / counted.sum(-1, keepdim=True)
