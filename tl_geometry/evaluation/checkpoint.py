"""Progress of a long evaluation: one JSON file, replaced atomically, that a later run goes on from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tl_geometry.analysis.checkpoint_file import CheckpointFile, DamagedCheckpointError
from tl_geometry.analysis.files import write_text

__all__ = ["Checkpoint", "DamagedCheckpointError"]

FORMAT = "tl_geometry evaluation checkpoint 1"
SECONDS_BETWEEN_WRITES = 5.0


class Checkpoint(CheckpointFile):
    """Finished units of work with their numbers, for one run of an evaluation.

    >>> with Checkpoint("run.json", {"model": "gpt2", "seed": 0}, resume=False) as done:
    ...     for unit in units:
    ...         if unit not in done:
    ...             done[unit] = compute(unit)              # a list of floats

    The numbers come back bit for bit: JSON keeps every finite float exactly. The file is written at
    most every few seconds and when the block is left, by whatever way. Arguments and errors are those
    of :class:`tl_geometry.analysis.checkpoint_file.CheckpointFile`.
    """

    def __init__(
        self, path: str | Path | None, fingerprint: Mapping[str, Any], *, resume: bool = False
    ) -> None:
        super().__init__(path, fingerprint, resume=resume)
        self._units: dict[str, list[float]] = {}
        self._written = float("-inf")

    def __enter__(self) -> Checkpoint:
        self.enter()
        return self

    def __contains__(self, unit: str) -> bool:
        return unit in self._units

    def __len__(self) -> int:
        return len(self._units)

    def __getitem__(self, unit: str) -> list[float]:
        return self._units[unit]

    def __setitem__(self, unit: str, numbers: list[float]) -> None:
        self._units[unit] = numbers
        self.unsaved = True
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self.save()

    def write(self, path: Path) -> None:
        """Write all finished units."""
        body = {"fingerprint": self.fingerprint, "units": self._units}
        text = json.dumps({"format": FORMAT, "sha256": _digest(body), **body}, allow_nan=False)
        write_text(path, text)
        self._written = time.monotonic()

    def read(self, path: Path) -> Mapping[str, Any]:
        """Take in the finished units of the file, and give its fingerprint."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            body = {"fingerprint": found["fingerprint"], "units": found["units"]}
            known = found["format"] == FORMAT
            intact = found["sha256"] == _digest(body) and _are_units(found["units"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedCheckpointError(
                f"checkpoint: {path} is damaged or no checkpoint of an evaluation "
                f"({type(error).__name__}: {error}); remove it to start anew"
            ) from error
        if not (known and intact):
            what = "was changed since it was written" if known else f"is not a {FORMAT!r}"
            raise DamagedCheckpointError(f"checkpoint: {path} {what}; remove it to start anew")
        self._units = dict(found["units"])
        fingerprint: Mapping[str, Any] = found["fingerprint"]
        return fingerprint


def _are_units(units: Any) -> bool:
    return isinstance(units, dict) and all(
        isinstance(numbers, list) and all(type(x) in (int, float) for x in numbers)
        for numbers in units.values()
    )


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
