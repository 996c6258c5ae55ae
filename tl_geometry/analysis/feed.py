"""The way of one batch's layers from the hooks into a probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from tl_geometry.analysis.accumulator import ResidualStream
from tl_geometry.analysis.batch_masks import BatchMasks
from tl_geometry.hooks import AttentionSite
from tl_geometry.measures.similarity import TokenVectors

if TYPE_CHECKING:
    from tl_geometry.analysis.probe import Probe

__all__ = ["Feed"]


class Feed:
    """Takes one batch's layers, and their residual streams, as the hooks hand them over."""

    def __init__(self, probe: Probe, masks: BatchMasks, documents: Sequence[int] | None) -> None:
        self.probe, self.masks, self.given = probe, masks, documents
        self.documents: Sequence[int] = ()
        self._mark = object()
        self._layers: dict[int, tuple[Tensor, bool]] = {}
        self._output = _NOTHING

    def begin(self, site: AttentionSite) -> None:
        """Note that this batch's layer is being read: nothing else may begin it before it is taken in."""
        self.probe.reading[site.index] = self._mark

    def __call__(self, site: AttentionSite, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        """Take in the attention of one layer.

        Raises:
            RuntimeError: other hooks of the same probe read it in the same forward.
        """
        if self.probe.reading[site.index] is not self._mark:
            raise RuntimeError(
                f"layer {site.layer} is read by two lists of this probe's hooks in one forward, so that "
                "its documents would count twice: give probe.hooks() once to each run"
            )
        if site is self.probe.sites[0]:
            self.documents = self.probe.number_documents(pattern.shape[0], self.given)
        geometry = self.probe.reader.geometry(site, pattern, v, z, self.masks, self.documents)
        self._layers[site.index] = geometry.rows.any(1), geometry.causal
        self.probe.take(site, geometry, z, v, self.masks)

    def stream(self, site: AttentionSite, before: Tensor, after: Tensor, attended: Tensor) -> None:
        """Take in the residual stream around one layer, whose attention came first."""
        real, causal = self._layers.pop(site.index)
        stream = ResidualStream(
            before,
            after,
            attended,
            real.to(after.device),
            cross=site.cross,
            causal=causal,
            documents=tuple(self.documents),
            previous=self._output.find(before),
        )
        last = site is self.probe.sites[-1]
        self._output = _NOTHING if last else _Output(after, stream.tokens_after)
        self.probe.take_stream(site, stream)


class _Output:
    """What was found about a block's output, for the next block that gets the very same numbers."""

    def __init__(self, x: Tensor | None, tokens: TokenVectors | None) -> None:
        self.x, self.tokens = x, tokens
        self.written = None if x is None else _writes(x)

    def find(self, x: Tensor) -> TokenVectors | None:
        """What is known of ``x``: it must be the same memory, and nothing may have been written to it since.

        What is written through ``.data`` or numpy is not counted by torch, and not seen here.
        """
        if self.x is None or self.written is None or self.written != _writes(x):
            return None
        views = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in (x, self.x)]
        return self.tokens if views[0] == views[1] else None


def _writes(x: Tensor) -> int | None:
    """How often a tensor was written to; None where this is not counted, or where it has no memory."""
    return None if x.is_inference() or x.device.type == "meta" else x._version


_NOTHING = _Output(None, None)
