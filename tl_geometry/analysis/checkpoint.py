"""Progress of a long `analyze`: one file of `save`'s kind, that a later run goes on from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor

from tl_geometry.analysis.checkpoint_file import CheckpointFile, DamagedCheckpointError
from tl_geometry.analysis.probe import Probe
from tl_geometry.analysis.run_identity import add_batch
from tl_geometry.analysis.snapshot import Snapshot, Tracker
from tl_geometry.analysis.store import (
    CHECKPOINT,
    read_file,
    write_file,
)
from tl_geometry.arguments import whole_number
from tl_geometry.data import Batch

__all__ = ["CHECKPOINT_EVERY", "RunCheckpoint"]

CHECKPOINT_EVERY = 64


_EXAMPLE = "example "


@dataclass(frozen=True)
class _Progress:
    """How far a run has come: the digest covers the batches so far, in their order."""

    batches: int = 0
    documents: int = 0
    digest: str = ""

    def plus(self, batch: Batch) -> _Progress:
        digest = hashlib.sha256(self.digest.encode())
        add_batch(digest, batch)
        documents = self.documents + len(batch.documents)
        return _Progress(self.batches + 1, documents, digest.hexdigest())


@dataclass(frozen=True)
class _Copy:
    """What is measured at some point between two batches: states, or the result of all."""

    progress: _Progress = _Progress()
    states: Snapshot | None = None
    examples: Mapping[int, Tensor] = field(default_factory=dict)
    result: xr.Dataset | None = None


class RunCheckpoint(CheckpointFile):
    """What an `analyze` has measured so far, and its result once it is finished.

    >>> with RunCheckpoint("run.ckpt", fingerprint, every=64, resume=True) as kept:
    ...     if (finished := kept.finished(batches)) is not None:
    ...         return finished
    ...     examples = kept.follow(probe)
    ...     for batch in batches:
    ...         if not kept.holds(batch):                # else it was measured before
    ...             run(batch)
    ...             kept.add(examples)
    ...     kept.finish(probe.result())

    After each batch all states are copied, and every ``every`` documents, and when the block is left
    in whatever way, the last copy is written: never what a batch has added half-way. The batches that
    the file holds must come again, in the same order; a digest that runs along with them tells.

    Args:
        every: documents between two writes.

    Raises:
        TypeError, ValueError: ``every`` is no number from 1 on.
        ValueError, OSError, RuntimeError: as for :class:`CheckpointFile`.
    """

    def __init__(
        self,
        path: str | Path | None,
        fingerprint: Mapping[str, Any],
        *,
        every: int = CHECKPOINT_EVERY,
        resume: bool = False,
    ) -> None:
        super().__init__(path, fingerprint, resume=resume)
        self.every = whole_number("checkpoint_every", every, 1)
        self._tracker: Tracker | None = None
        self._last = self._in_file = _Copy()
        self._passed = _Progress()  # of the batches that were shown in this run

    def __enter__(self) -> RunCheckpoint:
        self.enter()
        return self

    def finished(self, batches: Iterable[Batch]) -> xr.Dataset | None:
        """The result, if the run had come to its end; the data are read for a comparison.

        Raises:
            ValueError: other data.
        """
        if self._last.result is None:
            return None
        if not all(self.holds(batch) for batch in batches):
            raise self._other_data("there are more now")
        self._check_end()
        return self._last.result

    def follow(self, probe: Probe) -> dict[int, Tensor]:
        """Copy the states of this probe from now on, after taking up what the file holds; the examples in it.

        Raises:
            DamagedCheckpointError: the file does not fit the probe.
            ValueError: a measure that can't be kept.
        """
        if self.path is None:
            return {}
        self._tracker = Tracker(probe)
        if self._last.states is not None:
            try:
                self._tracker.put(self._last.states)
            except _UNFIT as error:
                raise _damaged(self.path, error) from error
        return dict(self._last.examples)

    def holds(self, batch: Batch) -> bool:
        """Whether a batch was measured before; all are shown, in their order.

        Raises:
            ValueError: the batches so far are not those that were measured.
        """
        if self.path is None:
            return False
        self._passed = self._passed.plus(batch)
        held = self._in_file.progress
        if self._passed.batches == held.batches and self._passed != held:
            raise self._other_data("their tokens, masks or batches differ")
        return self._passed.batches <= held.batches

    def add(self, examples: Mapping[int, Tensor]) -> None:
        """Copy all states, after a batch that the file did not hold."""
        if self._tracker is None:
            return
        self._last = _Copy(self._passed, self._tracker.take(), dict(examples))
        self.unsaved = True
        if self._passed.documents - self._in_file.progress.documents >= self.every:
            self.save()

    def complete(self, examples: Mapping[int, Tensor]) -> None:
        """Write all states, after the last batch: before they are merged with those of other processes.

        Raises:
            ValueError: the data have ended before all that the file holds.
        """
        self._check_end()
        if self._tracker is not None and self._in_file.progress != self._passed:
            self._last = _Copy(self._passed, self._tracker.take(), dict(examples))
            self.unsaved = True
            self.save()

    def remove(self) -> None:
        """Remove the file, where another process has written the result into its own."""
        self.unsaved = False
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def finish(self, ds: xr.Dataset) -> None:
        """Write the result in place of the states.

        Raises:
            ValueError: the data have ended before all that the file holds.
        """
        if self.path is None:
            return
        self._check_end()
        self._last = _Copy(self._passed, result=ds)
        self.unsaved = True
        self.save()

    def write(self, path: Path) -> None:
        """Write the last copy."""
        copy = self._last
        about: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "progress": asdict(copy.progress),
        }
        if copy.result is not None:
            ds = copy.result.copy()
            ds.attrs = {**about, "result": dict(copy.result.attrs)}
        else:
            states = copy.states or Snapshot({}, {})
            examples = {f"{_EXAMPLE}{n}": tokens for n, tokens in copy.examples.items()}
            content = save_tensors(
                {k: x.contiguous() for k, x in {**states.tensors, **examples}.items()}
            )
            ds = xr.Dataset(
                {_STATES: ("byte", np.frombuffer(content, np.uint8))},
                attrs={**about, "plain": states.plain},
            )
        write_file(ds, path, CHECKPOINT)
        self._in_file = copy

    def read(self, path: Path) -> Mapping[str, Any]:
        """Take in the file, and give its fingerprint."""
        try:
            ds = read_file(path, CHECKPOINT)
            progress = _progress(**ds.attrs["progress"])
            fingerprint = dict(ds.attrs["fingerprint"])
            if "result" in ds.attrs:
                ds.attrs = dict(ds.attrs["result"])
                copy = _Copy(progress, result=ds)
            else:
                tensors = load_tensors(ds[_STATES].values.tobytes())
                names = [name for name in tensors if name.startswith(_EXAMPLE)]
                examples = {int(name.removeprefix(_EXAMPLE)): tensors.pop(name) for name in names}
                states = Snapshot(tensors, dict(ds.attrs["plain"]))
                copy = _Copy(progress, states, dict(sorted(examples.items())))
        except (*_UNFIT, SafetensorError) as error:
            raise _damaged(path, error) from error
        self._last = self._in_file = copy
        return fingerprint

    def _check_end(self) -> None:
        if self._passed.batches < self._in_file.progress.batches:
            raise self._other_data(f"there are only {self._passed.documents} documents now")

    def _other_data(self, what: str) -> ValueError:
        return ValueError(
            f"checkpoint: {self.path} holds {self._in_file.progress.documents} documents of other data: {what}. "
            "Give the same data in the same order, or another file"
        )


def _progress(batches: Any, documents: Any, digest: Any) -> _Progress:
    """What a file says of its progress, once it is known to be numbers and a text."""
    counts = (whole_number("batches", batches, 0), whole_number("documents", documents, 0))
    if not isinstance(digest, str):
        raise TypeError(f"digest is of type {type(digest).__name__}")
    return _Progress(*counts, digest)


_STATES = "states"
_UNFIT = (ValueError, KeyError, TypeError, AttributeError)


def _damaged(path: Path, error: Exception) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"checkpoint: {path} is damaged or no checkpoint of analyze ({type(error).__name__}: {error}); "
        "remove it to start anew"
    )
