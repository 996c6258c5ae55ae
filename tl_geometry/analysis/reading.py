"""From hooked tensors to the geometry of a layer, with what is known of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tl_geometry.analysis.batch_masks import BatchMasks
from tl_geometry.arguments import one_of
from tl_geometry.hooks import AttentionSite, Doctor
from tl_geometry.hooks.dropout import active_dropout
from tl_geometry.hooks.frames import Frames
from tl_geometry.hooks.post_norm import post_norm_scale
from tl_geometry.measures.devices import upload
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.layer import Output, ValueBias
from tl_geometry.measures.masks import SinkRule, sink_ordinals
from tl_geometry.measures.memory import MemoryBudget, checked_budget
from tl_geometry.measures.scaling import work_dtype

__all__ = ["LayerReader", "named_layer", "plain_sink"]


class LayerReader:
    """Builds each layer's geometry from its tensors, its live weights and the masks of the batch.

    The factored output projections are kept from batch to batch, and dropped when a layer's weights
    change.

    Raises:
        ValueError: an unknown option, or a norm behind the attention that is no elementwise scale.
    """

    def __init__(
        self,
        model: Any,
        sites: Sequence[AttentionSite],
        diagnosis: Doctor,
        *,
        sink: SinkRule = "first",
        value_bias: ValueBias = "as_hooked",
        output: Output = "raw",
        memory_budget: MemoryBudget = None,
    ) -> None:
        one_of("value_bias", value_bias, ("as_hooked", "remove"))
        one_of("output", output, ("raw", "normed"))
        self.model = model
        self.sites = list(sites)
        self.reports = {report.layer: report for report in diagnosis.layers}
        self.sink, self.value_bias, self.output = sink, value_bias, output
        self.memory_budget = checked_budget(memory_budget)
        self.without_norm: list[int | str] = []
        self._read_factors()
        self._frames = Frames(self.sites)

    def refresh(self) -> None:
        """Look at the model before a forward: weights may have changed, dropout may be active.

        Raises:
            ValueError: dropout is active, so that the pattern would be that after dropout.
        """
        dropped = active_dropout(self.model)
        if dropped is not None:
            raise ValueError(f"dropout is active ({dropped}): call model.eval() first")
        self._read_factors()
        self._frames.refresh(self.factors)

    def _read_factors(self) -> None:
        """Find what multiplies an output behind W_O: the scale of a norm, if asked for, and a layer's constant."""
        read = self.sites if self.output == "normed" else []
        found = {site.index: post_norm_scale(site) for site in read}
        self.without_norm = [site.layer for site in read if found[site.index] is None]
        self.factors = {index: scale for index, scale in found.items() if scale is not None}
        for site in self.sites:
            constant = self.reports[site.layer].output_scale
            if constant != 1:
                one = torch.ones(site.d_model, dtype=work_dtype(site.W_O), device=site.device)
                self.factors[site.index] = constant * self.factors.get(site.index, one)

    def notes(self) -> list[str]:
        """What lengths and directions of outputs mean where more than W_O makes them."""
        reports = [self.reports[site.layer] for site in self.sites]
        scales = {r.layer: r.output_scale for r in reports if r.output_scale != 1}
        normed = [report.layer for report in reports if report.verdict == "normed"]
        notes = []
        if self.without_norm:
            notes.append(
                f'output="normed": no norm follows the attention of the layers {self.without_norm}'
            )
        if normed and self.output == "raw":
            notes.append(
                f"a norm follows the attention of the layers {normed}: outputs are measured in front of it; "
                'output="normed" multiplies them by its scale'
            )
        for constant in sorted({round(scale, 6) for scale in scales.values()}):
            layers = [label for label, scale in scales.items() if round(scale, 6) == constant]
            notes.append(
                f"outputs of the layers {layers} are multiplied by {constant:g} behind W_O: lengths include it"
            )
        return notes

    def geometry(
        self,
        site: AttentionSite,
        pattern: Tensor,
        v: Tensor,
        z: Tensor,
        masks: BatchMasks,
        documents: Sequence[int] | None = None,
    ) -> AttentionGeometry:
        """The geometry of one layer of one batch.

        Raises:
            ValueError: tensors or masks that do not fit, with the layer's label.
        """
        factor = self.factors.get(site.index)
        bias = site.b_V if self.value_bias == "remove" else None
        with named_layer(site):
            if not site.cross and pattern.shape[-1] != pattern.shape[-2]:
                raise ValueError(
                    f"the pattern has {pattern.shape[-2]} queries and {pattern.shape[-1]} keys: with a KV "
                    "cache the values of earlier positions are not at hand; run the full text uncached"
                )
            available = masks.available(site, self.reports[site.layer], pattern)
            in_pattern = isinstance(self.sink, str) and self.sink == "auto"
            return AttentionGeometry(
                pattern,
                v,
                site.W_O.detach(),
                available=available,
                sink=self._sink(pattern),
                z=z,
                value_bias="as_hooked" if bias is None else "remove",
                b_V=bias,
                output="raw" if factor is None else "normed",
                norm_weight=factor,
                cross=site.cross,
                causal=self.reports[site.layer].causal and not site.cross,
                frame=self._frames.of(site, factor),
                masked=True,
                null_sinks=not self.reports[site.layer].rows_sum_to_one,
                layer=site.index,
                documents=documents,
                memory_budget=self.memory_budget,
                shared=None if in_pattern else masks.shared(site),
            )

    def _sink(self, pattern: Tensor) -> SinkRule:
        """The sink rule for a batch: an ordinal beyond its tokens names no sink in it."""
        if isinstance(self.sink, str):
            return self.sink
        if isinstance(self.sink, Tensor) and (self.sink.ndim != 1 or not _is_integer(self.sink)):
            return upload(self.sink, pattern.device)  # a mask, or wrong
        ordinals = sink_ordinals(self.sink)
        within = [k for k in ordinals if k < pattern.shape[-1]]
        if within or not ordinals:
            return within
        return torch.zeros(
            pattern.shape[0], pattern.shape[-1], dtype=torch.bool, device=pattern.device
        )


@contextmanager
def named_layer(site: AttentionSite) -> Iterator[None]:
    """Put the label of a layer in front of what a measure says is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"layer {site.layer}: {error}") from error


def plain_sink(sink: SinkRule) -> str | int | list[Any]:
    """A sink rule as JSON can hold it.

    Example: ``plain_sink(np.int64(2))`` is 2, and ``plain_sink(torch.tensor([0, 1]))`` is [0, 1].
    """
    found: str | int | list[Any] = (sink if isinstance(sink, Tensor) else np.asarray(sink)).tolist()
    return found


def _is_integer(x: Tensor) -> bool:
    return not x.is_floating_point() and x.dtype != torch.bool
