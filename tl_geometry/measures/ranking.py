"""The N best keys of a row, ties to the lower key."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def top_keys(
    scores: Float[Tensor, "*#rows key"], keep: Bool[Tensor, "*#rows key"], n: int
) -> Int[Tensor, "*#rows n"]:
    """Positions of the ``n`` largest non-negative scores among the kept keys, best first, equal ones in key order.

    Rows with fewer kept keys are filled up with keys that are not kept.

    >>> top_keys(torch.tensor([0.2, 0.5, 0.2, 0.5]), torch.tensor([True, True, True, True]), 3).tolist()
    [1, 3, 0]
    """
    n_key = scores.shape[-1]
    if scores.dtype == torch.float64:
        ranked = torch.where(keep, scores, -1.0).sort(dim=-1, descending=True, stable=True)
        return ranked.indices[..., :n]
    # The bits of a non-negative float32 are ordered as the number is. With the key behind them
    # every entry is different, so that topk, which breaks ties as it likes, has none to break.
    bits = (scores + 0.0).contiguous().view(torch.int32).long() << 31  # + 0.0: no negative zero
    last_first = torch.arange(n_key - 1, -1, -1, device=scores.device)
    return torch.where(keep, bits | last_first, -1).topk(n, dim=-1).indices
