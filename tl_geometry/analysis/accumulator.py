"""Accumulators: measures of a layer, averaged over the documents of a corpus.

A new measure for a corpus is a subclass of :class:`Accumulator` with two things: the table of its
``variables`` and a ``measure`` method that gives one number per document and head for the layer at
hand. Sums over documents, standard errors, merging over batches and processes, and the way into an
``xarray.Dataset`` are the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor
from torchmetrics import Metric

from tl_geometry.measures.devices import upload
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.similarity import TokenVectors

__all__ = ["Accumulator", "Measured", "ResidualStream", "Variable"]

Measured: TypeAlias = dict[str, Num[Tensor, "batch *axes"]]
"""One number per document and head for each variable; counts may be integers, NaN where a document defines nothing.

Axes are ``batch head *dims``, or ``batch *dims`` for a variable per layer.
"""


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """The residual stream around one block, for one batch.

    Attributes:
        before, after: token vectors at the block's input and output.
        attended: what the block's attention reads: ``before``, in most models after a norm.
        real: which tokens are real.
        cross: the attention reads its keys from another sequence.
        causal: no query of the attention may use a later key.
        documents: numbers of the rows within the corpus.
        previous: the vectors of ``before``, if the layer before this one has them already.
    """

    before: Float[Tensor, "batch pos d_model"]
    after: Float[Tensor, "batch pos d_model"]
    attended: Float[Tensor, "batch pos d_model"]
    real: Bool[Tensor, "batch pos"]
    cross: bool = False
    causal: bool = True
    documents: tuple[int, ...] = ()
    previous: TokenVectors | None = None

    @cached_property
    def tokens_before(self) -> TokenVectors:
        """``before``, with what measures ask of it computed once: for two layers, where it is the last one's output."""
        return self.previous or self._tokens(self.before)

    @cached_property
    def tokens_after(self) -> TokenVectors:
        """``after``, with what measures ask of it."""
        return self._tokens(self.after)

    @cached_property
    def tokens_attended(self) -> TokenVectors:
        """``attended``, with what measures ask of it."""
        return self._tokens(self.attended)

    def _tokens(self, x: Tensor) -> TokenVectors:
        return TokenVectors(x, upload(self.real, x.device))


@dataclass(frozen=True)
class Variable:
    """One variable of a result.

    Attributes:
        long_name: what it is, in words.
        units: physical or "1" for dimensionless.
        source: the paper that defines it.
        dims: axes after ``layer head`` (or ``layer``); their labels stand in
            :attr:`Accumulator.coords`.
        over: ``"documents"`` for a mean over documents with its standard error, ``"rows"`` for a
            plain sum.
        per: ``"head"``, or ``"layer"`` for what the heads of a layer have in common.
    """

    long_name: str
    units: str = "1"
    source: str = ""
    dims: tuple[str, ...] = ()
    over: Literal["documents", "rows"] = "documents"
    per: Literal["head", "layer"] = "head"


class Accumulator(Metric):
    """Base of all accumulators; see :class:`tl_geometry.Probe` for how they run.

    Each variable is held as one float64 tensor ``moment layer head ...`` with the sum, the sum of
    squares and the number of documents, so memory grows neither with the corpus nor with the
    context length. One that sets ``reads_stream`` is shown the residual stream as well, in
    :meth:`measure_stream`.
    """

    full_state_update = False
    reads_stream = False
    variables: Mapping[str, Variable] = {}
    coords: Mapping[str, Sequence[str | int | float]] = {}

    def __init__(self) -> None:
        super().__init__(compute_with_cache=False, sync_on_compute=False)
        self.bound = False

    def check_free(self) -> None:
        """Refuse to serve two probes.

        Raises:
            ValueError: it belongs to a probe already.
        """
        if self.bound:
            raise ValueError(
                f"this {type(self).__name__} belongs to another Probe already: make a new one"
            )

    def bind(self, n_layers: int, n_heads: int, device: torch.device | str = "cpu") -> None:
        """Make room for a model. A probe calls this once; an accumulator belongs to one probe.

        Raises:
            ValueError: it belongs to a probe already.
        """
        self.check_free()
        self.bound = True
        dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
        for name, variable in self.variables.items():
            heads = (n_heads,) if variable.per == "head" else ()
            axes = (n_layers, *heads, *(len(self.coords[dim]) for dim in variable.dims))
            shape = (3, *axes) if variable.over == "documents" else axes
            self.add_state(
                name,
                torch.zeros(shape, dtype=dtype, device=device),
                dist_reduce_fx="sum",
                persistent=True,
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Options to record in the provenance."""
        return {}

    @abstractmethod
    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head for each variable; NaN where a document does not define it."""

    def measure_stream(self, stream: ResidualStream) -> Measured:  # noqa: ARG002
        """One number per document for each variable per layer that is read from the residual stream."""
        return {}

    def update(self, layer: int, geometry: AttentionGeometry) -> None:
        """Take in one layer of one batch (rows of the batch are documents)."""
        self._add(layer, geometry.n_heads, self.measure(geometry))

    def update_stream(self, layer: int, stream: ResidualStream) -> None:
        """Take in the residual stream around one layer, of the same batch."""
        self._add(layer, 0, self.measure_stream(stream))

    def _add(self, layer: int, n_heads: int, measured: Measured) -> None:
        """Add to the states: all variables together as one tensor, since each operation costs the same for any size."""
        for per in ("head", "layer"):
            for over in ("documents", "rows"):
                names = [
                    name
                    for name in measured
                    if (self.variables[name].per, self.variables[name].over) == (per, over)
                ]
                if names:
                    place = (layer, slice(0, n_heads)) if per == "head" else (layer,)
                    self._add_alike(place, 2 if per == "head" else 1, over, names, measured)

    def _add_alike(
        self, place: tuple[Any, ...], axes: int, over: str, names: list[str], measured: Measured
    ) -> None:
        state: Tensor = getattr(self, names[0])
        shapes = [measured[name].shape[axes:] for name in names]
        columns = [measured[name].reshape(*measured[name].shape[:axes], -1) for name in names]
        values = torch.cat([x.to(state.device, state.dtype) for x in columns], -1)
        known = ~values.isnan()
        values = values.masked_fill(~known, 0)
        totals = values.sum(0)
        if over == "documents":
            totals = torch.stack([totals, values.square().sum(0), known.sum(0)])
            place = (slice(None), *place)
        widths = [x.shape[-1] for x in columns]
        for name, shape, part in zip(names, shapes, torch.split(totals, widths, -1), strict=True):
            getattr(self, name)[place].add_(part.reshape((*part.shape[:-1], *shape)))

    def compute(self) -> dict[str, Tensor]:
        """Means over documents with standard errors (``<name>_se``), and sums over rows; NaN where nothing was seen."""
        found: dict[str, Tensor] = {}
        for name, variable in self.variables.items():
            state: Tensor = getattr(self, name)
            if variable.over == "rows":
                found[name] = state.clone()
                continue
            total, squares, count = state
            mean = total / count
            spread = ((squares - count * mean.square()) / (count - 1)).clamp(min=0)
            found[name] = mean
            found[f"{name}_se"] = torch.where(count > 1, (spread / count).sqrt(), torch.nan)
        return found

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Shape of a computed variable or of its standard error."""
        base = name if name in self.variables else name.removesuffix("_se")
        shape = tuple(getattr(self, base).shape)
        return shape[1:] if self.variables[base].over == "documents" else shape

    def derived(
        self,
        found: Mapping[str, Tensor],  # noqa: ARG002
    ) -> dict[str, tuple[Variable, Any]]:
        """Further variables that follow from the computed ones, such as labels."""
        return {}
