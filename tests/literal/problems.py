"""Random inputs for the measures, and a copy of the measures without run-time shape checks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

PACKAGE = "tl_geometry.measures"


@dataclass(frozen=True)
class Problem:
    """Tensors of one attention layer. Rows of padding queries are uniform over all keys."""

    pattern: torch.Tensor
    v: torch.Tensor
    W_O: torch.Tensor
    available: torch.Tensor | None

    def to(self, dtype: torch.dtype) -> Problem:
        return Problem(self.pattern.to(dtype), self.v.to(dtype), self.W_O.to(dtype), self.available)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.pattern, self.v, self.W_O


def softmax_pattern(logits: torch.Tensor, available: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the available keys; rows with no key at all get 1 / n_keys everywhere."""
    if available is None:
        return logits.softmax(-1)
    mask = available if available.ndim == 4 else available[..., None, :, :]
    mask = mask.broadcast_to(logits.shape)
    pattern = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.where(mask.any(-1, keepdim=True), pattern, 1 / logits.shape[-1])


def problem(
    *,
    available: torch.Tensor | None = None,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    queries: int = 6,
    keys: int | None = None,
    d_head: int = 3,
    d_model: int = 7,
    sharpness: float = 1.5,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Problem:
    """A random layer; all sizes differ, so that a swapped axis cannot go unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    keys = queries if keys is None else keys

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits = sharpness * normal(batch, heads, queries, keys)
    made = Problem(
        softmax_pattern(logits, available),
        normal(batch, keys, kv_heads, d_head),
        normal(heads, d_head, d_model),
        available,
    )
    return made.to(dtype)


@contextmanager
def without_shape_checks(name: str) -> Iterator[ModuleType]:
    """A fresh import of one module of the measures that no import hook has instrumented.

    With the jaxtyping import hook on, a wrong shape is caught before the package's own checks.
    What users see are the package's own messages, so those are tested on this copy.
    """
    root = importlib.import_module(PACKAGE.split(".")[0])
    importlib.import_module(name)
    kept = {key: module for key, module in sys.modules.items() if key.startswith(PACKAGE)}
    finders, parent = sys.meta_path[:], root.measures
    sys.meta_path[:] = [f for f in finders if not type(f).__module__.startswith("jaxtyping")]
    for key in kept:
        del sys.modules[key]
    try:
        yield importlib.import_module(name)
    finally:
        for key in [key for key in sys.modules if key.startswith(PACKAGE)]:
            del sys.modules[key]
        sys.modules.update(kept)
        sys.meta_path[:] = finders
        root.measures = parent


def assert_same(actual: torch.Tensor, expected, tolerance=1e-5) -> None:
    """Equal shape, equal NaN places, no infinity, and absolute differences within tolerance."""
    expected = np.asarray(expected, dtype=np.float64)
    found = actual.detach().double().numpy()
    assert found.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert not np.isinf(found).any()
    excess = np.nan_to_num(np.abs(found - expected) - tolerance)
    assert (excess <= 0).all(), f"off by {np.nanmax(np.abs(found - expected))}"


def row_tolerance(weights, mode: str, relative: float = 1e-5) -> np.ndarray:
    """relative * (1 + sum |c|) for each entry, the sum over what a row's weights sum to 1 over."""
    axis = -1 if mode == "intra" else (1, 3)
    return relative * (1 + np.nan_to_num(np.abs(weights)).sum(axis=axis, keepdims=True))
