"""Which entries of one batch's patterns count, from what the caller said or from what can be seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.hooks import AttentionSite, LayerReport
from tl_geometry.hooks.padding import (
    PadToken,
    masked_padding,
    unexplained_keys,
    unseen_keys,
)
from tl_geometry.hooks.real_tokens import RealTokens, key_stack_of, stack_of
from tl_geometry.measures.masks import attention_available

__all__ = ["BatchMasks"]


class BatchMasks(RealTokens):
    """The real tokens of a batch, and with them the available entries of each layer.

    Without a mask, padding is looked for anew in each forward: pads at the end of a row by their
    token, positions that the model masked by the first pattern of each stack of blocks.
    """

    def __init__(
        self,
        sites: Sequence[AttentionSite],
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        pad: PadToken | None = None,
    ) -> None:
        super().__init__(sites, attention_mask, decoder_attention_mask, pad)
        self._first = {
            stack_of(site): site.index for site in reversed(list(sites)) if not site.cross
        }
        self.unexplained: Tensor | None = None
        self._seen: dict[str, Tensor] = {}
        self._available: dict[Hashable, Tensor] = {}
        self._found: dict[int, Hashable] = {}
        self._shared: dict[Hashable, dict[Hashable, Any]] = {}

    def _begin(self, site: AttentionSite, report: LayerReport, pattern: Tensor) -> None:
        """Take the first layer of a stack as the start of a forward."""
        stack = stack_of(site)
        if self.given(stack) is not None or self._first.get(stack) != site.index:
            return
        pads = masked_padding(pattern, causal=report.causal, sums_to_one=report.rows_sum_to_one)
        if self._trailing is not None and self._trailing.shape == pads.shape:
            pads = pads | self._trailing.to(pads.device)
        if report.rows_sum_to_one:
            self.unexplained = self._doubtful(pattern, pads, causal=report.causal).sum()
        self._seen[stack] = ~pads
        self._forget()

    def _doubtful(
        self, pattern: Float[Tensor, "batch head query key"], pads: Tensor, *, causal: bool
    ) -> Bool[Tensor, "batch key"]:
        """Positions without attention that are not known to be padding, where there is a way to know."""
        if causal:
            return unexplained_keys(pattern, pads)
        known = self._pads
        if known is None or known.shape != pads.shape:  # no tokens to compare with
            return torch.zeros_like(pads)
        return pads & ~known.to(pads.device)

    def found(self, stack: str) -> Bool[Tensor, "batch pos"] | None:
        """The real tokens as the first pattern of the stack showed them."""
        return self._seen.get(stack)

    def found_padding(self, site: AttentionSite) -> bool:
        """Whether the padding of a layer's queries was found rather than given."""
        return self.given(stack_of(site)) is None

    def available(
        self,
        site: AttentionSite,
        report: LayerReport,
        pattern: Float[Tensor, "batch head query key"],
    ) -> Bool[Tensor, "batch 1 query key"]:
        """Entries of a layer's pattern that count.

        Raises:
            ValueError: a mask that does not fit the pattern.
        """
        batch, n_heads, n_query, n_key = pattern.shape
        self._begin(site, report, pattern)
        query_stack, key_stack = stack_of(site), key_stack_of(site)
        query_mask = self.real("query", query_stack, batch, n_query)
        key_mask = self.real("key", key_stack, batch, n_key)
        if site.cross and key_mask is None:  # the encoder's own layers are not looked at
            key_mask = ~unseen_keys(pattern)
            self._forget()
        key = (query_stack, key_stack, n_query, n_key, report.causal, report.window, pattern.device)
        if key not in self._available:
            self._available[key] = attention_available(
                n_query=n_query,
                n_key=n_key,
                query_mask=query_mask,
                key_mask=key_mask,
                causal=report.causal,
                window=report.window,
                device=pattern.device,
            ).expand(batch, -1, -1, -1)
        self._found[site.index] = (*key, n_heads, site.cross)
        return self._available[key]

    def shared(self, site: AttentionSite) -> dict[Hashable, Any]:
        """What layers with the same available entries and heads as this one have in common, after :meth:`available`."""
        return self._shared.setdefault(self._found[site.index], {})

    def _forget(self) -> None:
        self._available.clear()
        self._shared.clear()
