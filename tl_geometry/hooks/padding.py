"""Find padding that nobody told us about.

TransformerLens tokenises a list of texts by itself: it pads, and masks the padding only where it is
on the left (or where attention runs both ways). A probe that is given no mask must not count such
pads as tokens. They show in two places: in the pattern, where masked positions of a causal model are
rows without a causal pattern of their own, and masked keys of a bidirectional one receive nothing;
and in the token ids or embeddings, where a run of pad tokens ends a row. What only looks like padding
is refused, not guessed.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.measures.devices import upload

__all__ = ["PadToken", "masked_padding", "unexplained_keys", "unseen_keys"]

# What a row of weights can lack of one.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
_HALF_ROUNDING = 0.05


def masked_padding(
    pattern: Float[Tensor, "batch head query key"], *, causal: bool, sums_to_one: bool = True
) -> Bool[Tensor, "batch key"]:
    """Positions that the model itself masked, read off a self-attention pattern (of any layer).

    >>> pattern = torch.tensor([[[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.4, 0.6]]]])
    >>> masked_padding(pattern, causal=True).tolist()
    [[True, False, False]]

    In a causal model these are rows at the beginning that are empty or look ahead, else keys to
    which nobody attends. Where rows sum to one (``sums_to_one``) but those of a document don't, an
    ablation has taken the token's entries out, and it is no padding.
    """
    if not causal:
        found = unseen_keys(pattern)
    else:
        some = pattern != 0
        odd = ~some.any(-1).any(1) | some.triu(1).any(-1).any(1)
        leading = odd.long().cumprod(-1).bool()
        found = leading & ~leading.all(-1, keepdim=True)
    return found & _whole(pattern, found) if sums_to_one else found


def unexplained_keys(
    pattern: Float[Tensor, "batch head query key"], pads: Bool[Tensor, "batch key"]
) -> Bool[Tensor, "batch key"]:
    """Keys that get no attention from rows that sum to one: padding that a mask hides, or what else?

    A weight can also round to zero, or an ablation can have moved it to other keys, so this is a
    question for the caller, not an answer. Where rows sum to less, an ablation has removed the key.
    """
    rest = pattern.masked_fill(pads[:, None, :, None], 0)
    return unseen_keys(rest) & ~pads & _whole(pattern, pads)


def _whole(
    pattern: Float[Tensor, "batch head query key"], pads: Bool[Tensor, "batch key"]
) -> Bool[Tensor, "batch 1"]:
    """Whether every row of a document but those of pads sums to one."""
    lacking = _ROUNDING.get(pattern.dtype, _HALF_ROUNDING)
    sums = pattern.sum(-1, dtype=torch.float32).masked_fill(pads[:, None], 1)
    return (sums > 1 - lacking).flatten(1).all(-1, keepdim=True)


def unseen_keys(pattern: Float[Tensor, "batch head query key"]) -> Bool[Tensor, "batch key"]:
    """Keys to which no head and no query attends."""
    return ~(pattern != 0).any(-2).any(1)


class PadToken:
    """Recognises a model's pad token at one of its hooks.

    >>> pad = PadToken.of(model)
    >>> pad.hook, pad.trailing(torch.tensor([[5, 7, pad.id], [5, 7, 6]])).tolist()
    ('embed.hook_in', [[False, False, True], [False, False, False]])
    """

    def __init__(
        self,
        hook: str,
        id: int,  # noqa: A002
        embedding: Tensor | None,
        *,
        is_bos: bool = False,
    ) -> None:
        self.hook = hook
        self.id = id
        self.is_bos = is_bos
        self._embedding = embedding

    @classmethod
    def of(cls, model: Any) -> PadToken | None:
        """The pad token of the model's tokenizer, None where there is none or no hook to see it."""
        tokenizer = getattr(model, "tokenizer", None)
        pad = getattr(tokenizer, "pad_token_id", None)
        if pad is None:
            return None
        is_bos = pad == getattr(tokenizer, "bos_token_id", None)
        if "embed.hook_in" in model.hook_dict:  # a TransformerBridge: token ids
            return cls("embed.hook_in", pad, None, is_bos=is_bos)
        if "hook_embed" not in model.hook_dict or not 0 <= pad < model.W_E.shape[0]:
            return None
        return cls("hook_embed", pad, model.W_E[pad].detach(), is_bos=is_bos)

    def trailing(self, seen: Tensor) -> Bool[Tensor, "batch pos"] | None:
        """The run of pads at the end of each row, from what the hook shows; None if that is unclear."""
        is_pad = self._is_pad(seen)
        return None if is_pad is None else is_pad.flip(-1).long().cumprod(-1).flip(-1).bool()

    def leading(self, seen: Tensor) -> Bool[Tensor, "batch pos"] | None:
        """The run of pads at the beginning of each row; a bos token with the same id, its last, is none of them."""
        is_pad = self._is_pad(seen)
        if is_pad is None:
            return None
        run = is_pad.long().cumprod(-1).bool()
        return run.roll(-1, -1) & run if self.is_bos else run

    def everywhere(self, seen: Tensor) -> Bool[Tensor, "batch pos"] | None:
        """All pad tokens, from what the hook shows; None if that is unclear."""
        if self._embedding is None:
            if seen.is_floating_point() or seen.ndim != 2:
                return None
            return seen == self.id
        if seen.ndim != 3 or seen.shape[-1] != self._embedding.shape[-1]:
            return None
        own = upload(self._embedding, seen.device).to(seen.dtype)
        return (seen.detach() == own).all(-1)

    def _is_pad(self, seen: Tensor) -> Bool[Tensor, "batch pos"] | None:
        is_pad = self.everywhere(seen)
        # One row needs no padding: what looks like it was meant.
        return None if is_pad is None or len(is_pad) == 1 else is_pad
