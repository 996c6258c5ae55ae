"""Which entries of one batch's patterns count, from what the caller said or from what can be seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.hooks import AttentionSite, LayerReport
from tl_geometry.hooks.padding import (
    PadToken,
    masked_padding,
    unexplained_keys,
    unseen_keys,
)
from tl_geometry.measures.masks import attention_available

__all__ = ["BatchMasks"]


class BatchMasks:
    """The real tokens of a batch, and with them the available entries of each layer.

    Without a mask, padding is looked for anew in each forward: pads at the end of a row by their
    token, positions that the model masked by the first pattern of each stack of blocks.

    Raises:
        ValueError: a mask that is not ``batch pos``, a row without a real token, or a decoder's mask
            for a model without one.
    """

    def __init__(
        self,
        sites: Sequence[AttentionSite],
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        pad: PadToken | None = None,
    ) -> None:
        stacks = [_stack(site) for site in sites]
        if decoder_attention_mask is not None and not any(map(_is_decoder, stacks)):
            raise ValueError(
                "decoder_attention_mask was given, but the model has a single stack of blocks: give "
                "attention_mask"
            )
        self._given = {
            "attention_mask": checked_mask("attention_mask", attention_mask),
            "decoder_attention_mask": checked_mask(
                "decoder_attention_mask", decoder_attention_mask
            ),
        }
        self._pad = pad if attention_mask is None else None
        self._first = {
            stack: site.index
            for stack, site in reversed(list(zip(stacks, sites, strict=True)))
            if not site.cross
        }
        self.unexplained: Tensor | None = None
        self._trailing: Tensor | None = None
        self._seen: dict[str, Tensor] = {}
        self._available: dict[Hashable, Tensor] = {}

    @property
    def hook(self) -> str | None:
        """Name of the hook that shows the tokens to :meth:`look`, None if it isn't needed."""
        return None if self._pad is None else self._pad.hook

    def look(self, seen: Tensor, hook: Any = None) -> None:  # noqa: ARG002
        """Find the pads at the end of the rows (a forward hook)."""
        self._trailing = None if self._pad is None else self._pad.trailing(seen)

    def _begin(self, site: AttentionSite, report: LayerReport, pattern: Tensor) -> None:
        """Take the first layer of a stack as the start of a forward."""
        stack = _stack(site)
        if self._given[_mask_name(stack)] is not None or self._first.get(stack) != site.index:
            return
        pads = masked_padding(pattern, causal=report.causal)
        if self._trailing is not None and self._trailing.shape == pads.shape:
            pads = pads | self._trailing.to(pads.device)
        if report.causal and report.rows_sum_to_one:
            self.unexplained = unexplained_keys(pattern, pads).sum()
        self._seen[stack] = ~pads
        self._available.clear()

    def found_padding(self, site: AttentionSite) -> bool:
        """Whether the padding of a layer's queries was found rather than given."""
        return self._given[_mask_name(_stack(site))] is None

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
        batch, _, n_query, n_key = pattern.shape
        self._begin(site, report, pattern)
        query_stack = _stack(site)
        key_stack = query_stack.replace("decoder", "encoder") if site.cross else query_stack
        query_mask = self._real("query", query_stack, batch, n_query)
        key_mask = self._real("key", key_stack, batch, n_key)
        if site.cross and key_mask is None:  # the encoder's own layers are not looked at
            key_mask = ~unseen_keys(pattern)
            self._available.clear()
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
        return self._available[key]

    def _real(self, axis: str, stack: str, batch: int, n: int) -> Tensor | None:
        name = _mask_name(stack)
        mask = self._given[name]
        if mask is not None and tuple(mask.shape) != (batch, n):
            raise ValueError(
                f"{name} has shape {tuple(mask.shape)}, but the pattern has batch {batch} and {n} {axis} positions"
            )
        return mask if mask is not None else self._seen.get(stack)


def _stack(site: AttentionSite) -> str:
    """Name of the stack of blocks a site belongs to ("" where the model has one only)."""
    return site.layer.partition(".")[0] if isinstance(site.layer, str) else ""


def _is_decoder(stack: str) -> bool:
    return stack.startswith("decoder")


def _mask_name(stack: str) -> str:
    return "decoder_attention_mask" if _is_decoder(stack) else "attention_mask"


def checked_mask(name: str, mask: Any) -> Bool[Tensor, "batch pos"] | None:
    """A padding mask as bool.

    Raises:
        TypeError: not a tensor.
        ValueError: not ``batch pos``, or a row without a real token.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(mask).__name__}")
    if mask.is_floating_point() and bool(mask.isnan().any()):
        raise ValueError(
            f"{name} holds NaN; it must be non-zero at real tokens and zero at padding"
        )
    if mask.ndim != 2:
        raise ValueError(
            f"{name} must be batch pos (non-zero at real tokens), got shape {tuple(mask.shape)}"
        )
    real = mask != 0
    empty = (~real.any(-1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"{name}: the rows {empty} hold only padding; leave them out of the batch")
    return real
