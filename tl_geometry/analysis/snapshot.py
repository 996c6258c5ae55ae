"""What a probe holds between two batches: all of it, bit for bit, apart from the model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from tl_geometry.analysis.accumulator import Accumulator, Measured
from tl_geometry.analysis.probe import Probe
from tl_geometry.analysis.record import decode_attrs, encode_attrs
from tl_geometry.measures.geometry import AttentionGeometry

__all__ = ["Snapshot", "Tracker"]

_RANDOM = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


@dataclass(frozen=True)
class Snapshot:
    """Tensors by name, and the rest as attributes of a result can hold it."""

    tensors: dict[str, Tensor]
    plain: dict[str, Any]


class Tracker:
    """Takes and puts back what a probe holds.

    >>> tracker = Tracker(probe)
    >>> before = tracker.take()                     # between two batches
    >>> tracker.put(before)

    That is every state of the ledger and of the measures (``add_state``), and the attributes that a
    measure has changed of itself since the tracker was made: numbers, strings, lists and dicts of
    them, tensors and numpy arrays. ``purpose`` is the argument that a refusal names.

    Raises:
        ValueError: a measure holds a generator of random numbers, which goes on from batch to batch.
    """

    def __init__(self, probe: Probe, purpose: str = "checkpoint") -> None:
        self.probe = probe
        self.purpose = purpose
        self._measures = {
            f"{number} {type(measure).__name__}": measure
            for number, measure in enumerate(probe.measures)
        }
        self._initial = {
            label: {name: _frozen(value, purpose) for name, value in _attributes(measure).items()}
            for label, measure in self._measures.items()
        }

    def take(self) -> Snapshot:
        """A copy of all that the probe holds.

        Raises:
            ValueError: a measure has changed an attribute that can't be kept.
        """
        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {"seen": self.probe.seen, "fired": list(self.probe.ledger.fired)}
        for label, metric in self.metrics.items():
            lengths: dict[str, int] = {}
            for name, state in metric.metric_state.items():
                if isinstance(state, Tensor):
                    tensors[f"{label}/{name}"] = state.detach().clone()
                    continue
                lengths[name] = len(state)
                for i, item in enumerate(state):
                    tensors[f"{label}/{name}/{i}"] = item.detach().clone()
            plain[label] = {"updates": metric.update_count, "lengths": lengths}
        for label, measure in self._measures.items():
            changed = self._changed(label, measure)
            for name in [k for k, value in changed.items() if isinstance(value, Tensor)]:
                tensors[f"{label}.{name}"] = changed.pop(name)
            plain[label]["attributes"] = changed
        return Snapshot(tensors, plain)

    def put(self, snapshot: Snapshot) -> None:
        """Make the probe hold what it held then.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: a snapshot that does not fit.
        """
        tensors, plain = dict(snapshot.tensors), snapshot.plain
        fired = [int(count) for count in plain["fired"]]
        if len(fired) != len(self.probe.sites):
            raise ValueError(f"it holds {len(fired)} layers")
        with torch.inference_mode(False):
            for label, metric in self.metrics.items():
                for name, now in metric.metric_state.items():
                    place = f"{label}/{name}"
                    if isinstance(now, Tensor):
                        fixed = name in getattr(metric, "variables", (name,))
                        setattr(metric, name, _fitted(tensors.pop(place), now, place, fixed=fixed))
                        continue
                    length = int(plain[label]["lengths"][name])
                    items = [tensors.pop(f"{place}/{i}") for i in range(length)]
                    setattr(metric, name, [item.to(metric.device) for item in items])
                metric._update_count = int(plain[label]["updates"])
            for label, measure in self._measures.items():
                changed = {k: decode_attrs(v) for k, v in plain[label]["attributes"].items()}
                for place in [k for k in tensors if k.startswith(f"{label}.")]:
                    name, kept = place.removeprefix(f"{label}."), tensors.pop(place)
                    array = isinstance(getattr(measure, name, None), np.ndarray)
                    changed[name] = kept.numpy() if array else kept.to(measure.device)
                _set_attributes(measure, changed)
        if tensors:
            raise ValueError(f"it holds {next(iter(tensors))!r}, which nothing here reads")
        self.probe.ledger.fired = fired
        self.probe.seen = int(plain["seen"])

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The ledger and the measures."""
        return {"ledger": self.probe.ledger, **self._measures}

    def changed(self) -> list[str]:
        """Attributes that are not what they were at the beginning, as ``"Measure.attribute"``."""
        return [
            f"{type(measure).__name__}.{name}"
            for label, measure in self._measures.items()
            for name, *_ in self._changes(label, measure)
        ]

    def _changed(self, label: str, measure: Accumulator) -> dict[str, Any]:
        """Attributes that are not what they were at the beginning, in the form in which they are kept."""
        changed = {}
        for name, value, now, known in self._changes(label, measure):
            if isinstance(now, _Opaque) or (isinstance(value, np.ndarray) and not known):
                raise ValueError(
                    f"checkpoint: {type(measure).__name__}.{name}, a {type(value).__name__}, was changed by a "
                    "batch and can't be kept: hold what changes in states (add_state), tensors or numbers"
                )
            changed[name] = now
        return changed

    def _changes(self, label: str, measure: Accumulator) -> Iterator[tuple[str, Any, Any, bool]]:
        """Name, value, copy of the value, and whether there was one at the beginning."""
        initial = self._initial[label]
        for name, value in _attributes(measure).items():
            now, known = _frozen(value, self.purpose), name in initial
            if not (known and _same(now, initial[name])):
                yield name, value, now, known


class _Bare(Accumulator):
    """Has no attribute but those that every accumulator has."""

    def measure(self, geometry: AttentionGeometry) -> Measured:  # noqa: ARG002
        return {}


_COMMON = frozenset({*vars(_Bare()), "variables", "coords"})


@dataclass(frozen=True)
class _Opaque:
    """A value of which nothing is known but which object it is, and what it looks like."""

    identity: int
    look: str


def _attributes(measure: Accumulator) -> dict[str, Any]:
    """What a measure keeps beside its states."""
    apart = {*_COMMON, *measure.metric_state}
    return {name: value for name, value in vars(measure).items() if name not in apart}


def _frozen(value: Any, purpose: str) -> Any:
    """A copy of a value, in the form in which a snapshot holds it."""
    if isinstance(value, _RANDOM):
        raise ValueError(
            f"{purpose}: a measure holds a {type(value).__name__}, whose random numbers depend on the batches "
            "before: draw them anew for each document, from a seed and geometry.documents"
        )
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy())
    if not isinstance(value, dict | list | tuple) or type(value) in (dict, list, tuple):
        try:
            return encode_attrs(value, "")
        except ValueError:
            pass
    return _Opaque(id(value), repr(value))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.dtype == other.dtype
            and torch.equal(one, other)
        )
    return bool(one == other)


def _fitted(found: Tensor, now: Tensor, place: str, *, fixed: bool) -> Tensor:
    """A state in the place of one of the same kind."""
    if found.dtype != now.dtype or (fixed and found.shape != now.shape):
        raise ValueError(
            f"{place!r} is {found.dtype} {tuple(found.shape)}, not {now.dtype} {tuple(now.shape)}"
        )
    return found.to(now.device)


def _set_attributes(measure: Accumulator, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in _COMMON or name in measure.metric_state or hasattr(type(measure), name):
            raise ValueError(f"{name!r} is no attribute that a measure changes")
        setattr(measure, name, value)
