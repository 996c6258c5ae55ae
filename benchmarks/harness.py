"""Interleaved timings, peak memory in a process of its own, and one line per row."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One figure against its bar; ``value`` should be at most ``bar``."""

    name: str
    value: float
    bar: float
    ok: bool
    detail: str

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "MISS"
        return f"{self.name:<72} {self.value:7.3f}  bar {self.bar:<5g}  {self.detail}  {verdict}"


def at_most(name: str, value: float, bar: float, detail: str) -> Row:
    return Row(name, round(value, 4), bar, value <= bar, detail)


def interleaved(
    runs: Mapping[str, Callable[[], object]], rounds: int = 7
) -> dict[str, list[float]]:
    """Seconds of each run, one after another in every round, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> tuple[float, str]:
    """Median over rounds of one run's time over another's in the same round, and its spread in words."""
    ratios = [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]
    spread = f"{min(ratios):.2f}..{max(ratios):.2f} over {len(ratios)} rounds"
    return statistics.median(ratios), spread


def peak_memory(scenario: str) -> float:
    """Peak resident memory, in MiB, of ``python -m benchmarks --scenario NAME`` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks", "--scenario", scenario]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.strip().splitlines()[-1])


def own_peak_memory() -> float:
    """Peak resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def write_json(rows: list[Row], path: Path) -> None:
    keys = ("name", "value", "bar", "ok")
    found = [{key: asdict(row)[key] for key in keys} for row in rows]
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
