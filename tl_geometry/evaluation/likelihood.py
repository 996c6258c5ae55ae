"""Negative log-likelihood of the real tokens of each document."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

__all__ = ["nll_per_document"]

CHUNK_ELEMENTS = 2**22
"""Logits that are turned into log-probabilities at once; `batch pos vocab` is never copied."""


def nll_per_document(
    logits: Float[Tensor, "batch pos vocab"],
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Bool[Tensor, "batch pos"] | Int[Tensor, "batch pos"],
) -> tuple[Float64[Tensor, " batch"], Int64[Tensor, " batch"]]:
    """Sum of -log p over the targets of each row, and the number of targets.

    >>> logits, tokens = torch.zeros(1, 3, 8), torch.tensor([[1, 5, 7]])
    >>> nll, targets = nll_per_document(logits, tokens, torch.tensor([[1, 1, 0]]))
    >>> round(nll.item(), 4), targets.item()               # log 8, of the one target
    (2.0794, 1)

    Targets are the real tokens behind the first real token of the row; each is predicted by the
    real token before it. So neither padding nor the token that opens a document (bos) is ever a
    target, and no padding predicts one, on whichever side of the row it stands.

    Args:
        logits: of the full forward; half precision is widened to float32 piece by piece.
        attention_mask: non-zero at real tokens.

    Returns:
        Nats in float64, and counts; (0, 0) for a row of fewer than two real tokens. NaN logits give
        NaN.

    Raises:
        ValueError: shapes that do not fit.
    """
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape or tokens.shape != attention_mask.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} must be batch pos vocab, tokens {tuple(tokens.shape)} and "
            f"attention_mask {tuple(attention_mask.shape)} batch pos of the same size"
        )
    real = attention_mask != 0
    batch, length = real.shape
    position = torch.arange(length, device=real.device)
    latest = torch.where(real, position, -1).cummax(-1).values  # the last real token up to here
    before = torch.nn.functional.pad(latest, (1, -1), value=-1)
    is_target = real & (before >= 0)
    row, column = is_target.nonzero(as_tuple=True)
    predictor = row * length + before[row, column]
    nll = _nll(logits, predictor, tokens[row, column])
    total = torch.zeros(batch, dtype=torch.float64).index_add(0, row.cpu(), nll.cpu().double())
    return total, is_target.sum(-1).cpu()


def _nll(
    logits: Float[Tensor, "batch pos vocab"],
    predictor: Int64[Tensor, " target"],
    target: Int[Tensor, " target"],
) -> Float[Tensor, " target"]:
    """-log p of each target at its predictor, a position in the flattened ``batch pos``."""
    flat = logits.detach().reshape(-1, logits.shape[-1])
    dtype = torch.promote_types(logits.dtype, torch.float32)
    predictor, target = predictor.to(logits.device), target.to(logits.device, torch.int64)
    found = torch.empty(len(target), dtype=dtype, device=logits.device)
    step = max(1, CHUNK_ELEMENTS // logits.shape[-1])
    for start in range(0, len(target), step):
        chunk = slice(start, start + step)
        found[chunk] = torch.nn.functional.cross_entropy(
            flat[predictor[chunk]].to(dtype), target[chunk], reduction="none"
        )
    return found
