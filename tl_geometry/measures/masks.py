"""Which entries of a pattern count, and which keys are sinks.

Every measure asks the same two questions before it computes anything, so they are answered once,
here: which (query, key) pairs are *available*, and which keys are attention *sinks*.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_geometry.measures.checks import check_bool
from tl_geometry.measures.devices import upload

SinkRule: TypeAlias = Literal["first", "auto"] | SupportsIndex | Sequence[SupportsIndex] | Tensor
"""How sinks are named: first real token, ordinal(s) among the real tokens, a mask, or found from the pattern."""

AUTO_EPSILON = 0.3
AUTO_MIN_LATER_QUERIES = 16


def resolve_available(
    pattern: Float[Tensor, "batch head query key"], available: Tensor | None
) -> Bool[Tensor, "batch head_or_1 query key"]:
    """Bring an ``available`` mask to four axes, or find the default for this pattern.

    The default is causal for a square pattern with nothing above its diagonal, else every key. It
    is never read off the weights below the diagonal: half precision rounds real weights to zero.

    >>> pattern = torch.eye(3).expand(1, 2, 3, 3)
    >>> resolve_available(pattern, None)[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]

    Raises:
        TypeError: ``available`` is not boolean.
        ValueError: ``available`` does not broadcast to the pattern.
    """
    batch, _, n_query, n_key = pattern.shape
    if available is None:
        mask = torch.ones(n_query, n_key, dtype=torch.bool, device=pattern.device)
        if n_query == n_key:
            above = _has_weight_above_diagonal(pattern.detach())
            mask = mask.tril() | above[:, None, None, None]
        return mask.expand(batch, 1, n_query, n_key)
    check_bool("available", available, "True where a query may use a key")
    if available.ndim == 4:
        full = available
    elif available.ndim in (2, 3):
        full = available.unsqueeze(-3)
    else:
        raise ValueError(_available_message(available, pattern))
    heads = full.shape[-3]
    try:
        return (
            upload(full, pattern.device)
            .expand(batch, heads, n_query, n_key)
            .expand(batch, pattern.shape[1] if heads != 1 else 1, n_query, n_key)
        )
    except RuntimeError as error:
        raise ValueError(_available_message(available, pattern)) from error


def _has_weight_above_diagonal(
    pattern: Float[Tensor, "batch head pos pos"],
) -> Bool[Tensor, " batch"]:
    """Look at the upper triangle only, in rectangles that need no copy."""
    n, step = pattern.shape[-1], 64
    largest = []
    for start in range(0, n, step):
        stop = min(start + step, n)
        corner = pattern[..., start:stop, start:stop].triu(1)
        largest.append(torch.linalg.vector_norm(corner, torch.inf, dim=(1, 2, 3)))
        if stop < n:
            beyond = pattern[..., start:stop, stop:]
            largest.append(torch.linalg.vector_norm(beyond, torch.inf, dim=(1, 2, 3)))
    return (torch.stack(largest) != 0).any(0)


def _available_message(available: Tensor, pattern: Tensor) -> str:
    return (
        f"available has shape {tuple(available.shape)}, which does not broadcast to batch query key or batch head "
        f"query key of pattern {tuple(pattern.shape)}"
    )


def attention_available(
    *,
    n_query: int,
    n_key: int,
    query_mask: Bool[Tensor, "batch query"] | None,
    key_mask: Bool[Tensor, "batch key"] | None,
    causal: bool,
    window: int | None,
    device: torch.device,
) -> Bool[Tensor, "batch_or_1 1 query key"]:
    """Build the available entries from what is known of a layer: padding, causality, sliding window.

    >>> keep = attention_available(n_query=3, n_key=3, query_mask=None, key_mask=None, causal=True, window=2,
    ...                            device=torch.device("cpu"))
    >>> keep[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    keep = torch.ones(1, 1, n_query, n_key, dtype=torch.bool, device=device)
    if causal:
        keep = keep.tril()
    if window is not None:
        keep = keep.triu(1 - window)
    if key_mask is not None:
        keep = keep & upload(key_mask, device)[:, None, None, :]
    if query_mask is not None:
        keep = keep & upload(query_mask, device)[:, None, :, None]
    return keep


def resolve_sinks(
    sink: SinkRule,
    available: Bool[Tensor, "batch head_or_1 query key"],
    pattern: Float[Tensor, "batch head query key"],
) -> Bool[Tensor, "batch sink_head key"]:
    """Mark the sink keys of each row of the batch.

    ``"first"`` is the first real token of each row; an int ``k`` (or several) the row's ``k``-th
    real token, so that padding changes nothing; a bool tensor ``batch key`` (or ``batch head key``)
    marks them directly; ``"auto"`` takes the keys with at least 16 later queries whose mean
    received attention exceeds 0.3 in that head.

    Raises:
        ValueError: an unknown rule, a position outside the sequence, or a mask of another shape.
    """
    real: Tensor = available.any(dim=-2).any(dim=1, keepdim=True)
    if isinstance(sink, Tensor) and sink.dtype == torch.bool:
        return _sinks_from_mask(sink, pattern, real)
    if isinstance(sink, str):
        if sink == "first":
            return _nth_real(real, (0,))
        if sink == "auto":
            wide = pattern if pattern.dtype == torch.float64 else pattern.float()
            received, later = received_attention(wide, available)
            return (received > AUTO_EPSILON) & (later >= AUTO_MIN_LATER_QUERIES)
        raise ValueError(
            f'sink must be "first", "auto", an int, ints or a bool tensor, got {sink!r}'
        )
    if isinstance(sink, Tensor) and (sink.is_floating_point() or sink.ndim > 1):
        raise ValueError(
            f"a sink tensor must be a bool mask (batch key) or a list of ints, got {sink.dtype} {tuple(sink.shape)}"
        )
    ordinals = sink_ordinals(sink)
    n_key = pattern.shape[-1]
    if not ordinals or any(not 0 <= k < n_key for k in ordinals):
        raise ValueError(
            f"sink names the tokens {ordinals}, but the sequence has the tokens 0 to {n_key - 1}"
        )
    return _nth_real(real, ordinals)


def mask_of(sink: SinkRule) -> Tensor | None:
    """The sinks' mask, where a rule is one; ordinals, tensors of them included, are numbers of the host."""
    return sink if isinstance(sink, Tensor) and sink.dtype == torch.bool else None


def sink_ordinals(sink: SupportsIndex | Sequence[SupportsIndex] | Tensor) -> tuple[int, ...]:
    """Ordinals of the sinks among the real tokens, from an int or several.

    Raises:
        TypeError: something that is no integer (True and False neither).
    """
    many = isinstance(sink, (Sequence, range)) or (isinstance(sink, Tensor) and sink.ndim > 0)
    given: tuple[Any, ...] = tuple(sink) if many else (sink,)  # type: ignore[arg-type]
    try:
        if any(isinstance(k, bool) for k in given):
            raise TypeError("a bool is no position")
        return tuple(index(k) for k in given)
    except TypeError as error:
        raise TypeError(
            f'sink must be "first", "auto", an int, ints or a bool mask, got {sink!r}'
        ) from error


def _nth_real(
    real: Bool[Tensor, "batch 1 key"], ordinals: Sequence[int]
) -> Bool[Tensor, "batch 1 key"]:
    rank: Int[Tensor, "batch 1 key"] = real.long().cumsum(-1) - 1
    chosen = torch.zeros_like(real)
    for k in ordinals:
        chosen = chosen | (rank == k)
    return chosen & real


def _sinks_from_mask(sink: Tensor, pattern: Tensor, real: Tensor) -> Tensor:
    batch, n_head, _, n_key = pattern.shape
    if tuple(sink.shape) not in {(batch, n_key), (batch, n_head, n_key), (batch, 1, n_key)}:
        raise ValueError(
            f"sink has shape {tuple(sink.shape)}; a sink mask must be batch key {(batch, n_key)} or batch head key "
            f"{(batch, n_head, n_key)}"
        )
    mask = sink if sink.ndim == 3 else sink[:, None, :]
    return upload(mask, pattern.device) & real


def received_attention(
    pattern: Float[Tensor, "batch head query key"],
    available: Bool[Tensor, "batch head_or_1 query key"],
) -> tuple[Float[Tensor, "batch head key"], Int[Tensor, "batch head_or_1 key"]]:
    """Mean attention that each key receives from the queries that can see it, and how many *other* queries those are.

    Source: Gu et al., arXiv 2410.10781. Keys that no query can see get NaN.
    """
    seen_by = available.sum(dim=-2)
    total = torch.where(available, pattern, 0).sum(dim=-2)
    received = torch.where(seen_by > 0, total / seen_by.clamp(min=1), torch.nan)
    if available.shape[-1] == available.shape[-2]:
        seen_by = seen_by - available.diagonal(dim1=-2, dim2=-1).long()
    return received, seen_by


def spread_tokens(real: Bool[Tensor, "batch pos"], n: int) -> Bool[Tensor, "batch pos"]:
    """Up to n evenly spaced real tokens of each document, its first included."""
    rank = real.cumsum(-1) - 1
    count = real.sum(-1, keepdim=True)
    # The k-th token is kept where k n / count passes a whole number.
    whole = (rank * n).div(count.clamp(min=1), rounding_mode="floor")
    before = ((rank - 1) * n).div(count.clamp(min=1), rounding_mode="floor")
    return real & ((count <= n) | (whole > before))
