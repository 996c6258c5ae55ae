"""What a model can take: its context, its vocabulary, its padding token."""

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

__all__ = [
    "check_length",
    "check_takes_tokens",
    "check_vocabulary",
    "model_context",
    "padding_warning",
    "vocabulary_size",
]


def check_takes_tokens(model: Any) -> None:
    """Raise ValueError for a model of images or sound, which does not take token ids.

    Example: a bridge of ViT is refused, whatever the data.
    """
    config = getattr(model, "cfg", None)
    for flag, kind in (("is_visual_model", "images"), ("is_audio_model", "sound")):
        if getattr(config, flag, False) is True:
            raise ValueError(
                f"model: {type(model).__name__} is a model of {kind} and takes no tokens; run it "
                "yourself on its own inputs, with Probe.hooks()"
            )


def model_context(model: Any) -> int | None:
    """The largest number of positions the model takes, or None where it states none."""
    context = getattr(getattr(model, "cfg", None), "n_ctx", None)
    return context if isinstance(context, int) and context > 0 else None


def vocabulary_size(model: Any) -> int | None:
    """The number of token ids the model can embed, or None where it states none."""
    size = getattr(getattr(model, "cfg", None), "d_vocab", None)
    return size if isinstance(size, int) and size > 0 else None


def check_length(
    tokens: Int64[Tensor, "*batch pos"], n_ctx: int, context: int | None, name: str
) -> None:
    """Raise ValueError for rows longer than `n_ctx`, naming what would be right."""
    length = tokens.shape[-1]
    if length <= n_ctx:
        return
    given = f"{name}: token ids of shape {tuple(tokens.shape)} are longer than"
    if context is not None and length > context:
        raise ValueError(f"{given} the model's context of {context} tokens; cut them into rows")
    raise ValueError(f"{given} n_ctx={n_ctx}; pass n_ctx={length}, or cut them into rows")


def check_text(text: str) -> None:
    """Refuse half a surrogate pair, which no tokenizer takes.

    Raises: ValueError that shows where it stands.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 20) : error.start + 20]
        raise ValueError(
            f"a text holds half a surrogate pair at character {error.start} (in {around!r}): decode it anew, or "
            "leave it out"
        ) from error


def check_vocabulary(tokens: Int64[Tensor, "*batch pos"], model: Any, name: str) -> None:
    """Raise ValueError for an id that the model cannot embed, at padded positions too."""
    size = vocabulary_size(model)
    wrong = tokens < 0 if size is None else (tokens < 0) | (tokens >= size)
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        found = int(tokens[tuple(place)])
        valid = "at least 0" if size is None else f"between 0 and {size - 1}"
        raise ValueError(
            f"{name}: token id {found} at index {place} is outside the vocabulary; ids must be "
            f"{valid}, at padded positions as well, since the model embeds them"
        )


def padding_warning(tokens: Int64[Tensor, "*batch pos"], model: Any, name: str) -> str | None:
    """Judge rows without a mask that begin or end with the tokenizer's padding token.

    Example: rows that end in two padding tokens raise, one ending in a single one gives a warning.

    One such token may be meant (the end or beginning of a text, where the tokenizer uses the same
    token for padding), so it is real and no more than a warning is returned. Two or more in a row
    are padding almost surely; counted as text they would distort every number: ValueError.
    """
    tokenizer = getattr(model, "tokenizer", None)
    number = getattr(tokenizer, "pad_token_id", None)
    if number is None or tokens.numel() == 0:
        return None
    is_pad = (tokens == number).to(torch.int64)
    runs = [run.cumprod(-1).sum(-1).max() for run in (is_pad, is_pad.flip(-1))]
    longest = int(max(runs))
    if longest >= 2:
        raise ValueError(
            f"{name}: a row of token ids begins or ends with {longest} padding tokens (id "
            f"{number}), but no mask was given; pass (tokens, attention_mask), with a mask of ones "
            "if these are real tokens"
        )
    other_uses = (getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id"))
    if longest == 1 and number not in other_uses:
        return (
            f"a row of token ids begins or ends with the padding token (id {number}); without a "
            "mask it counts as a real token"
        )
    return None
