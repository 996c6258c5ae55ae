"""Deliberate faults: is each of them noticed by the test that is there for it?

    python tests/faults.py                  every fault of faults.toml, each in a copy of the package
    python tests/faults.py pads signs       those whose names contain one of the words
    python tests/faults.py --table          write the table of CONTRIBUTING.md

A fault replaces a piece of the package's code. Its test must fail on that copy; that it passes on
the code as it is, the test suite shows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- faults -->\n", "<!-- end of faults -->\n"
FAILED = 1  # pytest's exit code for tests that failed


@dataclass(frozen=True)
class Fault:
    """One deliberate fault: in which file what is replaced by what, and which test must notice."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def inject(self, package: Path) -> None:
        """Put the fault into a copy of the package."""
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.file} holds the code {text.count(self.old)} times"
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def read_faults() -> list[Fault]:
    """All faults of the list."""
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [Fault(name, **fields) for name, fields in listed.items()]


def table(faults: list[Fault]) -> str:
    """The faults and the tests that catch them, as Markdown."""
    rows = [f"| {fault.name} | `{fault.file}` | `{fault.test}` |\n" for fault in faults]
    return "".join(["| fault | in | caught by |\n", "|---|---|---|\n", *rows])


def is_caught(fault: Fault) -> tuple[bool, str]:
    """Whether the fault's test fails on a copy of the package that has it, and what pytest said."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("tl_geometry", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        fault.inject(copy / "tl_geometry")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [*command, fault.test], cwd=copy, env=environment, capture_output=True, text=True
        )
    return run.returncode == FAILED, run.stdout[-2000:] + run.stderr[-2000:]


def write_table() -> None:
    """Bring the table of CONTRIBUTING.md up to date."""
    head, _, rest = GUIDE.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    GUIDE.write_text(head + BEGIN + table(read_faults()) + END + tail, encoding="utf-8")


def main() -> int:
    """Run the faults and say which of them no test has noticed."""
    parser = argparse.ArgumentParser(description="Deliberate faults against the tests.")
    parser.add_argument("words", nargs="*", help="only faults whose names contain one of these")
    parser.add_argument("--table", action="store_true", help="write the table of CONTRIBUTING.md")
    given = parser.parse_args()
    if given.table:
        write_table()
        return 0
    chosen = [f for f in read_faults() if not given.words or any(w in f.name for w in given.words)]
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for fault, (caught, said) in zip(chosen, pool.map(is_caught, chosen), strict=True):
            print(f"{'caught' if caught else 'MISSED'}  {fault.name}", flush=True)
            missed += not caught
            if not caught:
                print(said, flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    return int(missed > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main())
