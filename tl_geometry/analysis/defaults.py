"""What is measured when nobody says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.regimes import Regimes
from tl_geometry.analysis.separability import Separability
from tl_geometry.analysis.sinks import Sinks
from tl_geometry.measures.separability import TOP_N

__all__ = ["check_distinct", "checked_measures", "default_measures"]


def default_measures(
    *, top_n: Sequence[int] = TOP_N, queries: int = 64, seed: int = 0
) -> list[Accumulator]:
    """What :func:`tl_geometry.analyze` measures when it is not told otherwise."""
    return [Contributions(), Regimes(), Sinks(), Separability(top_n, queries=queries, seed=seed)]


def checked_measures(measures: Any) -> list[Accumulator]:
    """Measures as a list of instances.

    Raises:
        TypeError: something else, such as a class instead of an instance.
    """
    given = [measures] if isinstance(measures, Accumulator) else list(measures)
    for measure in given:
        if not isinstance(measure, Accumulator):
            name = measure.__name__ if isinstance(measure, type) else type(measure).__name__
            raise TypeError(f"measures must hold accumulators such as Sinks(), got {name}")
    return given


def check_distinct(measures: Sequence[Accumulator]) -> None:
    """Refuse two measures that would write the same variable.

    Raises:
        ValueError: with the names.
    """
    names = [name for measure in measures for name in measure.variables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"measures: {', '.join(twice[:3])} would be written twice; give each measure once"
        )
