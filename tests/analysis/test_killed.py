"""SIGKILL, Ctrl-C and a full disk, for real: a whole file afterwards, and the same numbers bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "analysis_data" / "killed_analyze.py"
ROOTS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("killed"))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join(ROOTS)},
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


ENDS = {  # how each run of a scene ends, and the documents in the file after it
    "whole": [("result", 8)],
    "killed in a batch": [("SIGKILL", 2), ("SIGKILL", 4), ("result", 8)],
    "killed in a write": [("SIGKILL", 2), ("SIGKILL", 4), ("SIGKILL", 6), ("result", 8)],
    "killed at the end": [("SIGKILL", 8), ("result", 8), ("result", 8)],
    "interrupted": [("KeyboardInterrupt", 4), ("result", 8)],
    "full disk": [("StopError", 2), ("OSError: [Errno 27] File too large", 2), ("result", 8)],
}


@pytest.mark.slow
@pytest.mark.parametrize("scene", ENDS)
def test_a_run_that_ends_in_any_way_goes_on(outcome, scene):
    (whole, _), *_ = outcome["whole"]
    assert len(whole) == 64
    for (ended, held), (expected, documents) in zip(outcome[scene], ENDS[scene], strict=True):
        assert ended == whole if expected == "result" else ended.startswith(expected)
        assert held == documents


@pytest.mark.slow
def test_nothing_half_written_is_left(outcome):
    assert outcome["left"] == []
