"""HDF5 as plain arrays of one group, in memory: written, and read from bytes that nobody vouches for.

HDF5 can point into other files, ask for filters that are loaded as code, and declare terabytes that
it does not hold. Nothing of that is in a file of `save`, and nothing of that is followed here: only
datasets that stand in the root group itself, whose type is a number or a string, and which are no
larger than their stored bytes can be. The library never sees the disk: where that is full, it
crashes as often as it raises.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray as xr
from numpy.typing import NDArray

__all__ = ["MOST_EXPANSION", "FlatFile", "RefusedContentError", "netcdf_bytes"]

MOST_EXPANSION = 1100
"""Bytes in memory per byte of the file: deflate reaches 1032."""

_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_LARGEST_CHUNK = 2**26
_REFERENCE_SIZE = 16  # of a string within a dataset: length, address, index


class RefusedContentError(ValueError):
    """Something in an HDF5 file that no result has."""


def netcdf_bytes(ds: xr.Dataset) -> bytes:
    """A dataset of numbers and strings as a netCDF file; no fill value, so that NaN stays NaN."""
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        file.dimensions = dict(ds.sizes)
        for name, variable in ds.variables.items():
            values = np.asarray(variable.values)
            strings = values.dtype == object
            packed = values.ndim and values.size and not strings
            options = {"compression": "gzip", "compression_opts": 4, "fletcher32": True}
            new = file.create_variable(
                name,
                variable.dims,
                dtype=h5py.string_dtype() if strings else values.dtype,
                **(options if packed else {}),
            )
            if values.size:
                new[...] = values
            new.attrs.update(variable.attrs)
        file.attrs.update(ds.attrs)
        if others := [str(name) for name in ds.coords if name not in ds.dims]:
            file.attrs["coordinates"] = " ".join(others)
    return buffer.getvalue()


class FlatFile:
    """The root group of an HDF5 file in memory; a context manager.

    >>> with FlatFile(content) as file:
    ...     file.attribute("version"), file.arrays(["sink_rate"])

    Raises:
        RefusedContentError: what is asked for is missing or is no plain array.
        OSError: the bytes are no HDF5 file.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._size = content, len(content)
        self._file = h5py.File(io.BytesIO(content), "r")

    def __enter__(self) -> FlatFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def attribute(self, name: str) -> int | str | None:
        """An attribute of one whole number or string; None where there is none of that kind."""
        if name not in self._file.attrs:
            return None
        found = self._file.attrs.get_id(name)
        if found.shape not in ((), (1,)):
            return None
        if h5py.check_string_dtype(found.dtype) is None and found.dtype.kind not in "iu":
            return None
        value = np.asarray(self._file.attrs[name]).reshape(()).item()
        return value.decode() if isinstance(value, bytes) else value

    def arrays(self, names: Iterable[str]) -> Mapping[str, NDArray[Any]]:
        """The arrays of these names; strings as an object array."""
        return {name: self._array(name) for name in names}

    def _array(self, name: str) -> NDArray[Any]:
        dataset = self._dataset(name)
        if h5py.check_string_dtype(dataset.dtype) is None:
            return np.asarray(dataset[()])
        strings = np.asarray(dataset.asstr()[()], dtype=object)
        return np.reshape(strings, dataset.shape)

    def _dataset(self, name: str) -> h5py.Dataset:
        """A dataset that can be read without harm."""
        links = {
            stored: self._file.get(stored, getlink=True)
            for stored in (
                name,
                f"_nc4_non_coord_{name}",
            )  # netCDF's way out where a dim has the name
        }
        found = {stored: link for stored, link in links.items() if link is not None}
        stored, link = next(iter(found.items()), (name, None))
        if not isinstance(link, h5py.HardLink):
            what = "is missing" if link is None else "is a link to elsewhere"
            raise RefusedContentError(f"{name!r} {what}")
        dataset = self._file[stored]
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise RefusedContentError(f"{name!r} is no array")
        layout = dataset.id.get_create_plist()
        filters = {layout.get_filter(i)[0] for i in range(layout.get_nfilters())}
        if dataset.is_virtual or dataset.external or filters - _FILTERS:
            raise RefusedContentError(f"{name!r} is kept elsewhere or in a way no result is")
        self._check_size(name, dataset)
        return dataset

    def _check_size(self, name: str, dataset: h5py.Dataset) -> None:
        stored = dataset.id.get_storage_size()
        string = h5py.check_string_dtype(dataset.dtype)
        if string is not None and string.length is None:
            fits = self._strings_fit(dataset, stored)
        elif dataset.dtype.kind in "iuf":
            chunk = int(np.prod(dataset.chunks or (0,), dtype=object)) * dataset.dtype.itemsize
            fits = (
                dataset.nbytes <= MOST_EXPANSION * stored
                and stored <= self._size
                and (chunk <= _LARGEST_CHUNK or not dataset.size)
            )
        else:
            raise RefusedContentError(f"{name!r} has the type {dataset.dtype}, which no result has")
        if not fits:
            raise RefusedContentError(
                f"{name!r} claims to be of shape {dataset.shape}, more than the file can hold"
            )

    def _strings_fit(self, dataset: h5py.Dataset, stored: int) -> bool:
        """Whether the strings are no longer, together, than the file: each is stored by itself."""
        if not dataset.size:
            return True
        offset, size = dataset.id.get_offset(), dataset.size * _REFERENCE_SIZE
        if offset is None or stored != size or offset + size > self._size:
            return False
        references = np.frombuffer(self._content, "<u4", size // 4, offset).reshape(-1, 4)
        return int(references[:, 0].sum(dtype=np.uint64)) <= self._size
