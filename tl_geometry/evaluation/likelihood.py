"""Negative log-likelihood of the real tokens of each document."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

__all__ = ["LogitsAt", "nll_of_targets", "nll_per_document"]

LogitsAt: TypeAlias = Callable[[Tensor], Tensor]
"""Logits (``position vocab``) at some positions of the flattened ``batch pos``."""

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
    flat = logits.detach().reshape(-1, logits.shape[-1])
    return nll_of_targets(
        lambda positions: flat[positions.to(flat.device)], logits.shape[-1], tokens, attention_mask
    )


def nll_of_targets(
    logits_at: LogitsAt,
    vocab: int,
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Bool[Tensor, "batch pos"] | Int[Tensor, "batch pos"],
    *,
    at_once: int = CHUNK_ELEMENTS,
) -> tuple[Float64[Tensor, " batch"], Int64[Tensor, " batch"]]:
    """The same from a function that gives the logits piece by piece, so that they need not exist all at once.

    >>> nll_of_targets(lambda positions: torch.zeros(len(positions), 8), 8, tokens, attention_mask)

    Args:
        at_once: how many logits to ask for at a time; products of matrices want more than sums do.
    """
    real = attention_mask != 0
    batch, length = real.shape
    position = torch.arange(length, device=real.device)
    latest = torch.where(real, position, -1).cummax(-1).values  # the last real token up to here
    before = torch.nn.functional.pad(latest, (1, -1), value=-1)
    is_target = real & (before >= 0)
    row, column = is_target.nonzero(as_tuple=True)
    predictor = row * length + before[row, column]
    nll = _nll(logits_at, vocab, predictor, tokens[row, column], at_once)
    total = torch.zeros(batch, dtype=torch.float64).index_add(0, row.cpu(), nll)
    return total, is_target.sum(-1).cpu()


def _nll(
    logits_at: LogitsAt,
    vocab: int,
    predictor: Int64[Tensor, " target"],
    target: Int[Tensor, " target"],
    at_once: int,
) -> Float64[Tensor, " target"]:
    """-log p of each target at its predictor, a position in the flattened ``batch pos``."""
    step, chunk = (max(1, elements // vocab) for elements in (at_once, CHUNK_ELEMENTS))
    found = [torch.zeros(0)]
    for start in range(0, len(target), step):
        logits = logits_at(predictor[start : start + step])
        wanted = target[start : start + step].to(logits.device, torch.int64)
        for rows, right in zip(torch.split(logits, chunk), torch.split(wanted, chunk), strict=True):
            wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
            found.append(torch.nn.functional.cross_entropy(wide, right, reduction="none"))
    return torch.cat([piece.cpu().double() for piece in found])
