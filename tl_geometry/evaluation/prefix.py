"""Runs that begin in the middle: the blocks before an edit need not be computed again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.data import Batch
from tl_geometry.evaluation.likelihood import LogitsAt
from tl_geometry.hooks.arguments import mask_argument
from tl_geometry.hooks.entries import FwdHook

__all__ = [
    "Prefix",
    "Readout",
    "can_start_at_layer",
    "clean_prefix",
    "ends_with_blocks",
    "forward_final",
    "forward_logits",
]

TOLERANCE = 1e-5
"""Largest difference of logits, relative to the largest logit, between a resumed and a full forward."""


@dataclass(frozen=True)
class Prefix:
    """An unedited forward of one batch: its logits, the residual stream before some blocks and behind the last."""

    logits: Float[Tensor, "batch pos vocab"]
    final: Float[Tensor, "batch pos d_model"]
    residuals: dict[int, Float[Tensor, "batch pos d_model"]]


class Readout:
    """The end of a HookedTransformer, final norm and unembedding, at the positions that are asked for.

    The model lays out its unembedding anew in each forward, which costs as much as several blocks;
    here that is done once, and logits that no target needs are not computed.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.weights = model.unembed.W_U.detach().T.contiguous()
        self.bias = model.unembed.b_U.detach()
        self.cap = float(getattr(model.cfg, "output_logits_soft_cap", 0) or 0)

    def __call__(self, final: Float[Tensor, "batch pos d_model"]) -> LogitsAt:
        """The logits of one forward, from the residual stream behind its last block."""
        norm = getattr(self.model, "ln_final", None)
        flat = (final if norm is None else norm(final)).flatten(0, 1)
        return partial(self._at, flat)

    def _at(self, flat: Tensor, positions: Tensor) -> Tensor:
        logits = torch.nn.functional.linear(
            flat[positions.to(flat.device)], self.weights, self.bias
        )
        return self.cap * torch.tanh(logits / self.cap) if self.cap > 0 else logits

    @property
    def vocab(self) -> int:
        """Number of logits."""
        return len(self.weights)


def forward_logits(
    model: Any,
    batch: Batch,
    hooks: Sequence[FwdHook] = (),
) -> Float[Tensor, "batch pos vocab"]:
    """Logits of one batch under hooks, which are gone afterwards."""
    named: dict[str, Any] = {mask_argument(model): batch.attention_mask.long()}
    logits: Tensor = model.run_with_hooks(
        batch.tokens, return_type="logits", fwd_hooks=list(hooks), **named
    )
    return logits


def forward_final(
    model: Any,
    batch: Batch,
    hooks: Sequence[FwdHook] = (),
    *,
    start: tuple[int, Tensor] | None = None,
) -> Float[Tensor, "batch pos d_model"]:
    """The residual stream behind the last block of a HookedTransformer, under hooks.

    Args:
        start: a block's number and the residual stream before it, to begin there.
    """
    named: dict[str, Any] = {mask_argument(model): batch.attention_mask.long()}
    first = batch.tokens
    if start is not None:
        named["start_at_layer"], first = start
    final: Tensor = model.run_with_hooks(
        first, stop_at_layer=model.cfg.n_layers, fwd_hooks=list(hooks), **named
    )
    return final


def can_start_at_layer(model: Any) -> bool:
    """Whether a forward may begin at a block and end behind the last, and saves the blocks before it.

    A TransformerBridge refuses ``start_at_layer`` or, later, runs every block all the same.
    """
    takes = {"start_at_layer", "stop_at_layer"} <= set(inspect.signature(model.forward).parameters)
    bridge = hasattr(model, "original_model")
    ends = hasattr(getattr(model, "unembed", None), "W_U")
    return takes and ends and not bridge and _before(1) in model.hook_dict


def ends_with_blocks(hooks: Sequence[FwdHook]) -> bool:
    """Whether all hooks are known to stand in front of the final norm and the unembedding."""
    return all(
        isinstance(name, str) and not name.startswith(("ln_final", "unembed")) for name, _ in hooks
    )


def clean_prefix(model: Any, batch: Batch, blocks: Sequence[int]) -> Prefix:
    """Run a batch once as it is, and keep the residual stream before the given blocks.

    >>> prefix = clean_prefix(model, batch, [1, 2])
    >>> forward_final(model, batch, hooks, start=(2, prefix.residuals[2]))
    """
    last = model.cfg.n_layers
    residuals: dict[int, Tensor] = {}
    hooks: list[FwdHook] = [
        (_before(block), partial(_keep, residuals=residuals, block=block))
        for block in (*blocks, last)
    ]
    logits = forward_logits(model, batch, hooks)
    return Prefix(logits, residuals.pop(last), residuals)


def reproduces(model: Any, batch: Batch, prefix: Prefix, readout: Readout, block: int) -> bool:
    """Whether a forward from a block on, and its readout, give the model's logits where tokens are real."""
    resumed = readout(forward_final(model, batch, start=(block, prefix.residuals[block])))
    real = batch.attention_mask.to(prefix.logits.device)
    full = prefix.logits[real]
    difference = resumed(real.flatten().nonzero().flatten()) - full
    return bool(difference.abs().max() <= TOLERANCE * full.abs().max())


def _before(block: int) -> str:
    """The end of the block before it: what its own first hook may do to the stream is done when it is run."""
    return f"blocks.{block - 1}.hook_resid_post"


def _keep(residual: Tensor, hook: Any, *, residuals: dict[int, Tensor], block: int) -> None:  # noqa: ARG001
    residuals[block] = residual.detach()
