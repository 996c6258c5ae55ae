"""Runs of `analyze` that the tests of several processes make together and alone, and compare."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from analysis_data.runs import corpus

from tl_geometry import Regimes, Separability
from tl_geometry.analysis import Accumulator, Variable


class Reductions(Accumulator):
    """A measure of a user's own: a sum, a maximum, a minimum, and lists that are concatenated."""

    variables: ClassVar = {"mine": Variable("largest weight of a document")}

    def __init__(self) -> None:
        super().__init__()
        self.add_state("highest", torch.tensor(0.0), dist_reduce_fx="max")
        self.add_state("lowest", torch.tensor(torch.inf), dist_reduce_fx="min")
        self.add_state("rows", torch.zeros(3, dtype=torch.int32), dist_reduce_fx="sum")
        self.add_state("numbers", default=[], dist_reduce_fx="cat")
        self.add_state("peaks", default=[], dist_reduce_fx="cat")
        self.add_state("calls", default=[], dist_reduce_fx="cat")

    def measure(self, geometry):
        peaks = geometry.pattern.amax((2, 3)).double()
        self.highest = torch.maximum(self.highest, peaks.max().float())
        self.lowest = torch.minimum(self.lowest, peaks.min().float())
        self.rows += geometry.rows.any(1).sum().int()
        self.numbers.append(torch.tensor(geometry.documents))
        self.peaks.append(peaks)
        self.calls.append(torch.tensor(1.0))
        return {"mine": peaks}

    def derived(self, found):
        numbers, peaks = torch.cat(self.numbers), torch.cat(self.peaks)
        first = peaks[numbers == numbers.max()][0]
        total = self.rows.sum() + self.highest + self.lowest + peaks.sum() + first[0]
        values = total.double().expand_as(found["mine"])
        calls = float(sum(call.sum() for call in self.calls))
        return {
            "all": (Variable("all that is kept"), values.clone()),
            "calls": (Variable("calls"), torch.full_like(found["mine"], calls)),
            "kinds": (
                Variable("dtype", over="rows"),
                torch.full_like(found["mine"], kind(numbers)),
            ),
        }


def kind(numbers):
    return float(numbers.dtype == torch.int64)


class Counting(Regimes):
    """Keeps a number beside its states."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def measure(self, geometry):
        self.calls += 1
        return super().measure(geometry)


class Listing(Regimes):
    """Keeps a list that is not concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", default=[], dist_reduce_fx=None)


class Growing(Regimes):
    """A sum whose shape is that of the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def measure(self, geometry):
        self.total = self.total + geometry.pattern.sum((0, 2, 3))
        return super().measure(geometry)


class Drawing(Regimes):
    """Holds random numbers that go on from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()


class Loud(Regimes):
    """Warns of every batch."""

    def measure(self, geometry):
        warnings.warn("a batch", UserWarning, stacklevel=2)
        return super().measure(geometry)


def padded():
    """Pairs of tokens and mask, padded on the left and elsewhere."""
    pairs = []
    for seed, (left, right) in enumerate(((3, 0), (0, 2), (1, 1), (0, 0), (5, 0))):
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[0, :left] = 0
        mask[0, 12 - right :] = 0
        pairs.append((torch.stack(corpus((12, 12), seed)), mask))
    return pairs


def skipping():
    """Rows of which two are too short; the others of very different lengths."""
    return [*corpus((1, 30, 4)), *corpus((2, 17, 1, 9, 25, 6), seed=1)]


def everything():
    """All default measures and a user's own."""
    names = ("contributions", "regimes", "sinks", "separability", "switches", "smoothing")
    return [*names, Reductions()]


def some():
    """Fewer variables: counts, a random control, a user's own."""
    return ["regimes", Separability((1, 4), queries=4), Reductions()]


COMMON: dict[str, Any] = {"n_ctx": 32, "batch_size": 2, "progress": False, "prepend_bos": False}

# Data and options of each run.
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "everything": (corpus, {"measures": everything, "keep_examples": 3}),
    "padded": (padded, {"measures": everything}),
    "single rows": (skipping, {"measures": some, "batch_size": 1, "keep_examples": 1}),
    "one batch": (lambda: corpus((9, 9, 5)), {"measures": some, "batch_size": 4}),
    "stream": (lambda: (row[None] for row in corpus((8, 8, 9, 7, 9))), {"measures": some}),
    "named": (corpus, {"measures": lambda: ["regimes"], "max_documents": 7, "seed": 3}),
    "other batches": (corpus, {"measures": some, "batch_size": 3}),
    "other order": (lambda: corpus()[::-1], {"measures": lambda: ["regimes"]}),
}
# What one process does differently, for the same numbers.
ALONE: dict[str, tuple[Any, dict[str, Any]]] = {
    "other batches": (corpus, {"measures": some}),
    "other order": (corpus, {"measures": lambda: ["regimes"]}),
}


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a run, measures made anew."""
    return {**COMMON, **{k: v() if callable(v) else v for k, v in given.items()}}
