"""Availability masks and sinks, straight from their definitions, and the masks the tests use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def to_array(tensor) -> np.ndarray:
    """A float64 numpy copy (bool stays bool) of a tensor of any dtype."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach()
        tensor = tensor.numpy() if tensor.dtype == torch.bool else tensor.double().numpy()
    array = np.array(tensor)
    return array if array.dtype == bool else array.astype(np.float64)


def available_mask(pattern, available=None) -> np.ndarray:
    """The mask as a full array ``batch head query key``; the default looks above the diagonal."""
    pattern = to_array(pattern)
    batch, heads, queries, keys = pattern.shape
    full = np.zeros((batch, heads, queries, keys), dtype=bool)
    everything = queries != keys
    if available is None and not everything:
        for b in range(batch):
            for h in range(heads):
                for i in range(queries):
                    for j in range(i + 1, keys):
                        if pattern[b, h, i, j] != 0:
                            everything = True
    given = None
    if available is not None:
        given = to_array(available)
        if given.ndim < 4:  # no head axis: the same for every head
            given = given.reshape((1,) * (3 - given.ndim) + given.shape)[:, None]
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for j in range(keys):
                    if given is None:
                        full[b, h, i, j] = everything or j <= i
                    else:
                        at = zip((b, h, i, j), given.shape, strict=True)
                        full[b, h, i, j] = given[tuple(x if n > 1 else 0 for x, n in at)]
    return full


def real_queries(available: np.ndarray) -> np.ndarray:
    """``batch query``: a query is real if it may look at something."""
    return np.array([[rows[:, i].any() for i in range(rows.shape[1])] for rows in available])


def real_keys(available: np.ndarray) -> np.ndarray:
    """``batch key``: a key is real if some query may look at it."""
    return np.array([[rows[:, :, j].any() for j in range(rows.shape[2])] for rows in available])


def received_attention(pattern, available=None) -> np.ndarray:
    """``batch head key``: mean attention over the queries that may look at the key; else NaN."""
    mask = available_mask(pattern, available)
    pattern = to_array(pattern)
    batch, heads, queries, keys = pattern.shape
    received = np.full((batch, heads, keys), np.nan)
    for b in range(batch):
        for h in range(heads):
            for j in range(keys):
                weights = [pattern[b, h, i, j] for i in range(queries) if mask[b, h, i, j]]
                if weights:
                    received[b, h, j] = sum(weights) / len(weights)
    return received


def sink_mask(sink, pattern, available=None, epsilon=0.3, later=16) -> np.ndarray:
    """``batch head key``: which keys are sinks."""
    mask = available_mask(pattern, available)
    batch, heads, queries, keys = mask.shape
    sinks = np.zeros((batch, heads, keys), dtype=bool)
    if isinstance(sink, torch.Tensor):
        given = to_array(sink)
        for h in range(heads):
            sinks[:, h] = given if given.ndim == 2 else given[:, h]
        return sinks
    if isinstance(sink, str) and sink == "auto":
        received = received_attention(pattern, available)
        real = real_queries(mask)
        for b in range(batch):
            for h in range(heads):
                for j in range(keys):
                    followers = sum(bool(real[b, i]) for i in range(j + 1, queries))
                    sinks[b, h, j] = followers >= later and received[b, h, j] > epsilon
        return sinks
    if isinstance(sink, str):
        assert sink == "first"
        sink = 0
    places = list(sink) if isinstance(sink, Sequence) else [sink]
    for b, real in enumerate(real_keys(mask)):
        tokens = [j for j in range(keys) if real[j]]
        for place in places:
            if place < len(tokens):
                sinks[b, :, tokens[place]] = True
    return sinks


def causal(length: int) -> torch.Tensor:
    """``query key``: every query sees itself and what came before."""
    return torch.tensor([[j <= i for j in range(length)] for i in range(length)])


def windowed(length: int, window: int) -> torch.Tensor:
    """``query key``: query i sees the keys i - window + 1 .. i."""
    return torch.tensor([[i - window < j <= i for j in range(length)] for i in range(length)])


def padded(base: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """``batch query key``: the base mask between real tokens (``batch pos``, True where real)."""
    return base[None] & tokens[:, :, None] & tokens[:, None, :]


def token_mask(kind: str, batch: int, length: int) -> torch.Tensor:
    """``batch pos``: real tokens of a batch padded on the left, right, both sides or inside."""
    tokens = torch.ones(batch, length, dtype=torch.bool)
    for b in range(batch):
        if kind in ("left", "both"):
            tokens[b, : 1 + b % 2] = False
        if kind in ("right", "both"):
            tokens[b, length - 1 - (b + 1) % 2 :] = False
        if kind == "gaps":
            tokens[b, [1 + b % 2, length - 2]] = False
    return tokens


def head_masks(batch: int, heads: int, length: int) -> torch.Tensor:
    """``batch head query key``: another random mask for each head; real queries see themselves."""
    generator = torch.Generator().manual_seed(7)
    drawn = torch.rand(batch, heads, length, length, generator=generator) < 0.6
    real = padded(torch.ones(length, length, dtype=torch.bool), token_mask("left", batch, length))
    return (drawn | torch.eye(length, dtype=torch.bool)) & real[:, None]


def all_masks(batch: int, heads: int, length: int) -> dict[str, torch.Tensor]:
    """Masks of every kind and of every shape that may be broadcast."""
    lower, everything = causal(length), torch.ones(length, length, dtype=torch.bool)
    masks = {
        "causal: 1 q k": lower[None],
        "causal: q k": lower,
        "causal: 1 1 q k": lower[None, None],
        "full: b q k": everything.expand(batch, -1, -1),
        "window: 1 q k": windowed(length, 3)[None],
        "key padding: b 1 k": token_mask("right", batch, length)[:, None, :],
        "window, left: b q k": padded(windowed(length, 3), token_mask("left", batch, length)),
        "full, both: b q k": padded(everything, token_mask("both", batch, length)),
        "heads: b h q k": head_masks(batch, heads, length),
        "heads: 1 h q k": head_masks(1, heads, length),
        "heads: b 1 q k": head_masks(batch, 1, length),
    }
    for side in ("left", "right", "both", "gaps"):
        masks[f"causal, {side}: b q k"] = padded(lower, token_mask(side, batch, length))
    return masks
