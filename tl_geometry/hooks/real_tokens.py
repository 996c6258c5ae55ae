"""Which tokens of a batch are real, from the masks that the caller gave or from the pads at the end of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jaxtyping import Bool
from torch import Tensor

from tl_geometry.hooks.padding import PadToken
from tl_geometry.hooks.sites import AttentionSite
from tl_geometry.measures.devices import check_numbers

__all__ = ["Mask", "RealTokens", "checked_mask", "key_stack_of", "mask_name", "stack_of"]

Mask: TypeAlias = Tensor | Callable[[], Tensor] | None
"""A padding mask ``batch pos``, non-zero at real tokens, or a function that gives the current batch's."""


class RealTokens:
    """The real tokens of the batches that run through a model.

    Raises:
        TypeError: a mask that is no tensor.
        ValueError: a mask that is not ``batch pos``, a row without a real token, or a decoder's mask
            for a model without one.
    """

    def __init__(
        self,
        sites: Sequence[AttentionSite],
        attention_mask: Mask = None,
        decoder_attention_mask: Mask = None,
        pad: PadToken | None = None,
    ) -> None:
        if decoder_attention_mask is not None and not any(_is_decoder(stack_of(s)) for s in sites):
            raise ValueError(
                "decoder_attention_mask was given, but the model has a single stack of blocks: give "
                "attention_mask"
            )
        self._given: dict[str, Mask] = {
            "attention_mask": attention_mask,
            "decoder_attention_mask": decoder_attention_mask,
        }
        for name, mask in self._given.items():
            if not callable(mask):
                self._given[name] = checked_mask(name, mask)
        self._pad = pad if attention_mask is None else None
        self._trailing: Tensor | None = None
        self._pads: Tensor | None = None

    @property
    def hook(self) -> str | None:
        """Name of the hook that shows the tokens to :meth:`look`, None if it isn't needed."""
        return None if self._pad is None else self._pad.hook

    def look(self, seen: Tensor, hook: Any = None) -> None:  # noqa: ARG002
        """Find the pads, and those at the end of the rows (a forward hook)."""
        if self._pad is not None:
            self._trailing, self._pads = self._pad.trailing(seen), self._pad.everywhere(seen)

    def given(self, stack: str) -> Bool[Tensor, "batch pos"] | None:
        """The mask that the caller gave for a stack of blocks."""
        name = mask_name(stack)
        mask = self._given[name]
        return checked_mask(name, mask()) if callable(mask) else mask

    def found(self, stack: str) -> Bool[Tensor, "batch pos"] | None:
        """The real tokens as far as they can be seen without a mask."""
        return None if self._trailing is None or _is_decoder(stack) else ~self._trailing

    def real(self, axis: str, stack: str, batch: int, n: int) -> Bool[Tensor, "batch pos"] | None:
        """The real tokens of one axis of a pattern, None where nothing says otherwise.

        Raises:
            ValueError: a mask that does not fit the pattern.
        """
        mask = self.given(stack)
        if mask is None:
            found = self.found(stack)
            return found if found is not None and tuple(found.shape) == (batch, n) else None
        if tuple(mask.shape) != (batch, n):
            raise ValueError(
                f"{mask_name(stack)} has shape {tuple(mask.shape)}, but the pattern has batch {batch} and "
                f"{n} {axis} positions"
            )
        return mask


def stack_of(site: AttentionSite) -> str:
    """Name of the stack of blocks a site belongs to ("" where the model has one only)."""
    return site.layer.partition(".")[0] if isinstance(site.layer, str) else ""


def key_stack_of(site: AttentionSite) -> str:
    """Name of the stack whose tokens are the keys of a site."""
    stack = stack_of(site)
    return stack.replace("decoder", "encoder") if site.cross else stack


def mask_name(stack: str) -> str:
    """Name of the argument that masks the tokens of a stack."""
    return "decoder_attention_mask" if _is_decoder(stack) else "attention_mask"


def _is_decoder(stack: str) -> bool:
    return stack.startswith("decoder")


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
    check_numbers(name, mask, "they say which tokens are real")
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
