"""Directories that are costly to make: built once, checked whenever they are used.

An entry is a directory with a manifest of the size and SHA-256 of each file in it. It is written
beside its place, under a lock, and renamed, so it is there whole or not at all.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from tl_geometry.models.errors import ModelUnavailableError

CACHE_VARIABLE = "TL_GEOMETRY_CACHE"
MANIFEST = "manifest.json"
_CHUNK = 4 * 1024 * 1024
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC}
_log = logging.getLogger(__name__)


def cache_root() -> Path:
    """Where converted models are kept: $TL_GEOMETRY_CACHE, else the user's cache directory.

    >>> cache_root().name
    'tl_geometry'
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tl_geometry"


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def cached_directory(key: str, build: Callable[[Path], None]) -> Path:
    """The directory stored under ``key``; ``build`` fills it where it is missing or damaged.

    >>> cached_directory("greeting", lambda path: (path / "hello.txt").write_text("hello"))

    Several processes may ask at once: one builds, the others wait for it. ``build`` gets an empty
    directory; when it raises, nothing is kept.

    Raises:
        ModelUnavailableError: the cache cannot be written.
    """
    root = cache_root()
    entry = root / key
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f"{key}.lock")
        lock.acquire()
    except OSError as error:
        if _is_intact(entry):  # a cache that somebody else filled and that is only readable
            return entry
        raise _unwritable(root, error) from error
    try:
        _discard_leftovers(root, key)
        if _is_intact(entry):
            return entry
        scratch = root / f".{key}.new"
        try:
            scratch.mkdir()
            build(scratch)
            _write_manifest(scratch)
            if entry.exists():
                _log.warning("the cached copy in %s is damaged and is replaced", entry)
                entry.rename(root / f".{key}.damaged")
            scratch.rename(entry)
        except OSError as error:
            if error.errno in _NOT_WRITABLE:
                raise _unwritable(root, error) from error
            raise
        finally:
            _discard_leftovers(root, key)
        return entry
    finally:
        lock.release()


def _discard_leftovers(root: Path, key: str) -> None:
    """Remove what an interrupted build left; only the holder of the lock may."""
    for suffix in ("new", "damaged"):
        shutil.rmtree(root / f".{key}.{suffix}", ignore_errors=True)


def _write_manifest(directory: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "sha256": file_digest(path)}
        for path in sorted(directory.iterdir())
    }
    (directory / MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")


def _is_intact(entry: Path) -> bool:
    """Whether every file of the manifest is there with its size and checksum."""
    try:
        files = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        return bool(files) and all(
            (entry / name).stat().st_size == record["size"]
            and file_digest(entry / name) == record["sha256"]
            for name, record in files.items()
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False


def _unwritable(root: Path, error: OSError) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"the converted model cannot be stored in {root} ({error.strerror or error}). Set "
        f"{CACHE_VARIABLE} to a writable directory: export {CACHE_VARIABLE}=/path/with/1GB/free"
    )
