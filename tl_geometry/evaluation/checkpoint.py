"""Progress of a long evaluation: one JSON file, replaced atomically, that a later run goes on from."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

__all__ = ["Checkpoint", "DamagedCheckpointError"]

FORMAT = "tl_geometry evaluation checkpoint 1"
SECONDS_BETWEEN_WRITES = 5.0


class DamagedCheckpointError(ValueError):
    """A file that is no checkpoint of an evaluation, or whose content was changed."""


class Checkpoint:
    """Finished units of work with their numbers, for one run of an evaluation.

    >>> with Checkpoint("run.json", {"model": "gpt2", "seed": 0}, resume=False) as done:
    ...     for unit in units:
    ...         if unit not in done:
    ...             done[unit] = compute(unit)              # a list of floats

    The numbers come back bit for bit: JSON keeps every finite float exactly. The file is written at
    most every few seconds and when the block is left, by whatever way. It is written beside its
    place, synced and renamed, so there is always a whole one; a lock beside it (``run.json.lock``)
    keeps a second run out, and is free again when the process ends, killed or not.

    Args:
        path: the file, or None to keep nothing.
        fingerprint: everything that the numbers depend on, as JSON has it. A checkpoint is gone on
            with only where all of it is equal.
        resume: go on from the file where it exists. False refuses an existing file.

    Raises:
        ValueError: ``resume`` without a path, or another fingerprint; the message says what differs.
        FileExistsError: the file exists and ``resume`` is False.
        FileNotFoundError: there is no such directory.
        DamagedCheckpointError: the file can't be read as a checkpoint.
        RuntimeError: another run holds the file.
    """

    def __init__(
        self, path: str | Path | None, fingerprint: Mapping[str, Any], *, resume: bool = False
    ) -> None:
        if path is None and resume:
            raise ValueError("resume=True needs checkpoint=, the file to go on from")
        self.path = None if path is None else Path(path)
        # As it will be read again: tuples are lists in JSON.
        self.fingerprint: dict[str, Any] = json.loads(json.dumps(dict(fingerprint)))
        self.resume = resume
        self._units: dict[str, list[float]] = {}
        self._unsaved = False
        self._written = float("-inf")
        self._lock: FileLock | None = None

    def __contains__(self, unit: str) -> bool:
        return unit in self._units

    def __len__(self) -> int:
        return len(self._units)

    def __getitem__(self, unit: str) -> list[float]:
        return self._units[unit]

    def __setitem__(self, unit: str, numbers: list[float]) -> None:
        self._units[unit] = numbers
        self._unsaved = True
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self.save()

    def __enter__(self) -> Checkpoint:
        if self.path is None:
            return self
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"checkpoint: there is no directory {self.path.parent}")
        if self.path.is_dir():
            raise IsADirectoryError(f"checkpoint: {self.path} is a directory, expected a file name")
        lock = FileLock(f"{self.path}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RuntimeError(
                f"checkpoint: another run is writing {self.path}; give each run a file of its own"
            ) from error
        try:
            if self.path.exists():
                self._units = self._read(self.path)
            for leftover in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.tmp"):
                leftover.unlink(missing_ok=True)  # of a run that was killed while it wrote
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.save()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def save(self) -> None:
        """Write what is not in the file yet."""
        if self.path is None or not self._unsaved:
            return
        body = {"fingerprint": self.fingerprint, "units": self._units}
        text = json.dumps({"format": FORMAT, "sha256": _digest(body), **body}, allow_nan=False)
        temporary = self.path.parent / f".{self.path.name}.{secrets.token_hex(8)}.tmp"
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)
        self._unsaved = False
        self._written = time.monotonic()

    def _read(self, path: Path) -> dict[str, list[float]]:
        if not self.resume:
            raise FileExistsError(
                f"checkpoint: {path} exists; pass resume=True to go on from it, or remove it to "
                "start anew"
            )
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            body = {"fingerprint": found["fingerprint"], "units": found["units"]}
            known = found["format"] == FORMAT
            intact = found["sha256"] == _digest(body)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpointError(
                f"checkpoint: {path} is damaged or no checkpoint ({type(error).__name__}: {error}); "
                "remove it to start anew"
            ) from error
        if not (known and intact):
            what = "was changed since it was written" if known else f"is not a {FORMAT!r}"
            raise DamagedCheckpointError(f"checkpoint: {path} {what}; remove it to start anew")
        differences = _differences(found["fingerprint"], self.fingerprint)
        if differences:
            raise ValueError(
                f"checkpoint: {path} belongs to another run. {'; '.join(differences)}. Use the same "
                "model, data and settings, or another file"
            )
        return dict(found["units"])


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


_ABSENT = "nothing"


def _differences(was: Any, now: Any, name: str = "") -> list[str]:
    """What is not equal, one line each, down to the entries of nested mappings."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for key in dict.fromkeys([*was, *now]):
            inner = f"{name}.{key}" if name else str(key)
            found += _differences(was.get(key, _ABSENT), now.get(key, _ABSENT), inner)
        return found
    return [] if was == now else [f"{name} was {_brief(was)}, now {_brief(now)}"]


def _brief(value: Any) -> str:
    text = str(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
