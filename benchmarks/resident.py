"""``python -m benchmarks.resident SCENARIO T``: the peak memory of one run, in a process of its own.

The model is loaded and everything is run once at a short length; then what is free is given back to the system, the
peak that Linux keeps for this process (``VmHWM``) is reset through ``/proc/self/clear_refs``, and the run is
made at full length. The parent sets glibc's allocator so that memory follows what is alive: every block of 64 KiB
or more is a mapping of its own, returned when it is freed, and there is one arena. So repeated runs agree
to a few hundred KiB, where the untouched allocator differs by many MiB. Elsewhere than on Linux
the figure is ``ru_maxrss``, the peak since the process began: loading the model is then part of it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.defaults import default_measures

ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
}
PEAK = Path("/proc/self/clear_refs")  # 5 sets the peak to what is resident now
MIB = 2.0**20


@dataclass(frozen=True)
class Peak:
    """Resident memory in MiB, before a run and at its highest."""

    before: float
    highest: float

    @property
    def own(self) -> float:
        """What the run added at most to the loaded model."""
        return self.highest - self.before


def peak_of(scenario: str, n_ctx: int) -> Peak:
    """Run a scenario in a fresh process.

    Raises:
        subprocess.CalledProcessError: it failed; its messages stand on standard error.
    """
    command = [sys.executable, "-m", "benchmarks.resident", scenario, str(n_ctx)]
    command += [str(torch.get_num_threads())]
    environment = {**os.environ, **ALLOCATOR}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def scenario_run(scenario: str, n_ctx: int) -> Callable[[], object]:
    """The run that a scenario names."""
    from benchmarks.setting import plain, probed, smollm2, windows
    from benchmarks.slow_ways import cached_contributions

    if scenario == "plain":
        return plain(n_ctx, return_type=None)
    if scenario == "contributions":
        return probed([Contributions()], n_ctx, return_type=None)
    if scenario == "default":
        return probed(default_measures(stream=True), n_ctx, return_type=None)
    if scenario == "cached":
        return lambda: cached_contributions(smollm2(), windows(n_ctx).tokens, return_type=None)
    raise ValueError(f"there is no scenario {scenario!r}")


def measured(scenario: str, n_ctx: int) -> Peak:
    """The peak of one run in this process."""
    run = scenario_run(scenario, n_ctx)
    scenario_run(scenario, 128)()
    gc.collect()
    if not peak_can_be_reset():
        before = _highest()
        run()
        return Peak(before, _highest())
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    PEAK.write_text("5")
    before = _status("VmRSS")
    run()
    return Peak(before, _status("VmHWM"))


def peak_can_be_reset() -> bool:
    """Whether this system lets a process set its peak back."""
    return os.access(PEAK, os.W_OK)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) / 2**10


def _highest() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    scenario, n_ctx, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    peak = measured(scenario, int(n_ctx))
    print(json.dumps({"before": peak.before, "highest": peak.highest}))


if __name__ == "__main__":
    main()
