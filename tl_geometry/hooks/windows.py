"""Sliding windows, read from the live attention module of one block."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["attention_chunk", "sliding_window"]


def attention_chunk(module: nn.Module) -> int | None:
    """Length of the chunks that a layer attends in (Llama 4): a query sees the earlier keys of its own chunk only."""
    inner = getattr(module, "original_component", None)
    config = getattr(inner, "config", None)
    types, layer = getattr(config, "layer_types", None), getattr(inner, "layer_idx", None)
    if types is None or not isinstance(layer, int) or layer >= len(types):
        return None
    return (
        _positive(getattr(config, "attention_chunk_size", None))
        if "chunk" in types[layer]
        else None
    )


def sliding_window(module: nn.Module) -> int | None:
    """Width of the sliding window of an attention module: query i sees keys i-w+1 .. i.

    >>> sliding_window(model.blocks[0].attn)      # Mistral, Gemma, GPT-Neo local layers
    4096

    The model's configuration as TransformerLens translates it is not asked, since it does not know
    which layers are local. Read instead: the layer's entry in `layer_types`, the module's own
    `sliding_window`, the banded mask of older HookedTransformers, or `attn_type`.
    None means that every earlier key is visible.
    """
    inner = getattr(module, "original_component", None)
    if isinstance(inner, nn.Module):
        return _of_hugging_face(inner)
    return _of_hooked_transformer(module)


def _of_hooked_transformer(module: nn.Module) -> int | None:
    mask = getattr(module, "mask", None)
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[-1] > 0:
        visible = int(mask[-1].sum())
        return visible if visible < mask.shape[-1] else None
    if getattr(module, "attn_type", "global") != "local":
        return None
    return _positive(getattr(getattr(module, "cfg", None), "window_size", None))


def _of_hugging_face(module: nn.Module) -> int | None:
    module = getattr(
        module, "attention", module
    )  # GPT-Neo keeps its attention one level further down
    config = getattr(module, "config", None)
    kind = getattr(module, "attention_type", None)
    if kind in ("local", "global"):
        return _positive(getattr(config, "window_size", None)) if kind == "local" else None
    types = getattr(config, "layer_types", None)
    layer = getattr(module, "layer_idx", None)
    if types is not None and isinstance(layer, int) and layer < len(types):
        if "sliding" not in types[layer]:
            return None  # some modules keep a `sliding_window` that this layer does not use
    elif getattr(config, "use_sliding_window", True) is False:
        return None
    width = getattr(module, "sliding_window", None)
    return _positive(getattr(config, "sliding_window", None) if width is None else width)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
