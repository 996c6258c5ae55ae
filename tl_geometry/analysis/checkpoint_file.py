"""What all checkpoints have in common: one file, one writer, one run that it belongs to."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from tl_geometry.analysis.files import sole_writer

__all__ = ["CheckpointFile", "DamagedCheckpointError", "differences"]


class DamagedCheckpointError(ValueError):
    """A file that is no checkpoint of the run, or whose content was changed."""


class CheckpointFile(ABC):
    """A file that keeps what is done of a long run; a context manager around the run.

    The file is written beside its place, synced and renamed, so there is always a whole one. A lock
    beside it keeps a second run out. When the block is left, by whatever way, what is not in the file
    yet is written.

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
        self.unsaved = False
        self._open = ExitStack()

    @abstractmethod
    def read(self, path: Path) -> Mapping[str, Any]:
        """Take in the file, and give the fingerprint of the run that wrote it.

        Raises:
            DamagedCheckpointError: it is no such file, or was changed.
        """

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write all that is to be kept; the old file stays whole until the new one is."""

    def save(self) -> None:
        """Write what is not in the file yet."""
        if self.path is not None and self.unsaved:
            self.write(self.path)
            self.unsaved = False

    def enter(self) -> None:
        """Take the lock, and what the file holds; for `__enter__`."""
        if self.path is not None:
            with ExitStack() as stack:
                stack.enter_context(sole_writer(self.path))
                if self.path.exists():
                    self._go_on(self.path)
                self._open = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._open:
            self.save()

    def _go_on(self, path: Path) -> None:
        if not self.resume:
            raise FileExistsError(
                f"checkpoint: {path} exists; pass resume=True to go on from it, or remove it to "
                "start anew"
            )
        found = differences(self.read(path), self.fingerprint)
        if found:
            raise ValueError(
                f"checkpoint: {path} belongs to another run. {'; '.join(found)}. Use the same "
                "model, data and settings, or another file"
            )


_ABSENT = "nothing"


def differences(was: Any, now: Any, text: str = "{} was {}, now {}", name: str = "") -> list[str]:
    """What is not equal, one text each, down to the entries of nested mappings."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for key in dict.fromkeys([*was, *now]):
            inner = f"{name}.{key}" if name else str(key)
            found += differences(was.get(key, _ABSENT), now.get(key, _ABSENT), text, inner)
        return found
    same = json.dumps(was) == json.dumps(now)  # which tells 1 from True, and finds NaN equal
    return [] if same else [text.format(name, _brief(was), _brief(now))]


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "there"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
