"""Results as netCDF files: written atomically, checked when read, no pickle anywhere.

A saved result is a netCDF 4 file that any netCDF tool opens. What netCDF cannot hold (attributes
that are None, bool or nested, the exact dtype of strings and bools) stands in one JSON string, the
attribute ``tl_geometry_record``. Two SHA-256 digests guard the file. One covers its bytes and
follows the HDF5 data, where HDF5 does not look; it is compared first, so that the HDF5 library
never has to parse damaged metadata. The other covers the content (names, dims, dtypes, values,
attributes) and is compared with what the library made of those bytes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

import xarray as xr

from tl_geometry.analysis.record import pack, unpack

__all__ = ["DamagedFileError", "UnknownFormatError", "load", "save"]

FORMAT_VERSION = 1

_FORMAT, _CONTENT = "tl_geometry_format", "tl_geometry_content_sha256"
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
    if target.is_dir():
        raise IsADirectoryError(f"path: {target} is a directory, expected the name of a file")
    if target.exists() and not overwrite:
        raise FileExistsError(f"path: {target} exists; pass overwrite=True to replace it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: there is no directory {target.parent}")
    raw, digest = pack(ds)
    raw.attrs |= {_FORMAT: FORMAT_VERSION, _CONTENT: digest}
    encoding = {name: _encoding(variable) for name, variable in raw.variables.items()}
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}.tmp"
    # Created by open(2) with mode 0666, so that the umask decides, as for any file.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        try:
            raw.to_netcdf(temporary, mode="w", engine="h5netcdf", encoding=encoding)
        except RuntimeError as error:  # h5py's way to report a write that failed while closing
            raise OSError(f"could not write {target}: {error}") from error
        _append_trailer(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(target.parent)
    return target


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
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"path: there is no file {source}")
    _check_bytes(source)
    raw = xr.load_dataset(source, engine="h5netcdf", decode_cf=False)
    version = raw.attrs.get(_FORMAT)
    if version != FORMAT_VERSION:
        raise UnknownFormatError(
            f"path: {source} has format {version}, this version of tl_geometry reads format "
            f"{FORMAT_VERSION}; update the package"
        )
    ds, digest = unpack(raw)
    if digest != raw.attrs[_CONTENT]:
        raise DamagedFileError(f"path: the content of {source} is not the content that was saved")
    return ds


def _encoding(variable: xr.Variable) -> dict[str, Any]:
    """No fill value (NaN stays NaN); compression and checksums where HDF5 has them."""
    encoding: dict[str, Any] = {"_FillValue": None}
    if variable.ndim and variable.size and variable.dtype != object:
        encoding |= {"zlib": True, "complevel": 4, "fletcher32": True}
    return encoding


def _bytes_digest(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def _append_trailer(path: Path) -> None:
    digest = _bytes_digest(path, path.stat().st_size)
    with path.open("ab") as file:
        file.write(_TRAILER + digest.encode())
        file.flush()
        os.fsync(file.fileno())


def _check_bytes(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        signature = file.read(8)
        file.seek(max(0, size - _TRAILER_SIZE))
        trailer = file.read()
    if trailer.startswith(_TRAILER):
        if _bytes_digest(path, size - _TRAILER_SIZE) != trailer[len(_TRAILER) :].decode("latin-1"):
            raise DamagedFileError(f"path: {path} is damaged, its bytes changed since it was saved")
    elif signature == b"\x89HDF\r\n\x1a\n":
        raise DamagedFileError(
            f"path: {path} is truncated or was changed since it was saved, or is a netCDF file "
            "that tl_geometry.save did not write"
        )
    else:
        raise UnknownFormatError(f"path: {path} is not a netCDF file of tl_geometry.save")


def _sync_directory(path: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows: no such call, and none needed
    descriptor = os.open(path, os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
