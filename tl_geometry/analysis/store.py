"""Results as netCDF files: written atomically, checked when read, no pickle anywhere.

A saved result is a netCDF 4 file that any netCDF tool opens. What netCDF cannot hold (attributes
that are None, bool or nested, the exact dtype of strings and bools) stands in one JSON string, the
attribute ``tl_geometry_record``. Two SHA-256 digests guard the file. One covers its bytes and
follows the HDF5 data, where HDF5 does not look; it is compared first, so that the HDF5 library
never has to parse damaged metadata. The other covers the content (names, dims, dtypes, values,
attributes) and is compared with what the library made of those bytes.

Digests tell of damage, not of intent: who changes a file can compute them anew. So nothing is read
but plain arrays inside the file itself, of a size that its bytes can hold.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import xarray as xr

from tl_geometry.analysis.files import check_place, replacement
from tl_geometry.analysis.flat_hdf5 import (
    MOST_EXPANSION,
    FlatFile,
    RefusedContentError,
    netcdf_bytes,
)
from tl_geometry.analysis.record import RECORD, pack, stored_names, unpack

__all__ = [
    "CHECKPOINT",
    "DamagedFileError",
    "UnknownFormatError",
    "dataset_bytes",
    "dataset_from_bytes",
    "load",
    "read_file",
    "save",
    "write_file",
]

FORMAT_VERSION = 1
RESULT, CHECKPOINT = "result", "checkpoint of analyze"

_MOST_BYTES = 2**30  # that strings of one width may take from a small file

_FORMAT, _KIND = "tl_geometry_format", "tl_geometry_kind"
_CONTENT = "tl_geometry_content_sha256"
_TRAILER = b"\ntl_geometry sha256 of the bytes above: "
_TRAILER_SIZE = len(_TRAILER) + 64


class DamagedFileError(ValueError):
    """A result file whose bytes or content are not those that were saved."""


class UnknownFormatError(ValueError):
    """A file that `save` did not write, or that a newer version of the package wrote."""


def save(ds: xr.Dataset, path: str | Path, *, overwrite: bool = True) -> Path:
    """Write a result as a netCDF file; an existing file stays whole until the new one is complete.

    Example:
        >>> save(ds, "run.nc")
        PosixPath('run.nc')

    Numbers, bools and strings are stored without loss, NaN included. Values of attributes may be
    None, bool, int, float, str, and lists, tuples and dicts of these; numpy scalars become Python
    numbers. The file is written under a temporary name in the same directory, synced to disk, and
    then takes its place in one step, so a reader sees the old file or the new one.

    Args:
        ds: the result, from `analyze` or otherwise.
        path: the file to write; its directory must exist.
        overwrite: False raises FileExistsError when the file exists.

    Returns:
        The path.

    Raises:
        TypeError: `ds` is no Dataset.
        ValueError: a variable or attribute that cannot be stored, by name.
        FileExistsError: the file exists and `overwrite` is False.
        OSError: the file cannot be written (no such directory, no permission, disk full).
    """
    if not isinstance(ds, xr.Dataset):
        raise TypeError(
            f"ds: expected an xarray.Dataset, got {type(ds).__name__}; "
            "a DataArray becomes one by .to_dataset(name=...)"
        )
    target = Path(path)
    check_place(target)
    if target.exists() and not overwrite:
        raise FileExistsError(f"path: {target} exists; pass overwrite=True to replace it")
    write_file(ds, target, RESULT)
    return target


def write_file(ds: xr.Dataset, target: Path, kind: str) -> None:
    """Write a dataset as a file of some kind; errors as for `save`."""
    content = dataset_bytes(ds, kind)
    try:
        _parsed(content, target, kind)
    except DamagedFileError as error:
        raise ValueError(f"ds: a file of it could not be read again: {error}") from error
    with replacement(target) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.write(_TRAILER + hashlib.sha256(content).hexdigest().encode())


def dataset_bytes(ds: xr.Dataset, kind: str = RESULT) -> bytes:
    """A dataset as the bytes of a file, for another process; errors as for `save`."""
    raw, digest = pack(ds)
    raw.attrs |= {_FORMAT: FORMAT_VERSION, _CONTENT: digest, _KIND: kind}
    return netcdf_bytes(raw)


def dataset_from_bytes(content: bytes, kind: str = RESULT) -> xr.Dataset:
    """What `dataset_bytes` was given; errors as for `load`."""
    return _parsed(content, Path("another process"), kind)


def load(path: str | Path) -> xr.Dataset:
    """Read a result that `save` wrote; the file is checked whole and closed again.

    Example:
        >>> ds = load("run.nc")
        >>> ds.regime.sel(layer=5).values
        array(['mixer', 'mixer', 'retriever'], dtype='<U9')

    Args:
        path: a file written by `save`.

    Returns:
        The dataset as it was saved (order, dtypes, values, attributes), all in memory.

    Raises:
        FileNotFoundError: there is no such file.
        UnknownFormatError: not a file of `save`, or one of a newer version of the package.
        DamagedFileError: the file is truncated or was changed since it was saved.
        OSError: the file cannot be read.
    """
    return read_file(Path(path), RESULT)


def read_file(source: Path, kind: str) -> xr.Dataset:
    """Read a file of some kind that `write_file` wrote; errors as for `load`."""
    if not source.exists():
        raise FileNotFoundError(f"path: there is no file {source}")
    if not (source.is_file() or source.is_dir()):
        raise UnknownFormatError(f"path: {source} is a pipe, a socket or a device, no result")
    return _parsed(_checked_bytes(source), source, kind)


def _parsed(content: bytes, source: Path, kind: str) -> xr.Dataset:
    """The dataset in the bytes of a file."""
    try:
        with FlatFile(content) as file:
            _check_kind(source, file, kind)
            record = file.attribute(RECORD)
            if not isinstance(record, str):
                raise RefusedContentError(f"there is no {RECORD}")
            arrays = file.arrays(stored_names(record))
            saved = file.attribute(_CONTENT)
        ds, digest = unpack(record, arrays, max(_MOST_BYTES, MOST_EXPANSION * len(content)))
    except UnknownFormatError:
        raise
    except _MALFORMED as error:
        raise DamagedFileError(
            f"path: {source} holds what tl_geometry.save does not write: {error}"
        ) from error
    if digest != saved:
        raise DamagedFileError(f"path: the content of {source} is not the content that was saved")
    return ds


# What h5py, json, numpy and xarray raise on data that their own writers would not have made.
_MALFORMED = (
    AttributeError,
    KeyError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _check_kind(source: Path, file: FlatFile, kind: str) -> None:
    version = file.attribute(_FORMAT)
    if version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        raise UnknownFormatError(
            f"path: {source} has format {str(version)[:80]}, this version of tl_geometry reads format "
            f"{FORMAT_VERSION}{'; update the package' if newer else ''}"
        )
    found = file.attribute(_KIND) or RESULT
    if found == kind:
        return
    remedy = f": analyze(..., checkpoint={str(source)!r}, resume=True) goes on from it"
    raise UnknownFormatError(
        f"path: {source} is a {str(found)[:80]}, not a {kind}{remedy if found == CHECKPOINT else ''}"
    )


def _checked_bytes(source: Path) -> bytes:
    """The bytes that `write_file` wrote, without the digest that follows them."""
    with source.open("rb") as file:
        signature = file.read(8)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TRAILER_SIZE))
        trailed = file.read(len(_TRAILER)) == _TRAILER
        file.seek(0)
        content = file.read() if trailed else b""
    if trailed:
        content, trailer = content[:-_TRAILER_SIZE], content[-_TRAILER_SIZE:]
        digest = hashlib.sha256(content).hexdigest()
        if trailer != _TRAILER + digest.encode():
            raise DamagedFileError(
                f"path: {source} is damaged, its bytes changed since it was saved"
            )
        return content
    if signature == b"\x89HDF\r\n\x1a\n":
        raise DamagedFileError(
            f"path: {source} is truncated or was changed since it was saved, or is a netCDF file "
            "that tl_geometry.save did not write"
        )
    raise UnknownFormatError(f"path: {source} is not a netCDF file of tl_geometry.save")
