"""The factored output projections of a model, kept from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tl_geometry.hooks.sites import AttentionSite
from tl_geometry.measures.frame import OutputFrame
from tl_geometry.measures.scaling import work_dtype

__all__ = ["Frames"]


class Frames:
    """Output frames by layer; a layer's is dropped when its weights change.

    >>> frames = Frames(attention_sites(model))
    >>> frames.refresh()                # before a forward
    >>> frames.of(site).L.shape
    torch.Size([4, 8, 8])
    """

    def __init__(self, sites: Sequence[AttentionSite]) -> None:
        self.sites = list(sites)
        self._held: dict[int, tuple[Any, OutputFrame]] = {}
        self._sums: list[float] = []

    def refresh(self, norm_weights: Mapping[int, Tensor] | None = None) -> None:
        """Look at the weights (and scales of norms behind the attention, by site) before a forward."""
        weights = [site.W_O for site in self.sites] + list((norm_weights or {}).values())
        sums = torch.stack([_checksum(weight).cpu() for weight in weights]).tolist()
        if sums != self._sums:
            self._held.clear()
            self._sums = sums

    def of(self, site: AttentionSite, norm_weight: Tensor | None = None) -> OutputFrame:
        """The frame of one layer."""
        weights = site.module.parameters()
        key = [(p.data_ptr(), p.dtype, None if p.is_inference() else p._version) for p in weights]
        held = self._held.get(site.index)
        if held is None or held[0] != key:
            W_O = site.W_O.detach()
            frame = OutputFrame.of(W_O, norm_weight, work_dtype(W_O))
            held = self._held[site.index] = (key, frame)
        return held[1]


def _checksum(weight: Tensor) -> Tensor:
    """A number that changes with any edit, permutations included."""
    flat = weight.detach().flatten().float()
    return flat @ torch.linspace(1, 2, len(flat), dtype=flat.dtype, device=flat.device).square()
