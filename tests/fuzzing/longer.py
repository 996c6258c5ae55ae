"""The fuzz tests again and again with other seeds, until the time is over: ``make fuzz MINUTES=10``.

Ends with 0 when nothing failed, with 1 at the first failure, whose example and command it prints.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAST = 5.0
"""Seconds that must be left for another round to begin."""


def command(seed: int) -> list[str]:
    return [
        sys.executable, "-m", "pytest", "tests/fuzzing", "-q", "-x", "-p", "no:cacheprovider",
        f"--hypothesis-seed={seed}",
    ]  # fmt: skip


def has_failed(text: str) -> bool:
    """Whether the progress that pytest has shown so far holds a failure or an error."""
    progress = [re.match("[.sxXFE]*", line)[0] for line in text.splitlines()]
    return any(mark in marks for marks in progress for mark in "FE" if len(marks) > 1)


def run_round(seed: int, seconds: float) -> int | None:
    """Exit code of one round, None where the time was over before anything failed; prints what failed."""
    with tempfile.TemporaryFile("w+") as log:
        environment = os.environ | {"FUZZ_LONGER": "1"}
        child = subprocess.Popen(
            command(seed), cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            code = None
        log.seek(0)
        text = log.read()
    if code is None and has_failed(text):
        code = 1  # seen, but the time was over before pytest could tell of it
    if code:
        print(text)
    return code


def main(minutes: float) -> int:
    end = time.monotonic() + 60 * minutes
    rounds = 0
    while (left := end - time.monotonic()) > LEAST:
        seed = random.SystemRandom().randrange(2**32)
        code = run_round(seed, left)
        if code:
            repeat = " ".join(["FUZZ_LONGER=1", "python", *command(seed)[1:]])
            print(f"failed with seed {seed}; the same again: {repeat}")
            return 1
        if code is None:
            print(f"time is over in round {rounds + 1} (seed {seed})")
            break
        rounds += 1
        print(f"round {rounds}: nothing found (seed {seed})", flush=True)
    print(f"fuzz: {rounds} whole rounds, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
