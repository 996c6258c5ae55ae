"""Strategies: attention layers of every shape, mask, dtype and memory layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from literal.masks import causal, padded, token_mask, windowed
from literal.problems import softmax_pattern
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MASKS = (
    "none", "causal", "full", "window", "left", "right", "both", "gaps", "some",
    "heads", "empty heads", "documents without tokens",
)  # fmt: skip
LAYOUTS = ("contiguous", "transposed", "stepped", "inner", "grad", "parameter")
LONG = 20
"""Tokens of the longer layers: "auto" needs a key with 16 later queries."""


@dataclass(frozen=True, repr=False)
class Layer:
    """One attention layer as a measure takes it, with what else it may be given."""

    pattern: Tensor
    v: Tensor
    W_O: Tensor
    available: Tensor | None
    mask: Tensor
    """The mask in full, ``batch head query key``; without one, what the default must find."""
    b_V: Tensor  # noqa: N815
    norm_weight: Tensor

    def __repr__(self) -> str:
        shapes = {
            name: (tuple(x.shape), str(x.dtype).removeprefix("torch."))
            for name, x in vars(self).items()
            if x is not None
        }
        return f"Layer({shapes})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.pattern, self.v, self.W_O

    @property
    def square(self) -> bool:
        return self.pattern.shape[2] == self.pattern.shape[3]

    @property
    def eps(self) -> float:
        """The precision that measures work in."""
        wide = any(x.dtype == torch.float64 for x in self.tensors)
        return 2.0**-52 if wide else 2.0**-23

    @property
    def work_dtype(self) -> torch.dtype:
        return torch.float64 if self.eps == 2.0**-52 else torch.float32

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Layer:
        """The layer with every tensor replaced."""
        found = {name: x if x is None else change(name, x) for name, x in vars(self).items()}
        return Layer(**found)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def base_mask(kind: str, batch: int, heads: int, length: int, generator) -> Tensor:
    """A mask in full for a square layer."""
    everything = torch.ones(length, length, dtype=torch.bool)
    drawn = torch.rand(batch, heads, length, length, generator=generator) < 0.6
    diagonal = torch.eye(length, dtype=torch.bool)
    if kind in ("left", "right", "both") and length > 3:
        mask = padded(causal(length), token_mask(kind, batch, length))
    elif kind == "gaps" and length > 3:
        mask = padded(windowed(length, 3), token_mask("gaps", batch, length))
    elif kind == "window":
        mask = windowed(length, 2)[None]
    elif kind == "full":
        mask = everything[None]
    elif kind == "some":
        mask = drawn[:, 0]
    elif kind == "heads":
        mask = drawn | diagonal
    elif kind == "empty heads":
        mask = drawn & (torch.rand(batch, heads, length, 1, generator=generator) < 0.7)
    elif kind == "documents without tokens":
        mask = causal(length) & (torch.arange(batch) % 2 == 0)[:, None, None]
    else:
        mask = causal(length)[None]
    mask = mask if mask.ndim == 4 else mask[:, None]
    return mask.expand(batch, heads, length, length).clone()


def narrowed(mask: Tensor) -> Tensor:
    """The same mask with every axis that can be broadcast at length one, or left out."""
    for axis in range(2):
        if (mask == mask.narrow(axis, 0, 1)).all():
            mask = mask.narrow(axis, 0, 1)
    return mask[0, 0] if mask.shape[:2] == (1, 1) else mask[:, 0] if mask.shape[1] == 1 else mask


@st.composite
def layers(draw, dtypes=DTYPES, masks=MASKS, long=False, least=1) -> Layer:
    """A random layer; equal heads, documents or values are views of stride 0."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch, heads = draw(st.integers(1, 3)), kv_heads * group
    queries = LONG if long and draw(st.booleans()) else draw(st.integers(least, 7))
    kind = draw(st.sampled_from(masks))
    cross = kind in ("none", "full", "some", "empty heads") and draw(st.booleans())
    keys = draw(st.integers(least, 7)) if cross else queries
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    size = max(queries, keys)
    mask = base_mask(kind, batch, heads, size, generator)[:, :, :queries, :keys]
    if kind == "none" and keys != queries:
        mask = torch.ones_like(mask)
    dtype = draw(st.sampled_from(dtypes))
    shared = draw(st.sampled_from(("nothing", "heads", "documents", "queries", "values")))
    d_head, d_model = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    logits = draw(st.sampled_from((0.1, 1.0, 4.0))) * normal(generator, batch, heads, queries, keys)
    v, W_O = (
        normal(generator, batch, keys, kv_heads, d_head),
        normal(generator, heads, d_head, d_model),
    )
    pattern = softmax_pattern(logits, mask).to(dtype)
    if shared == "heads" and kind not in ("heads", "empty heads"):
        pattern = pattern[:, :1].expand(pattern.shape)
        W_O = W_O[:1].expand(W_O.shape)
    elif shared == "documents":
        v = v[:1].expand(v.shape)
    elif shared == "queries" and kind == "full":
        pattern = pattern[:, :, :1].expand(pattern.shape)
    elif shared == "values":
        v = v[:, :, :1].expand(v.shape)
    b_V = normal(generator, kv_heads, d_head)
    b_V = b_V.repeat_interleave(draw(st.sampled_from((1, group))), 0)  # some models repeat it
    available = None if kind == "none" else narrowed(mask) if draw(st.booleans()) else mask
    return Layer(
        pattern,
        v.to(dtype),
        W_O.to(dtype),
        available,
        mask,
        b_V.to(dtype),
        normal(generator, d_model).to(dtype),
    )


def laid_out(x: Tensor, layout: str, axis: int) -> Tensor:
    """The same numbers at other places of the memory, or as a leaf of autograd."""
    axis %= max(x.ndim, 1)
    if layout == "transposed":
        return x.transpose(axis, -1).contiguous().transpose(axis, -1)
    if layout == "stepped":
        return x.repeat_interleave(3, axis)[(slice(None),) * axis + (slice(1, None, 3),)]
    if layout == "inner":
        edge = torch.ones_like(x.narrow(axis, 0, 1))
        return torch.cat([edge, x, edge], axis).narrow(axis, 1, x.shape[axis])
    if layout == "grad" and x.is_floating_point():
        return x.clone().requires_grad_() * 1
    if layout == "parameter" and x.is_floating_point():
        return torch.nn.Parameter(x.clone())
    return x.clone(memory_format=torch.contiguous_format)


@st.composite
def layouts(draw) -> Callable[[str, Tensor], Tensor]:
    """A function that lays out each tensor of a layer in its own way."""
    chosen = {
        name: (draw(st.sampled_from(LAYOUTS)), draw(st.integers(0, 3)))
        for name in ("pattern", "v", "W_O", "available", "b_V", "norm_weight", "x", "mask")
    }
    return lambda name, x: laid_out(x, *chosen.get(name, ("contiguous", 0)))


def integer_likes(value: int) -> st.SearchStrategy[Any]:
    """One integer in the types that people have it in."""
    types = (int, np.int64, np.int32, np.uint8, torch.tensor)
    return st.sampled_from([make(value) for make in types])


@st.composite
def sinks(draw, layer: Layer, *, several: bool = True) -> Any:
    """Every way to name the sinks of a layer; their literal form is the same object."""
    batch, heads, _, keys = layer.pattern.shape
    kinds = ["first", "auto", "one"] if several else ["first", "one"]
    kind = draw(st.sampled_from([*kinds, "many", "mask", "head mask"] if several else kinds))
    tokens = int(layer.mask.any(2).any(1).sum(-1).min())
    if kind in ("one", "many") and tokens == 0:
        return "first"
    if kind in ("one", "many"):
        places = [draw(st.integers(0, tokens - 1)) for _ in range(1 + 2 * (kind == "many"))]
        if kind == "one":
            return draw(integer_likes(places[0]))
        return draw(st.sampled_from([places, tuple(places), torch.tensor(places)]))
    if kind in ("mask", "head mask"):
        shape = (batch, keys) if kind == "mask" else (batch, heads, keys)
        generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
        return torch.rand(shape, generator=generator) < 0.4
    return kind


def literal_sink(sink: Any, layer: Layer) -> Any:
    """The sinks in a form that the slow references take: a mask, a word or Python integers."""
    if isinstance(sink, Tensor) and sink.dtype == torch.bool:
        real = layer.mask.any(2).any(1)
        return sink & (real if sink.ndim == 2 else real[:, None])
    if isinstance(sink, str):
        return sink
    if isinstance(sink, (list, tuple)) or (isinstance(sink, Tensor) and sink.ndim):
        return [int(k) for k in sink]
    return int(sink)
