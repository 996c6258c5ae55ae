"""Random attention rows in which equal weights, equal values and empty ones are common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings, strategies as st

from .masks import causal, padded, windowed
from .problems import Problem, softmax_pattern

profile = settings(deadline=None, derandomize=True, max_examples=60)

ATTENTION = ("softmax", "levels", "uniform", "zeros", "sharp")
VALUES = ("normal", "duplicates", "some zero", "permuted", "identical", "small sink", "line")
MASKS = ("causal", "full", "window", "rectangular", "random", "heads", "padding")
EPS = {torch.float64: 2.0**-52}


def eps_of(dtype: torch.dtype) -> float:
    """The precision that measures work in: float32 unless everything is float64."""
    return EPS.get(dtype, 2.0**-23)


@dataclass(frozen=True)
class Rows:
    """A layer and what it was made of."""

    made: Problem
    kinds: tuple[str, str, str]
    scale: float

    @property
    def eps(self) -> float:
        return eps_of(self.made.pattern.dtype)


def attention(kind: str, mask: torch.Tensor, shape, generator) -> torch.Tensor:
    """Rows over the available keys; ``levels`` have at most four different weights each."""
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "levels":
        logits = torch.randint(4, shape, generator=generator) * 0.5
    elif kind == "uniform":
        logits = 0 * logits
    elif kind == "sharp":
        logits = 6 * logits  # weights down to 1e-15: their squares are still normal numbers
    pattern = softmax_pattern(logits.double(), mask)
    if kind == "zeros":
        pattern = pattern * (torch.rand(shape, generator=generator) < 0.5)
    return pattern


def values(kind: str, shape, generator) -> torch.Tensor:
    """``batch key kv_head d_head``."""
    batch, keys, heads = shape[:3]
    v = torch.randn(shape, generator=generator, dtype=torch.float64)
    some = torch.rand((batch, keys, heads, 1), generator=generator) < 0.4
    if kind == "duplicates":
        v = v[:, torch.randint(min(keys, 3), (keys,), generator=generator)]
    elif kind == "some zero":
        v = torch.where(some, 0.0, v)
    elif kind == "permuted":  # many equal lengths and equal distances of different vectors
        v = torch.randint(-1, 2, shape, generator=generator).double()
    elif kind == "identical":
        v = v[:, :1].expand(shape).clone()
    elif kind == "small sink":
        v = 0.3 * v + 1
        v[:, 0] = -0.2 + 0.02 * v[:, 0]
    elif kind == "line":
        v = v[..., :1].expand(shape).clone()
    return v


@st.composite
def layers(
    draw,
    dtypes=(torch.float64,),
    attentions=ATTENTION,
    kinds=VALUES,
    masks=MASKS,
    exponents=(0, 0, -60, 60),
    longest=10,
) -> Rows:
    """A layer under a mask of any kind; values are scaled by a power of two."""
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    sizes = st.sampled_from((longest, longest - 2, 6, 4, 2))
    batch, queries = draw(st.integers(1, 2)), draw(sizes)
    mask_kind = draw(st.sampled_from(masks))
    keys = draw(sizes) if mask_kind == "rectangular" else queries
    heads, seed = kv_heads * group, draw(st.integers(0, 2**16))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(seed)
    everything = torch.ones(batch, queries, keys, dtype=torch.bool)
    mask = everything
    if mask_kind == "causal":
        mask = causal(queries)[None]
    elif mask_kind == "window":
        mask = windowed(queries, 4)[None]
    elif mask_kind == "random":
        mask = torch.rand((batch, queries, keys), generator=generator) < 0.7
    elif mask_kind == "heads":
        drawn = torch.rand((batch, heads, queries, keys), generator=generator) < 0.7
        mask = drawn | ~drawn.any(-1, keepdim=True)
    elif mask_kind == "padding":
        tokens = torch.rand((batch, queries), generator=generator) < 0.8
        mask = padded(draw(st.sampled_from([causal(queries), everything[0]])), tokens)
    kind, attended = draw(st.sampled_from(kinds)), draw(st.sampled_from(attentions))
    d_head = draw(st.sampled_from([1, 2, 3, 5, 16]))
    v = values(kind, (batch, keys, kv_heads, d_head), generator)
    pattern = attention(attended, mask, (batch, heads, queries, keys), generator)
    W_O = torch.randn(heads, d_head, d_head + 2, generator=generator, dtype=torch.float64)
    scale = 1.0 if dtype == torch.float16 else 2.0 ** draw(st.sampled_from(exponents))
    made = Problem(pattern, v, W_O, mask).to(dtype)
    made = Problem(made.pattern, made.v * scale, made.W_O, mask)
    return Rows(made, (mask_kind, attended, kind), scale)
