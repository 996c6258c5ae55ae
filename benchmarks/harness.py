"""Timings side by side, and one line per row."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

Run = Callable[[], object]

LEAST_SECONDS = 0.1
"""A run that is shorter is called several times for one measurement."""


@dataclass(frozen=True)
class Row:
    """One figure against its bar."""

    name: str
    value: float
    bar: float
    ok: bool
    detail: str
    sign: str = "<="

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "MISS"
        bar = f"{self.sign} {self.bar:g}"
        return f"{self.name:<88} {self.value:9.3f}  {bar:<8}  {self.detail}  {verdict}"


def at_most(name: str, value: float, bar: float, detail: str) -> Row:
    """A figure that should not be larger than its bar; NaN is a miss."""
    return Row(name, round(value, 4), bar, value <= bar, detail)


def at_least(name: str, value: float, bar: float, detail: str) -> Row:
    """A figure that should not be smaller than its bar; NaN is a miss."""
    return Row(name, round(value, 4), bar, value >= bar, detail, ">=")


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Name, value, bar and verdict of every row."""
    keys = ("name", "value", "bar", "ok")
    found = [{key: asdict(row)[key] for key in keys} for row in rows]
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Sample:
    """One figure, measured in several rounds."""

    values: tuple[float, ...]
    digits: int = 2

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = (f"{end:.{self.digits}f}" for end in (min(self.values), max(self.values)))
        return f"{low}..{high} over {len(self.values)} rounds"

    def __sub__(self, constant: float) -> Sample:
        return Sample(tuple(value - constant for value in self.values), self.digits)

    def __mul__(self, constant: float) -> Sample:
        return Sample(tuple(value * constant for value in self.values), self.digits)

    def __truediv__(self, constant: float) -> Sample:
        return Sample(tuple(value / constant for value in self.values), self.digits)


def ratios(base: Run, runs: Mapping[str, Run], rounds: int) -> dict[str, Sample]:
    """Each run's time over that of the base, which runs just before it and just after it.

    So a machine that slows down or is taken by others for a while disturbs both sides of a ratio, not one. A round
    before the first, which is not counted, warms up.
    """
    calls = {name: _calls(run) for name, run in runs.items()}
    base_calls = _calls(base)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        before = _seconds(base, base_calls)
        for name, run in runs.items():
            measured = _seconds(run, calls[name])
            after = _seconds(base, base_calls)
            found[name].append(2 * measured / (before + after))
            before = after
    return {name: Sample(tuple(values)) for name, values in found.items()}


def _calls(run: Run) -> int:
    first = _seconds(run, 1)  # with everything that only a first call does
    again = first if first > 1 else _seconds(run, 1)
    return max(1, math.ceil(LEAST_SECONDS / again))


def _seconds(run: Run, calls: int) -> float:
    """Seconds of one call, as the mean of some."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
