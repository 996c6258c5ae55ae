"""Runs that begin in the middle: the blocks before an edit need not be computed again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tl_geometry.data import Batch
from tl_geometry.hooks.arguments import mask_argument
from tl_geometry.hooks.entries import FwdHook

__all__ = ["Prefix", "can_start_at_layer", "clean_prefix", "forward_logits"]

TOLERANCE = 1e-5
"""Largest difference of logits, relative to the largest logit, between a resumed and a full forward."""


@dataclass(frozen=True)
class Prefix:
    """An unedited forward of one batch: its logits, and the residual stream before some blocks."""

    logits: Float[Tensor, "batch pos vocab"]
    residuals: dict[int, Float[Tensor, "batch pos d_model"]]


def forward_logits(
    model: Any,
    batch: Batch,
    hooks: Sequence[FwdHook] = (),
    *,
    start: tuple[int, Tensor] | None = None,
) -> Float[Tensor, "batch pos vocab"]:
    """Logits of one batch under hooks, which are gone afterwards.

    Args:
        start: a block's number and the residual stream before it, to begin there.
    """
    named: dict[str, Any] = {mask_argument(model): batch.attention_mask.long()}
    first = batch.tokens
    if start is not None:
        named["start_at_layer"], first = start
    logits: Tensor = model.run_with_hooks(
        first, return_type="logits", fwd_hooks=list(hooks), **named
    )
    return logits


def can_start_at_layer(model: Any) -> bool:
    """Whether a forward may begin at a block and saves the blocks before it.

    A TransformerBridge refuses ``start_at_layer`` or, later, runs every block all the same.
    """
    takes = "start_at_layer" in inspect.signature(model.forward).parameters
    return takes and not hasattr(model, "original_model") and _name(0) in model.hook_dict


def clean_prefix(model: Any, batch: Batch, blocks: Sequence[int]) -> Prefix:
    """Run a batch once as it is, and keep the residual stream before the given blocks.

    >>> prefix = clean_prefix(model, batch, [1, 2])
    >>> forward_logits(model, batch, hooks, start=(2, prefix.residuals[2]))
    """
    residuals: dict[int, Tensor] = {}
    hooks: list[FwdHook] = [
        (_name(block), partial(_keep, residuals=residuals, block=block)) for block in blocks
    ]
    return Prefix(forward_logits(model, batch, hooks), residuals)


def reproduces(model: Any, batch: Batch, prefix: Prefix, block: int) -> bool:
    """Whether a forward from a block on gives the logits of the full forward, where tokens are real."""
    resumed = forward_logits(model, batch, start=(block, prefix.residuals[block]))
    real = batch.attention_mask.to(resumed.device)
    full, difference = prefix.logits[real], (resumed - prefix.logits)[real]
    return bool(difference.abs().max() <= TOLERANCE * full.abs().max())


def _name(block: int) -> str:
    return f"blocks.{block}.hook_resid_pre"


def _keep(residual: Tensor, hook: Any, *, residuals: dict[int, Tensor], block: int) -> None:  # noqa: ARG001
    residuals[block] = residual.detach()
