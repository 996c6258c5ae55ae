"""Evaluations that send themselves SIGKILL and are gone on with: python killed.py DIRECTORY, with the
repository and its tests on the path.

Each run is a child of its own, forked before anything is computed, so that the imports are paid
once. Prints, as JSON, for each evaluation: the signals that ended its runs, the numbers of finished
units after each, and the results of the uninterrupted and of the resumed run, floats in hexadecimal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
from evaluation_data.reference import corpus

from tl_geometry.evaluation import checkpoint
from tl_geometry.evaluation.faithfulness import faithfulness
from tl_geometry.evaluation.mixing import pattern_mixing
from tl_geometry.evaluation.sensitivity import head_sensitivity
from tl_geometry.evaluation.sparsify import sparsify

RUNS: dict[str, Callable[..., Any]] = {
    "head_sensitivity": head_sensitivity,
    "sparsify": lambda model, data, **options: sparsify(
        model, data, orders=["entropy", "random"], repeats=2, **options
    ),
    "faithfulness": lambda model, data, **options: faithfulness(
        model, data, {"mine": lambda g: g.pattern}, fractions=(0.2,), **options
    ),
    "pattern_mixing": lambda model, data, **options: pattern_mixing(
        model, data, ts=(0.5, 1.0), **options
    ),
}


def evaluate(name: str, file: Path) -> dict[str, list[str]]:
    """The numbers of one evaluation, gone on with from the file where there is one."""
    model = conftest._tiny_hooked() if conftest._has_hooked() else conftest._tiny_bridge()
    tokens, mask, _ = corpus((12, 9, 12, 7, 10, 11))
    data = [(tokens[k : k + 2], mask[k : k + 2]) for k in (0, 2, 4)]
    ds = RUNS[name](model, data, n_ctx=64, checkpoint=file, resume=file.exists(), progress=False)
    return {
        str(key): [float(x).hex() for x in ds[key].values.ravel()]
        for key in ds.data_vars
        if ds[key].dtype.kind in "fi"
    }


def die_at(save: int, where: str) -> None:
    """SIGKILL at a save of the checkpoint: ``"before"`` the new file takes its place, or ``"after"``."""
    count = 0
    replace = Path.replace

    def replace_or_die(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == save and where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = replace(self, target)
        if count == save:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Path.replace = replace_or_die


def child(name: str, file: Path, output: Path, save: int = 0, where: str = "after") -> int:
    """Run in a forked process; the signal that ended it, 0 if it came to its end."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            checkpoint.SECONDS_BETWEEN_WRITES = 0.0
            die_at(save, where)
            output.write_text(json.dumps(evaluate(name, file)))
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(process, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def main(directory: Path) -> None:
    found: dict[str, Any] = {}
    for name in RUNS:
        whole, file, output = (directory / f"{name}.{part}" for part in ("whole", "run", "out"))
        signals = [child(name, whole, output)]
        expected = json.loads(output.read_text())
        total = len(json.loads(whole.read_text())["units"])
        units = []
        for save, where in ((5, "after"), (4, "before")):
            signals.append(child(name, file, output, save, where))
            units.append(len(json.loads(file.read_text())["units"]))
        signals.append(child(name, file, output))
        resumed = json.loads(output.read_text())
        found[name] = {
            "signals": signals,
            "units": [*units, total],
            "whole": expected,
            "resumed": resumed,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
