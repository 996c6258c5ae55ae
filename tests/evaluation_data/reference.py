"""Next-token losses and head removals computed slowly, one document at a time and without padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch


def pair_losses(logits: torch.Tensor, ids: Sequence[int]) -> list[float]:
    """-log p of every token but the first of one document, from its own logits (``pos vocab``)."""
    losses = []
    for place in range(1, len(ids)):
        row = logits[place - 1].double().tolist()
        peak = max(row)
        total = math.fsum(math.exp(x - peak) for x in row)
        losses.append(math.log(total) + peak - row[ids[place]])
    return losses


def padded_losses(
    logits: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor
) -> tuple[list[float], list[int]]:
    """Sum of the losses and number of targets of each row, from logits of the padded batch."""
    sums, counts = [], []
    for row in range(len(tokens)):
        places = [p for p in range(tokens.shape[1]) if mask[row, p]]
        losses = pair_losses(logits[row][places], [int(tokens[row, p]) for p in places])
        sums.append(math.fsum(losses))
        counts.append(len(losses))
    return sums, counts


def zero_heads(heads: Sequence[tuple[int, int]]) -> list[tuple[str, Any]]:
    """Hooks that set z of the named (layer, head) to zero."""
    hooks = []
    for layer in sorted({layer for layer, _ in heads}):
        gone = [head for at, head in heads if at == layer]

        def edit(z, hook, gone=gone):
            z = z.clone()
            for head in gone:
                z[:, :, head] = 0
            return z

        hooks.append((f"blocks.{layer}.attn.hook_z", edit))
    return hooks


@torch.no_grad()
def document_loss(model: Any, ids: torch.Tensor, hooks: Sequence[Any] = ()) -> float:
    """Sum of the losses of one document of real tokens under hooks."""
    logits = model.run_with_hooks(ids[None], return_type="logits", fwd_hooks=list(hooks))
    return math.fsum(pair_losses(logits[0], ids.tolist()))


def mean_loss(model: Any, documents: Sequence[torch.Tensor], hooks: Sequence[Any] = ()) -> float:
    """Nats per target over a corpus."""
    total = math.fsum(document_loss(model, ids, hooks) for ids in documents)
    return total / sum(len(ids) - 1 for ids in documents)


class BlockCounter:
    """How many blocks of a model run while it is in use as a context."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.count = 0

    def __enter__(self) -> BlockCounter:
        def add(module, arguments, output):
            self.count += 1

        self.handles = [block.register_forward_hook(add) for block in self.model.blocks]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()


def left_over_hooks(model: Any) -> int:
    """Hooks of TransformerLens that are still on the model."""
    points = {id(point): point for point in model.hook_dict.values()}
    return sum(len(point.fwd_hooks) + len(point.bwd_hooks) for point in points.values())


def corpus(
    lengths: Sequence[int] = (12, 9, 12, 7), side: str = "right", seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Random documents as padded tokens with their mask, and one by one without padding."""
    generator = torch.Generator().manual_seed(seed)
    documents = [torch.randint(4, 50, (n,), generator=generator) for n in lengths]
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, ids in enumerate(documents):
        place = slice(0, len(ids)) if side == "right" else slice(max(lengths) - len(ids), None)
        tokens[row, place] = ids
        mask[row, place] = 1
    return tokens, mask, documents
