"""What is measured when nobody says otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.regimes import Regimes
from tl_geometry.analysis.separability import Separability
from tl_geometry.analysis.sinks import Sinks
from tl_geometry.measures.separability import TOP_N

__all__ = ["default_measures"]


def default_measures(
    *, top_n: Sequence[int] = TOP_N, queries: int = 64, seed: int = 0
) -> list[Accumulator]:
    """What :func:`tl_geometry.analyze` measures when it is not told otherwise."""
    return [Contributions(), Regimes(), Sinks(), Separability(top_n, queries=queries, seed=seed)]
