"""Several processes of one `analyze`: who takes which batch, and what they tell each other.

A launcher such as torchrun starts the same program several times, and each process reads the same
data and runs every n-th batch on a model of its own. All that is exchanged goes over the host with
gloo, whatever the devices, and no object is pickled.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from torch import distributed as dist
from torchmetrics.utilities.distributed import gather_all_tensors

from tl_geometry.analysis.checkpoint_file import differences
from tl_geometry.analysis.run_identity import add_batch
from tl_geometry.analysis.store import dataset_bytes, dataset_from_bytes
from tl_geometry.arguments import processes_launched
from tl_geometry.data import Batch

__all__ = ["OtherProcessError", "Processes", "joined"]

ARRIVAL = timedelta(minutes=30)
"""How long the processes wait for each other at the beginning."""

PATIENCE = timedelta(days=1)
"""How long they wait for the slowest at the end. One that dies is noticed at once."""

_VALUE, _FAILURE = b"v", b"f"


class OtherProcessError(RuntimeError):
    """Another process of the run has failed, or does not answer."""


class Processes:
    """The processes of a run, as one of them sees them. Alone it takes every batch and merges nothing.

    >>> with joined() as processes:
    ...     with processes.in_step():              # a failure here ends all of them
    ...         processes.compare(settings)
    ...     for batch in batches:                  # the same in each process
    ...         if processes.takes(batch):
    ...             run(batch)
    ...     with processes.in_step():
    ...         merge(probe, processes)            # merging.py

    Attributes:
        rank, world: the number of this process, and how many there are.
        device: the device that the launcher means for this process, where it has started several.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        group: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.rank, self.world, self.device = rank, world, device
        self.first, self.several = rank == 0, world > 1
        self._group = group
        self._data = hashlib.sha256()
        self._batches = self._documents = 0

    def takes(self, batch: Batch) -> bool:
        """Whether this process runs a batch; all are shown to each, in their order.

        Raises:
            ValueError: the first batch is not the same in all processes.
        """
        if not self.several:
            return True
        add_batch(self._data, batch)
        self._batches += 1
        self._documents += len(batch.documents)
        if self._batches == 1:
            self.compare_data()
        return (self._batches - 1) % self.world == self.rank

    def compare(self, settings: Mapping[str, Any]) -> None:
        """Refuse processes that do not do the same.

        Raises:
            ValueError: with what differs.
        """
        everyone = self.share(settings)
        for rank, other in enumerate(everyone):
            text = f"{{}} is {{}} in process 0 and {{}} in process {rank}"
            if found := differences(everyone[0], other, text):
                raise ValueError(
                    f"the {self.world} processes must do the same, but {'; '.join(found)}. Give each the "
                    "same model and settings, and all of the data in the same order: analyze splits them itself"
                )

    def compare_data(self) -> None:
        """Refuse processes that have not been shown the same batches; errors as for :meth:`compare`."""
        counts = {"batches": self._batches, "documents": self._documents}
        self.compare({"data": {**counts, "digest": self._data.hexdigest()}})

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """A block that all processes leave together: where it fails in one of them, it fails in all.

        Raises:
            OtherProcessError: it failed in another process; the message says which, and why.
        """
        try:
            yield
        except OtherProcessError:
            raise
        except Exception as error:
            with suppress(OtherProcessError):
                self.exchange(f"{type(error).__name__}: {error}".encode(), _FAILURE)
            raise
        self.share(None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A block whose UserWarnings only the first process gives."""
        with warnings.catch_warnings():
            if not self.first:
                warnings.simplefilter("ignore", UserWarning)
            yield

    def own_file(self, path: str | Path | None) -> Path | None:
        """A file of this process alone: the path itself for the first, else with its number behind it."""
        if path is None:
            return None
        return Path(path) if self.first else Path(f"{path}.rank{self.rank}")

    def share(self, value: Any) -> list[Any]:
        """What each process gives, which JSON must have, in the order of their numbers."""
        found = self.exchange(json.dumps(value).encode())
        return [json.loads(content) for content in found]

    def hand_out(self, ds: xr.Dataset | None) -> xr.Dataset:
        """The first process' dataset, for all of them."""
        content = dataset_bytes(ds) if self.several and self.first and ds is not None else b""
        found = self.exchange(content)[0]
        return dataset_from_bytes(found) if ds is None or not self.first else ds

    def exchange(self, content: bytes, kind: bytes = _VALUE) -> list[bytes]:
        """The bytes of all processes, in the order of their numbers.

        Raises:
            OtherProcessError: another one has failed in a block that all leave together, or is gone.
        """
        if not self.several:
            return [content]
        own = torch.frombuffer(bytearray(kind + content), dtype=torch.uint8)
        try:
            found = [x.numpy().tobytes() for x in gather_all_tensors(own, self._group)]
        except RuntimeError as error:  # gloo: the connection is closed, or the time is over
            raise OtherProcessError(
                f"process {self.rank} of {self.world}: another process has ended or does not answer; "
                "its own message says why"
            ) from error
        for rank, said in enumerate(found):
            if said[:1] == _FAILURE:
                raise OtherProcessError(f"process {rank} has failed with {said[1:].decode()}")
        return [said[1:] for said in found]


@contextmanager
def joined(distributed: bool | None = None) -> Iterator[Processes]:
    """The processes among which a run is split; a context manager around it, in each of them.

    Args:
        distributed: None for those that a launcher has started, or that torch.distributed connects
            already; False for this one alone; True refuses a single one.

    Raises:
        ValueError: ``distributed`` is True, and there is only this process.
        OtherProcessError: not all of them come.
    """
    device = None
    if distributed is not False and processes_launched() > 1 and not _connected():
        device = _connect()
    if distributed is False or not _connected() or dist.get_world_size() == 1:
        if distributed:
            raise ValueError(
                "distributed=True, but this process is the only one: start several with torchrun or "
                "`accelerate launch --multi_gpu`"
            )
        yield Processes()
        return
    with (
        ExitStack() as groups
    ):  # both to the end: who closes the first at once may cut off a slower one
        for timeout in (ARRIVAL, PATIENCE):
            group = _group(timeout)
            groups.callback(dist.destroy_process_group, group)
        yield Processes(dist.get_rank(), dist.get_world_size(), group, device)


def _connected() -> bool:
    return dist.is_available() and dist.is_initialized()


def _connect() -> torch.device:
    """Connect the processes as the launcher says, until this one ends; the device of this one."""
    from accelerate import PartialState

    try:
        state = PartialState(cpu=not torch.cuda.is_available(), timeout=ARRIVAL)
    except RuntimeError as error:
        raise OtherProcessError(
            f"the {processes_launched()} processes could not be connected: {error}"
        ) from error
    atexit.register(_disconnect)
    device: torch.device = state.device
    return device


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _group(timeout: timedelta) -> dist.ProcessGroup:
    try:
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
    except RuntimeError as error:
        raise OtherProcessError(
            f"not all of the {dist.get_world_size()} processes have come here, within {timeout} at most: call "
            "analyze in each of them, or with distributed=False in one"
        ) from error
    return group
