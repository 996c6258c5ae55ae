"""SIGKILL in the middle, and the same numbers bit for bit afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "evaluation_data" / "killed.py"
ROOTS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def outcome(directory):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": os.pathsep.join(ROOTS)},
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "evaluation", ["head_sensitivity", "sparsify", "faithfulness", "pattern_mixing"]
)
def test_killed_and_resumed_equals_uninterrupted(outcome, evaluation):
    found = outcome[evaluation]
    assert found["signals"] == [0, signal.SIGKILL, signal.SIGKILL, 0]
    first, second, total = found["units"]
    assert 0 < first < second < total  # it died in the middle, twice, and went on each time
    assert "nll" in found["whole"]
    assert sum(map(len, found["whole"].values())) > 20
    assert found["resumed"] == found["whole"]


@pytest.mark.slow
def test_nothing_half_written_is_left(outcome, directory):
    assert outcome
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []
