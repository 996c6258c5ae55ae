"""Files that are replaced in one step, and the lock that keeps a second run out."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["check_place", "replacement", "sole_writer", "write_text"]

_RANDOM = 8
"""Bytes of the random part of a temporary file's name."""


def check_place(path: Path, argument: str = "path") -> None:
    """Refuse a path where no file can be put.

    Raises:
        FileNotFoundError: there is no such directory.
        IsADirectoryError: the path is a directory.
        OSError: a pipe, a device or a socket stands there.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{argument}: {path} is a directory, give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{argument}: there is no directory {path.parent}")
    if path.exists() and not path.is_file():
        raise OSError(f"{argument}: {path} is a pipe, a socket or a device, expected a file")


@contextmanager
def replacement(target: Path) -> Iterator[Path]:
    """A new file beside ``target`` that takes its place, synced to disk, when the block ends well.

    >>> with replacement(Path("run.txt")) as temporary:
    ...     temporary.write_text("all of it")

    A reader sees the old file or the new one, and several writers do not mix. Where ``target`` is a
    symbolic link, the link is replaced, and what it points to stays as it is.
    """
    temporary = target.parent / f".{target.name}.{secrets.token_hex(_RANDOM)}.tmp"
    # Created by open(2) with mode 0666, so that the umask decides, as for any file.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        temporary.replace(target)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # such as a full disk
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):  # Windows has no such call, and needs none
        _sync(target.parent, os.O_DIRECTORY)


def write_text(target: Path, text: str) -> None:
    """Write a UTF-8 file completely or not at all."""
    with replacement(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keep other runs from a checkpoint, and clear away what a killed one left of its last write.

    The lock is a file beside it (``run.ckpt.lock``); it is free again when the process ends, killed
    or not.

    Raises:
        RuntimeError: another run holds it.
        OSError: as :func:`check_place`, or the directory can't be written.
    """
    check_place(path, "checkpoint")
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RuntimeError(
            f"checkpoint: another run is writing {path}; give each run a file of its own"
        ) from error
    try:
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'?' * 2 * _RANDOM}.tmp"):
            leftover.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
