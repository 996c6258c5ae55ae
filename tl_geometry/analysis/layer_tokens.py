"""The tokens that an attention layer reads, as vectors that differ from one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tl_geometry.data import Batch, BatchStream
from tl_geometry.data.bos import bos_id
from tl_geometry.data.limits import check_takes_tokens, model_context, vocabulary_size
from tl_geometry.hooks import AttentionSite
from tl_geometry.hooks.arguments import mask_argument
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.hooks.dropout import active_dropout
from tl_geometry.measures.halfspace import FEASIBLE_ABOVE

__all__ = ["LayerTokens", "check_runnable", "distinct_tokens", "read_layer", "vocabulary_rows"]

_BLOCK = 512  # rows of distances at a time


@dataclass(frozen=True)
class LayerTokens:
    """Tokens of which no two are equal, the sink first.

    Attributes:
        x: at mean squared length 1.
        length: root of their mean squared length before.
        repeated: how many were left out because an earlier one is the same.
    """

    x: Float[Tensor, "pos d_model"]
    length: float
    repeated: int


def check_runnable(model: Any, sites: Sequence[AttentionSite]) -> None:
    """Refuse a model whose activations on tokens alone do not stand for it.

    Raises:
        ValueError: dropout is active, or the model is an encoder-decoder or takes no tokens.
    """
    check_takes_tokens(model)
    if (dropped := active_dropout(model)) is not None:
        raise ValueError(f"dropout is active ({dropped}): call model.eval() first")
    if any(str(site.layer).startswith("decoder") for site in sites):
        raise ValueError(
            "the model is run on tokens alone, but an encoder-decoder needs the decoder's tokens too"
        )


def vocabulary_rows(model: Any, rows: int, length: int, seed: int) -> Int64[Tensor, "row pos"]:
    """Rows of distinct tokens from the whole vocabulary, each behind bos (id 0 where there is none).

    >>> vocabulary_rows(model, 4, 64, seed=0)

    Raises:
        ValueError: the model does not say how large its vocabulary is.
    """
    size = vocabulary_size(model)
    if size is None:
        raise ValueError("the model states no size of its vocabulary (cfg.d_vocab): give data")
    length = min(length, size, model_context(model) or length)
    first = bos_id(model) or 0
    others = torch.tensor([token for token in range(size) if token != first])
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(size - 1, generator=generator)[: length - 1] for _ in range(rows)]
    return torch.stack([torch.cat([torch.tensor([first]), others[row]]) for row in drawn])


@torch.no_grad()
def read_layer(model: Any, site: AttentionSite, stream: BatchStream) -> LayerTokens:
    """What a layer's attention reads, after its norm: the first window's first token, then all others.

    >>> read_layer(model, attention_sites(model)[0], token_batches(texts, model)).repeated

    First tokens of later windows are no others: they stand where the sink stands. Two vectors are
    equal if they are nearer than 2^-20 of the longest.

    Raises:
        ValueError: a token that is not finite.
    """
    windows: dict[int, Tensor] = {}
    for batch in stream:
        model.run_with_hooks(
            batch.tokens.to(site.device),
            return_type=None,
            fwd_hooks=capture_hooks(model, [site], lambda *_: None, partial(_keep, windows, batch)),
            **{mask_argument(model): batch.attention_mask.long().to(site.device)},
        )
    ordered = [windows[number] for number in sorted(windows)]
    x = torch.cat([ordered[0][:1], *(window[1:] for window in ordered)])
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            f"layer {site.layer} reads NaN or infinite values: look at the weights and the input, or try "
            "a wider dtype"
        )
    return distinct_tokens(x)


def _keep(
    windows: dict[int, Tensor],
    batch: Batch,
    site: AttentionSite,  # noqa: ARG001
    before: Tensor,  # noqa: ARG001
    after: Tensor,  # noqa: ARG001
    attended: Tensor,
) -> None:
    """Add the real tokens of each window, by its number."""
    rows = zip(batch.documents, attended.cpu().double(), batch.attention_mask.cpu(), strict=True)
    windows.update((number, x[real]) for number, x, real in rows)


def distinct_tokens(x: Float[Tensor, "pos d_model"]) -> LayerTokens:
    """Tokens without those that an earlier one equals, to within 2^-20 of the longest.

    >>> distinct_tokens(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])).repeated
    1
    """
    near = FEASIBLE_ABOVE * float(x.norm(dim=-1).max())
    repeated = torch.zeros(len(x), dtype=torch.bool)
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        distance = torch.cdist(block, x, compute_mode="donot_use_mm_for_euclid_dist")
        repeated[start : start + _BLOCK] = (distance <= near).tril(start - 1).any(-1)
    kept = x[~repeated]
    length = float(kept.square().sum(-1).mean().sqrt())
    return LayerTokens(kept / length, length, int(repeated.sum()))
