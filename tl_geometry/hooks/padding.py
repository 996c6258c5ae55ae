"""Find padding that nobody told us about.

TransformerLens tokenises a list of texts by itself: it pads, and masks the padding only where it is
    on the left (or where
attention runs both ways). A probe that is given no mask must not count such pads as tokens. They
show in two places: the pattern of the first layer, where masked pads receive nothing and masked
rows are empty or uniform; and the embeddings, where a run of pad tokens at the end of a row gives
itself away.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["masked_padding", "pad_embedding", "trailing_padding"]


def masked_padding(
    pattern: Float[Tensor, "batch head query key"], *, causal: bool
) -> Bool[Tensor, "batch key"]:
    """Positions that the model itself masked, read off a self-attention pattern (of any layer).

    >>> pattern = torch.tensor([[[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.4, 0.6]]]])
    >>> masked_padding(pattern, causal=True).tolist()
    [[True, False, False]]
    """
    some = pattern != 0
    bad_row = ~some.any(-1).any(1)
    if causal:
        bad_row = bad_row | some.triu(1).any(-1).any(1)
    used = (some & ~bad_row[:, None, :, None]).any(-2).any(1)
    return bad_row | ~used


def pad_embedding(model: Any) -> Float[Tensor, " d_model"] | None:
    """Embedding of the tokenizer's pad token, None where there is no tokenizer, pad token or embedding to look at."""
    pad = getattr(getattr(model, "tokenizer", None), "pad_token_id", None)
    if pad is None or "hook_embed" not in model.hook_dict:
        return None
    W_E = model.W_E
    return W_E[pad].detach() if 0 <= pad < W_E.shape[0] else None


def trailing_padding(
    embedded: Float[Tensor, "batch pos d_model"], pad: Float[Tensor, " d_model"]
) -> Bool[Tensor, "batch pos"]:
    """The run of pad tokens at the end of each row, if any.

    >>> pad, word = torch.zeros(2), torch.ones(2)
    >>> trailing_padding(torch.stack([pad, word, pad, pad])[None], pad).tolist()
    [[False, False, True, True]]
    """
    is_pad = (embedded == pad.to(embedded)).all(-1)
    return is_pad.flip(-1).long().cumprod(-1).flip(-1).bool()
