"""A small corpus and a run over it that can be broken at will, for the tests of checkpoints."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from tl_geometry import Regimes, analyze
from tl_geometry.analysis import Accumulator, Variable

LENGTHS = (9, 14, 5, 9, 11, 12, 13, 7)
OPTIONS: dict[str, Any] = {"n_ctx": 32, "batch_size": 2, "progress": False}


class StopError(Exception):
    """Breaks a run."""


def corpus(lengths=LENGTHS, seed=0):
    """Rows of token ids, of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 50, (length,), generator=generator) for length in lengths]


class Longest(Accumulator):
    """A measure of a user's own: states that are not sums, a list of them, and plain attributes."""

    variables: ClassVar = {"longest": Variable("largest weight of a row", over="rows")}

    def __init__(self, power: float = 2.0) -> None:
        super().__init__()
        self.power = power
        self.add_state("peak", torch.tensor(0.0), dist_reduce_fx="max")
        self.add_state("seen", default=[], dist_reduce_fx="cat")
        self.calls = 0
        self.lengths = []
        self.trace = torch.zeros(2)

    @property
    def settings(self):
        return {"power": self.power}

    def measure(self, geometry):
        self.calls += 1
        self.lengths.append(geometry.pattern.shape[-1])
        peaks = geometry.pattern.float().amax((2, 3)) ** self.power
        self.peak = torch.maximum(self.peak, peaks.max())
        self.seen.append(peaks.flatten())
        self.trace = self.trace + peaks.flatten()[:2]
        return {"longest": peaks}

    def derived(self, found):
        share = torch.full_like(found["longest"], float(self.calls) + float(self.peak))
        share = share + torch.cat(self.seen).double().mean() + sum(self.lengths)
        return {"own": (Variable("all that is kept"), share + self.trace.sum().double())}


def measures():
    return [Longest(), Regimes()]


def run(model, data=None, *, stop=None, ending=None, **options):
    """`analyze`; with ``stop``, ``ending`` ends it at that call of Regimes (from 0), of two per batch.

    By then the ledger and Longest have taken the layer in, and Regimes has not.
    """
    options = {"measures": measures(), **OPTIONS, **options}
    data = corpus() if data is None else data
    if stop is None:
        return analyze(model, data, **options)
    measure, calls = Regimes.measure, []

    def breaking(self, geometry):
        calls.append(geometry)
        if len(calls) == stop + 1:
            (ending or fail)()
        return measure(self, geometry)

    Regimes.measure = breaking
    try:
        return analyze(model, data, **options)
    finally:
        Regimes.measure = measure


def fail():
    """End a run by an exception."""
    raise StopError


def same(one, other):
    """Equal to the bit, provenance included, but for the time."""
    assert list(one.data_vars) == list(other.data_vars)
    assert list(one.coords) == list(other.coords)
    for name in one.variables:
        assert one[name].dims == other[name].dims, name
        assert one[name].dtype == other[name].dtype, name
        assert one[name].values.tobytes() == other[name].values.tobytes(), name
        assert one[name].attrs == other[name].attrs, name
    apart = {"created"}
    assert repr({k: v for k, v in one.attrs.items() if k not in apart}) == repr(
        {k: v for k, v in other.attrs.items() if k not in apart}
    )
