"""Whether a model predicts the next token at all, found by running it."""

from __future__ import annotations

from typing import Any

import torch

from tl_geometry.data import Batch
from tl_geometry.evaluation.prefix import forward_logits
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.dropout import active_dropout

__all__ = ["check_next_token_model"]

_TOKENS = 12
_TOLERANCE = 1e-2


@torch.no_grad()
def check_next_token_model(model: Any, batch: Batch) -> None:
    """Refuse a model whose logits are no predictions of the next token.

    >>> check_next_token_model(gpt2, batch)
    >>> check_next_token_model(bert, batch)
    Traceback (most recent call last):
    ValueError: model: predictions of HookedEncoder depend on later tokens, ...

    The first tokens of a document run twice, with another last token the second time: logits before
    it must stay as they are.

    Raises:
        ValueError: an encoder-decoder, a model without an unembedding or with attention to later
            tokens, active dropout.
    """
    name = type(model).__name__
    labels = [site.layer for site in attention_sites(model)]
    if any(isinstance(label, str) and label.startswith("decoder") for label in labels):
        raise ValueError(
            f"model: {name} is an encoder-decoder, whose loss needs the decoder's tokens too; "
            "evaluations run on models that read and predict one sequence"
        )
    dropped = active_dropout(model)
    if dropped is not None:
        raise ValueError(f"dropout is active ({dropped}): call model.eval() first")
    tokens = batch.tokens[:1][batch.attention_mask[:1]][None, :_TOKENS]
    mask = torch.ones_like(tokens, dtype=torch.bool)
    changed = tokens.clone()
    changed[0, -1] = tokens[0, 0] if tokens[0, 0] != tokens[0, -1] else (tokens[0, 0] == 0).long()
    logits, other = (forward_logits(model, Batch(row, mask, (0,))) for row in (tokens, changed))
    vocabulary = getattr(model.cfg, "d_vocab", 0)
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape or logits.shape[2] < vocabulary:
        raise ValueError(
            f"model: {name} gives an output of shape {tuple(logits.shape)} instead of logits over "
            f"{vocabulary} tokens: it has no unembedding, so there is no loss of the next token"
        )
    size = logits.abs().max()
    if bool((logits - other)[:, :-1].abs().max() > _TOLERANCE * size):
        raise ValueError(
            f"model: predictions of {name} depend on later tokens, so it has no loss of the next "
            "token; evaluations need causal attention"
        )
