"""Inputs for the doctor's short forwards: a few real tokens spread over the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["probe_arguments"]

BATCH = 2
LENGTH = 12

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def probe_arguments(model: Any, inputs: Any = None) -> Arguments:
    """Positional and keyword arguments for `model.run_with_hooks`.

    >>> args, kwargs = probe_arguments(model)                       # two rows of twelve tokens
    >>> args, kwargs = probe_arguments(model, {"input_ids": ids})   # what the caller gives

    `inputs` may be what the model's forward takes first (a token tensor, a string), or a mapping of
    keyword arguments.
    """
    if isinstance(inputs, Mapping):
        named = dict(inputs)
        first = next((named.pop(key) for key in ("input", "input_ids") if key in named), None)
        if first is None:
            first = named.get("pixel_values", named.get("input_values"))
        return (first,), named
    if inputs is not None:
        return (inputs,), {}
    if _wants(model, "is_visual_model"):
        return (_pixels(model),), {}
    if _wants(model, "is_audio_model"):
        raise ValueError(_cannot_build(model, "an audio model"))
    tokens = _tokens(model)
    if _is_encoder_decoder(model):
        return (tokens,), {"decoder_input": tokens.flip(0)}
    return (tokens,), {}


def _wants(model: Any, flag: str) -> bool:
    return bool(getattr(getattr(model, "cfg", None), flag, False))


def _is_encoder_decoder(model: Any) -> bool:
    config = getattr(getattr(model, "original_model", None), "config", None)
    if config is not None:
        return bool(getattr(config, "is_encoder_decoder", False))
    return hasattr(model, "encoder") and hasattr(model, "decoder")


def _tokens(model: Any) -> Int[Tensor, "batch pos"]:
    vocabulary = getattr(getattr(model, "cfg", None), "d_vocab", None)
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise ValueError(_cannot_build(model, "a model without a vocabulary"))
    special = _special_ids(model)
    usable = torch.tensor([i for i in _spread(vocabulary, 8 * BATCH * LENGTH) if i not in special])
    if not len(usable):
        usable = torch.arange(vocabulary)
    length = min(LENGTH, int(getattr(model.cfg, "n_ctx", None) or LENGTH))
    chosen = torch.tensor(_spread(len(usable), BATCH * length)) % len(usable)
    order = (
        torch.arange(BATCH * length).view(length, BATCH).T
    )  # rows interleave, so neighbours are far apart
    return usable[chosen][order].to(_device(model)).contiguous()


def _spread(total: int, count: int) -> list[int]:
    """About `count` numbers below `total`, evenly spread."""
    if total <= count:
        return [i % total for i in range(count)] if total < count else list(range(total))
    return [int((i + 0.5) * total / count) for i in range(count)]


def _special_ids(model: Any) -> set[int]:
    """Ids of pad, bos, image and similar tokens, from the tokenizer and the Hugging Face config."""
    ids: set[int] = set(getattr(getattr(model, "tokenizer", None), "all_special_ids", None) or ())
    config = getattr(getattr(model, "original_model", None), "config", None)
    for name, value in vars(config).items() if config is not None else ():
        if name.endswith(("_token_id", "_token_index")):
            ids.update(
                v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)
            )
    return ids


def _pixels(model: Any) -> Tensor:
    config = getattr(getattr(model, "original_model", None), "config", None)
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if not isinstance(size, int) or not isinstance(channels, int):
        raise ValueError(_cannot_build(model, "this vision model"))
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(BATCH, channels, size, size, generator=generator)
    parameter = next(model.original_model.parameters())
    return pixels.to(parameter.device, parameter.dtype)


def _device(model: Any) -> torch.device:
    return torch.device(getattr(getattr(model, "cfg", None), "device", None) or "cpu")


def _cannot_build(model: Any, what: str) -> str:
    return (
        f"inputs: doctor can't make up inputs for {what} ({type(model).__name__}); "
        "give inputs=..., what model.forward takes first or a dict of its arguments"
    )
