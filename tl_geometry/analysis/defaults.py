"""What is measured when nobody says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.costs import Costs
from tl_geometry.analysis.regimes import Regimes
from tl_geometry.analysis.separability import Separability
from tl_geometry.analysis.sinks import Sinks
from tl_geometry.analysis.smoothing import Smoothing
from tl_geometry.analysis.switches import Switches
from tl_geometry.measures.separability import TOP_N

__all__ = ["MeasureName", "Options", "check_distinct", "checked_measures", "default_measures"]

MeasureName: TypeAlias = Literal[
    "contributions",
    "regimes",
    "sinks",
    "separability",
    "switches",
    "smoothing",
    "value_halfspace",
    "halfspace",
    "costs",
]
"""Measures that go by a name; the last three are costly, two of them forms of the two before."""

QUERIES = 64


@dataclass(frozen=True)
class Options:
    """What shapes the measures that go by a name."""

    top_n: Sequence[int] = TOP_N
    queries: int = QUERIES
    seed: int = 0


_NAMED: dict[str, Callable[[Options], Accumulator]] = {
    "contributions": lambda _: Contributions(),
    "regimes": lambda _: Regimes(),
    "sinks": lambda _: Sinks(),
    "separability": lambda o: Separability(o.top_n, queries=o.queries, seed=o.seed),
    "switches": lambda _: Switches(),
    "smoothing": lambda _: Smoothing(),
    "value_halfspace": lambda o: Switches(halfspace=True, seed=o.seed),
    "halfspace": lambda o: Smoothing(halfspace=True, seed=o.seed),
    "costs": lambda _: Costs(),
}


def default_measures(options: Options = Options(), *, stream: bool = False) -> list[Accumulator]:
    """What is measured when nobody says otherwise; ``stream`` for what needs the residual stream as well."""
    names = ["contributions", "regimes", "sinks", "separability", "switches"]
    return [_NAMED[name](options) for name in (*names, *(["smoothing"] if stream else []))]


def checked_measures(measures: Any, options: Options = Options()) -> list[Accumulator]:
    """Measures as a list of instances; those that read attention alone if there are none.

    Raises:
        TypeError: something else, such as a class instead of an instance.
        ValueError: a name of no measure.
    """
    if measures is None:
        return default_measures(options)
    given = [measures] if isinstance(measures, (Accumulator, str)) else list(measures)
    return [_checked(measure, options) for measure in given]


def _checked(measure: Any, options: Options) -> Accumulator:
    if isinstance(measure, Accumulator):
        return measure
    if isinstance(measure, str):
        if measure not in _NAMED:
            raise ValueError(
                f"measures: there is no {measure!r}; names are {get_args(MeasureName)}"
            )
        return _NAMED[measure](options)
    name = measure.__name__ if isinstance(measure, type) else type(measure).__name__
    raise TypeError(f"measures must hold accumulators such as Sinks(), or their names, got {name}")


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
