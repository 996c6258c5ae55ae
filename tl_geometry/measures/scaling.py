"""Lengths whose squares neither overflow nor underflow: every vector is squared at a scale of order one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_geometry.measures.devices import no_autocast


def work_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 where any input is float64, else float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


_Measure = TypeVar("_Measure", bound=Callable[..., Any])


def full_precision(measure: _Measure) -> _Measure:
    """Let a measure of a pattern compute in its working precision inside an autocast region too."""

    @wraps(measure)
    def run(pattern: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(pattern, Tensor):
            raise TypeError(f"pattern must be a torch.Tensor, got {type(pattern).__name__}")
        with no_autocast(pattern.device):
            return measure(pattern, *args, **kwargs)

    return cast(_Measure, run)


def power_of_two(
    x: Tensor, dim: int | tuple[int, ...], dtype: torch.dtype | None = None
) -> Int[Tensor, "..."]:
    """Exponents e such that x / 2^e is of order one along ``dim`` (kept); 0 for zeros and non-finite values.

    2^e and 2^-e are normal numbers of ``dtype``, by default that of ``x``.
    """
    limit = 1 - math.frexp(torch.finfo(dtype or x.dtype).tiny)[1]  # 126 of float32, 1022 of float64
    peak = x.detach().abs().amax(dim=dim, keepdim=True)
    if peak.dtype != torch.float32:
        exponent = torch.frexp(peak).exponent
        return torch.where(torch.isfinite(peak), exponent, 0).clamp(-limit, limit)
    # What frexp says, read off the bits; the product takes out zeros and what is not finite.
    bits = peak.view(torch.int32) >> 23
    return (bits - 126).clamp_(-limit, limit).mul_((peak > 0) & (bits < 255))


def scale(x: Float[Tensor, "..."], exponent: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Multiply by 2^exponent, exactly (``torch.ldexp`` does the same but loses the gradient)."""
    return x * torch.ldexp(torch.ones_like(exponent, dtype=x.dtype), exponent)


def scaled_length(x: Float[Tensor, "..."], exponent: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The length x 2^exponent; NaN where it is longer than the data type can say."""
    found = scale(x, exponent)
    return found.masked_fill(found.isinf(), torch.nan)


def safe_norm(x: Float[Tensor, "... d"]) -> Float[Tensor, "..."]:
    """Euclidean length whose squares neither overflow nor underflow."""
    exponent = power_of_two(x, -1)
    length = torch.linalg.vector_norm(scale(x, -exponent), dim=-1)
    return scale(length, exponent.squeeze(-1))


def over_square(x: Float[Tensor, "... d"]) -> tuple[Float[Tensor, "... d"], Float[Tensor, "..."]]:
    """The vectors x / |x|^2 and lengths |x|, computed at a scale of order one; a zero vector gives zeros."""
    exponent = power_of_two(x, -1)
    scaled = scale(x, -exponent)
    square = scaled.square().sum(-1, keepdim=True)
    zero = square == 0
    safe = torch.where(zero, 1, square)
    norm = torch.where(zero, 0, scale(safe.sqrt(), exponent))
    return scale(scaled / safe, -exponent), norm.squeeze(-1)


def sign_vector(n: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " n"]:
    """A fixed vector of n random signs: a direction that no real vector happens to be orthogonal to."""
    # Multiplicative hashing, on the device itself, so that nothing is copied from the host.
    mixed = (torch.arange(4, n + 4, device=device) * 2_654_435_761) % 2**32
    mixed = ((mixed ^ (mixed >> 15)) * 2_246_822_519) % 2**32
    return ((mixed >> 8) % 2 * 2 - 1).to(dtype)
