"""What the probes of several processes have measured, merged by the reductions of their states."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from tl_geometry.analysis.processes import OtherProcessError, Processes
from tl_geometry.analysis.snapshot import Tracker

__all__ = ["check_mergeable", "merge"]


def merge(tracker: Tracker, processes: Processes) -> None:
    """Let the probe of each process hold what those of all have measured.

    Sums, maxima and the other reductions of ``add_state`` are those of torchmetrics; a process without
    documents takes part with what its states begin with. A list that is concatenated (``"cat"``)
    becomes a list of one tensor, the parts of the processes in the order of their numbers.

    Raises:
        ValueError: a measure keeps something that can't be merged.
        OtherProcessError: another process has ended.
    """
    check_mergeable(tracker)
    probe, metrics = tracker.probe, tracker.metrics.values()
    for metric in metrics:
        _merge_states(metric, processes)
    everyone = processes.share(
        [probe.seen, probe.ledger.fired, [metric.update_count for metric in metrics]]
    )
    seen, fired, updates = zip(*everyone, strict=True)
    probe.seen = sum(seen)
    probe.ledger.fired = [sum(counts) for counts in zip(*fired, strict=True)]
    for metric, *counts in zip(metrics, *updates, strict=True):
        metric._update_count = sum(counts)


def check_mergeable(tracker: Tracker) -> None:
    """Refuse a measure that keeps what no reduction merges.

    Raises:
        ValueError: attributes that batches have changed, or lists that are not concatenated.
    """
    if changed := tracker.changed():
        raise ValueError(
            f"measures: {changed[0]} was changed by a batch, and can't be merged over several processes: hold "
            "what changes in states (add_state)"
        )
    for metric in tracker.metrics.values():
        for name, state in metric.metric_state.items():
            if isinstance(state, list) and metric._reductions[name] is not dim_zero_cat:
                raise ValueError(
                    f"measures: the list {type(metric).__name__}.{name} can't be merged over several processes, "
                    'which have different numbers of batches: use dist_reduce_fx="cat"'
                )


def _merge_states(metric: Metric, processes: Processes) -> None:
    def gather(state: Tensor, group: Any = None) -> list[Tensor]:  # noqa: ARG001
        content = save_tensors({"state": state.detach().cpu().contiguous()})
        found = [load_tensors(x)["state"] for x in processes.exchange(content)]
        return [x.to(state.device) for x in _alike(found)]

    lists = [name for name, state in metric.metric_state.items() if isinstance(state, list)]
    for name in lists:  # one tensor each: every process would give as many as it has batches
        items = getattr(metric, name) or [torch.tensor([], device=metric.device)]
        setattr(metric, name, [dim_zero_cat(items)])
    try:
        with torch.inference_mode(False), torch.no_grad():
            metric.sync(gather, distributed_available=lambda: True)
    except OtherProcessError:
        raise
    except RuntimeError as error:  # such as states of different shapes, which do not add up
        raise ValueError(
            f"measures: the states of {type(metric).__name__} can't be merged: {error}"
        ) from error
    merged = metric.metric_state
    metric.unsync()
    for name, state in merged.items():
        in_list = name in lists and isinstance(state, Tensor)
        setattr(metric, name, [state] if in_list else state)


def _alike(found: list[Tensor]) -> list[Tensor]:
    """Tensors of one type; those of no entries, which know nothing of the others, with their axes."""
    filled = [x for x in found if x.numel()] or found
    dtype = reduce(torch.promote_types, (x.dtype for x in filled))
    axes = filled[0].shape[1:]
    return [(x if x.numel() else x.reshape(0, *axes)).to(dtype) for x in found]
