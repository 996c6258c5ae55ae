"""Which masked runs a comparison of importances needs, and which of them several of its cells share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tl_geometry.ablations.entries import EntryScores
from tl_geometry.measures.geometry import Mode
from tl_geometry.measures.importances import share_output
from tl_geometry.measures.selection import Scope

__all__ = ["Run", "gathered", "plan_runs"]

_PLAIN, _NORMALIZED = "value_weighted", "value_weighted_normalized"
_BY_OUTPUT = (_NORMALIZED, "contribution")


class Run(NamedTuple):
    """One ranking: importance, mode and ranking as far as they matter, number of the random repeat."""

    importance: str
    mode: str
    ranking: str
    repeat: int

    def name(self, direction: str, share: float) -> str:
        """What the checkpoint calls it."""
        return " ".join((*map(str, self), direction, repr(share)))


def plan_runs(
    scorers: Mapping[str, EntryScores],
    modes: Sequence[Mode],
    rankings: Sequence[str],
    repeats: int,
    scope: Scope,
) -> dict[tuple[int, int, int], list[Run]]:
    """The runs whose mean each cell of the table shows; cells that rank alike share theirs."""
    plan = {}
    for i, importance in enumerate(scorers):
        for m, mode in enumerate(modes):
            ranks = importance
            if importance == _NORMALIZED and share_output(scope, mode):
                ranks = _PLAIN if scorers.get(_PLAIN) == _PLAIN else importance
            for r, ranking in enumerate(rankings):
                refers = mode if ranks in _BY_OUTPUT else "-"
                signed = ranking if ranks == "contribution" else "-"
                times = repeats if ranks == "random" else 1
                plan[i, m, r] = [Run(ranks, refers, signed, k) for k in range(times)]
    return plan


def gathered(
    of: Callable[[str], NDArray[np.float64]],
    plan: Mapping[tuple[int, int, int], Sequence[Run]],
    direction: str,
    shares: Sequence[float],
    n_documents: int,
) -> NDArray[np.float64]:
    """NLL ``importance mode ranking fraction document`` in one direction, random repeats averaged."""
    sizes = tuple(1 + max(place[axis] for place in plan) for axis in range(3))
    nll = np.empty((*sizes, len(shares), n_documents))
    for place, runs in plan.items():
        for f, share in enumerate(shares):
            i, m, r = place
            nll[i, m, r, f] = np.mean([of(run.name(direction, share)) for run in runs], axis=0)
    return nll
