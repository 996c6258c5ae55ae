"""What has to be the same where a run goes on: the model, the measures, the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.record import encode_attrs
from tl_geometry.analysis.results import model_provenance
from tl_geometry.analysis.weights_digest import weights_digest
from tl_geometry.data import Batch

__all__ = ["add_batch", "measure_fingerprint", "model_fingerprint", "run_fingerprint"]

_NAMES_OF_THINGS = ("device", "model_name", "seed", "tokenizer_name")
_NAMES_OF_PLACES = ("__doc__", "__firstlineno__", "__module__", "__qualname__")


def run_fingerprint(
    model: Any, measures: Sequence[Accumulator], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the numbers of an `analyze` depend on, but for its data.

    Raises:
        ValueError: a setting that JSON doesn't have.
    """
    return {
        "settings": {name: _setting(name, value) for name, value in settings.items()},
        "measures": {
            f"{number} {type(measure).__name__}": measure_fingerprint(measure)
            for number, measure in enumerate(measures)
        },
        "model": model_fingerprint(model),
    }


def model_fingerprint(model: Any) -> dict[str, Any]:
    """Package version, class, precision and device of a model, its configuration and the bits of its parameters."""
    record = model_provenance(model, {})
    names = ("tl_geometry", "model_class", "model_dtype", "device")
    return {
        **{name: record[name] for name in names},
        "config": dict(_plain_values(vars(model.cfg))),
        "parameters": weights_digest(model),
    }


def measure_fingerprint(measure: Accumulator) -> dict[str, Any]:
    """Class, settings and axes of a measure; of one that is not the package's, its code as well.

    Raises:
        ValueError: a setting that JSON doesn't have.
    """
    kind = type(measure)
    axes = {dim: list(labels) for dim, labels in measure.coords.items()}
    found = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "settings": encode_attrs(measure.settings, f"measures: settings of {kind.__name__}"),
        "variables": list(measure.variables),
        "axes": encode_attrs(axes, f"measures: coords of {kind.__name__}"),
    }
    code = [
        [name, _described(member)]
        for cls in _foreign(kind)
        for name, member in vars(cls).items()
        if name not in _NAMES_OF_PLACES
    ]
    if code:
        found["code"] = hashlib.sha256(json.dumps(code).encode()).hexdigest()
    return found


def add_batch(digest: Any, batch: Batch) -> None:
    """Let a digest of hashlib take in a batch: tokens, masks, batching; padding ids apart."""
    mask = batch.attention_mask.cpu()
    tokens = torch.where(mask, batch.tokens.cpu(), 0).to(torch.int64)
    digest.update(json.dumps([list(mask.shape), list(batch.documents)]).encode())
    digest.update(mask.numpy().tobytes() + tokens.numpy().tobytes())


def _setting(name: str, value: Any) -> Any:
    return encode_attrs(_plain(value), name)


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists of numbers, inside of lists and tuples too."""
    if isinstance(value, Tensor | np.ndarray):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _plain_values(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries that JSON has, but for names of things and how weights were made."""
    for name, value in values.items():
        if name.startswith(("_", "init")) or name in _NAMES_OF_THINGS:
            continue
        try:
            yield name, encode_attrs(value, name)
        except ValueError:
            continue


def _foreign(kind: type) -> Iterator[type]:
    """The class and those that it builds on, up to the package's own."""
    for cls in kind.__mro__:
        if cls.__module__.partition(".")[0] == "tl_geometry":
            return
        yield cls


def _described(member: Any) -> Any:
    """Code of functions and properties, and plain values, of a class."""
    if isinstance(member, staticmethod | classmethod):
        return _described(member.__func__)
    if isinstance(member, property):
        return [_described(member.fget), _described(member.fset)]
    if isinstance(member, FunctionType):
        return [_code(member.__code__), [_described(x) for x in member.__defaults__ or ()]]
    try:
        return encode_attrs(member, "")
    except ValueError:
        return type(member).__name__


def _code(code: CodeType) -> list[Any]:
    constants = [
        _code(x)
        if isinstance(x, CodeType)
        else sorted(map(repr, x))
        if isinstance(x, frozenset)
        else repr(x)
        for x in code.co_consts
    ]
    return [code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]
