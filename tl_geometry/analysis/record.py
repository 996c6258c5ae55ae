"""The two forms of a result: as it is in memory, and as netCDF can hold it.

netCDF has no bools, no attributes that are None or nested, and loses NUL characters, the exact
dtype of strings and the order of variables. So the packed form carries one JSON string, the
attribute ``tl_geometry_record``, with everything that leads back to the original.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

__all__ = ["RECORD", "decode_attrs", "encode_attrs", "pack", "stored_names", "unpack"]

RECORD = "tl_geometry_record"
_NATIVE_ATTRS = ("long_name", "units", "source")  # netCDF attributes too, for other tools
_MOST_BITS = 14_000  # Python reads no longer decimals unless told to


def pack(ds: xr.Dataset) -> tuple[xr.Dataset, str]:
    """The dataset in types that netCDF has, with the record that leads back; and its digest.

    Raises:
        ValueError: a variable or attribute that cannot be stored, by name.
    """
    for name, index in ds.indexes.items():
        if isinstance(index, pd.MultiIndex):
            raise ValueError(f"ds: {name!r} is a MultiIndex; call ds.reset_index({name!r}) first")
    arrays: dict[str, NDArray[Any]] = {}
    raw: dict[str, tuple[Any, ...]] = {}
    entries = []
    for name, variable in ds.variables.items():
        if not isinstance(name, str) or not all(isinstance(dim, str) for dim in variable.dims):
            raise ValueError(
                f"ds: {name!r} {variable.dims}: names of variables and dims must be strings"
            )
        values = _checked(name, variable.values)
        arrays[name] = values
        stored, escaped = _stored(values)
        native = {k: v for k, v in variable.attrs.items() if k in _NATIVE_ATTRS and v}
        raw[name] = (variable.dims, stored, {k: str(v) for k, v in native.items()})
        entries.append(
            {
                "name": name,
                "dims": list(variable.dims),
                "dtype": "object" if values.dtype == object else values.dtype.str,
                "coordinate": name in ds.coords,
                "escaped": escaped,
                "attrs": encode_attrs(variable.attrs, f"ds[{name!r}].attrs"),
            }
        )
    text = json.dumps({"attrs": encode_attrs(ds.attrs, "ds.attrs"), "variables": entries})
    packed = _dataset(raw, set(map(str, ds.coords)), {RECORD: text})
    return packed, _content_digest(text, arrays)


def stored_names(record: str) -> list[str]:
    """Names of the variables that a record describes."""
    return [entry["name"] for entry in json.loads(record)["variables"]]


def unpack(
    record: str, stored: Mapping[str, NDArray[Any]], most_bytes: int
) -> tuple[xr.Dataset, str]:
    """The dataset that `pack` was given, and the digest of its content as it is now.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, RecursionError: the record is none that
            `pack` wrote, or describes more than ``most_bytes``.
    """
    described = json.loads(record)
    arrays = {}
    variables = {}
    for entry in described["variables"]:
        name = entry["name"]
        arrays[name] = _restored(stored[name], entry, most_bytes)
        variables[name] = (entry["dims"], arrays[name], decode_attrs(entry["attrs"]))
    coordinates = {entry["name"] for entry in described["variables"] if entry["coordinate"]}
    ds = _dataset(variables, coordinates, decode_attrs(described["attrs"]))
    return ds, _content_digest(record, arrays)


def _dataset(
    variables: dict[str, tuple[Any, ...]], coordinates: set[str], attrs: dict[str, Any]
) -> xr.Dataset:
    return xr.Dataset(
        {name: value for name, value in variables.items() if name not in coordinates},
        coords={name: value for name, value in variables.items() if name in coordinates},
        attrs=attrs,
    )


def _checked(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """The values of a storable variable; strings of variable length as an object array."""
    if values.dtype.kind == "T":
        values = values.astype(object)
    if values.dtype == object:
        for value in values.flat:
            if not isinstance(value, str):
                raise ValueError(
                    f"ds: {name!r} is an object array that holds {value!r}, only strings can be "
                    "stored; write '' for what is missing"
                )
    elif values.dtype.kind not in "biuU" and values.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"ds: {name!r} has dtype {values.dtype}; float32, float64, integers, bools and strings "
            "can be stored"
        )
    return values


def _stored(values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """The array that goes into the file, and whether its strings are JSON-escaped there."""
    if values.dtype == bool or values.size == 0:
        return values.astype(np.int8) if values.size else np.zeros(values.shape, np.int8), False
    if values.dtype.kind not in "UO":
        return values, False
    strings = [str(value) for value in values.flat]
    # HDF5 ends a string at a NUL and knows no lone surrogates.
    escaped = any("\0" in s or not _is_utf8(s) for s in strings)
    if escaped:
        strings = [json.dumps(s) for s in strings]
    return np.array(strings, dtype=object).reshape(values.shape), escaped


def _restored(stored: NDArray[Any], entry: dict[str, Any], most_bytes: int) -> NDArray[Any]:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in "biufUO" or dtype.itemsize * stored.size > most_bytes:
        raise ValueError(f"{entry['name']!r} can't be of type {dtype}")
    if stored.size == 0:
        return np.zeros(stored.shape, dtype)
    if entry["escaped"]:
        strings = [json.loads(s) for s in stored.flat]
        stored = np.array(strings, dtype=object).reshape(stored.shape)
    return stored.astype(dtype)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def encode_attrs(value: Any, where: str) -> Any:
    """A value as JSON holds it; ``where`` names it in an error.

    Raises:
        ValueError: it is none of what attributes can be.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        items = [encode_attrs(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return {"!tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        pairs = {key: encode_attrs(item, f"{where}[{key!r}]") for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("!") for key in pairs):
            return pairs
        return {"!dict": [[encode_attrs(k, where), item] for k, item in pairs.items()]}
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(f"{where} is an integer of more than {_MOST_BITS} bits")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{where} is of type {type(value).__name__}; attributes can be None, bool, int, float, "
        "str, and lists, tuples and dicts of these"
    )


def decode_attrs(value: Any) -> Any:
    """The value that `encode_attrs` was given."""
    if isinstance(value, list):
        return [decode_attrs(item) for item in value]
    if isinstance(value, dict):
        if "!tuple" in value:
            return tuple(decode_attrs(item) for item in value["!tuple"])
        if "!dict" in value:
            return {decode_attrs(key): decode_attrs(item) for key, item in value["!dict"]}
        return {key: decode_attrs(item) for key, item in value.items()}
    return value


def _content_digest(record: str, arrays: dict[str, NDArray[Any]]) -> str:
    """SHA-256 of the record (names, dims, dtypes, attributes) and of the shapes and values."""
    digest = hashlib.sha256(record.encode())
    for name, values in arrays.items():
        strings = values.dtype.kind in "UO"
        content = json.dumps(values.tolist()).encode() if strings else values.tobytes()
        digest.update(json.dumps([name, values.shape, len(content)]).encode())
        digest.update(content)
    return digest.hexdigest()
