"""The way of one batch's layers from the hooks into a probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from tl_geometry.analysis.accumulator import ResidualStream
from tl_geometry.analysis.batch_masks import BatchMasks
from tl_geometry.hooks import AttentionSite

if TYPE_CHECKING:
    from tl_geometry.analysis.probe import Probe

__all__ = ["Feed"]


class Feed:
    """Takes one batch's layers, and their residual streams, as the hooks hand them over."""

    def __init__(self, probe: Probe, masks: BatchMasks, documents: Sequence[int] | None) -> None:
        self.probe, self.masks, self.given = probe, masks, documents
        self.documents: Sequence[int] = ()
        self._real: dict[int, Tensor] = {}

    def __call__(self, site: AttentionSite, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        """Take in the attention of one layer."""
        if site is self.probe.sites[0]:
            self.documents = self.probe.number_documents(pattern.shape[0], self.given)
        geometry = self.probe.reader.geometry(site, pattern, v, z, self.masks, self.documents)
        self._real[site.index] = geometry.rows.any(1)
        self.probe.take(site, geometry, z, v, self.masks)

    def stream(self, site: AttentionSite, before: Tensor, after: Tensor, attended: Tensor) -> None:
        """Take in the residual stream around one layer, whose attention came first."""
        real = self._real.pop(site.index)
        stream = ResidualStream(
            before, after, attended, real, cross=site.cross, documents=tuple(self.documents)
        )
        self.probe.take_stream(site, stream)
