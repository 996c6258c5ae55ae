"""Windows of different lengths put together into batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

__all__ = ["Batch", "Window", "by_length", "stack"]


@dataclass(frozen=True)
class Window:
    """One document of the statistics: its running index and its tokens, bos included."""

    document: int
    tokens: Int64[Tensor, " pos"]


@dataclass(frozen=True)
class Batch:
    """Documents that run through the model together.

    `attention_mask` is True on real tokens. `documents` holds the running index of each row: a
    row is one window, and a window is one document of the statistics.
    """

    tokens: Int64[Tensor, "batch pos"]
    attention_mask: Bool[Tensor, "batch pos"]
    documents: tuple[int, ...]


def stack(windows: Sequence[Window], padding_id: int) -> Batch:
    """Put windows into one batch, shorter ones padded on the right.

    Example: windows of 3 and 2 tokens give ``attention_mask == [[1, 1, 1], [1, 1, 0]]``.
    """
    shape = (len(windows), max(len(window.tokens) for window in windows))
    tokens = torch.full(shape, padding_id, device=windows[0].tokens.device)
    mask = torch.zeros(shape, dtype=torch.bool, device=tokens.device)
    for row, window in enumerate(windows):
        tokens[row, : len(window.tokens)] = window.tokens
        mask[row, : len(window.tokens)] = True
    return Batch(tokens, mask, tuple(window.document for window in windows))


def by_length(
    windows: Sequence[Window], rows: Callable[[int], int], padding_id: int
) -> Iterator[Batch]:
    """Batch windows from long to short, so that those of similar length are padded together.

    Example: ``by_length(windows, lambda length: 1024 // length, padding_id=0)``

    ``rows(length)`` is the number of rows in a batch whose longest has that length.
    """
    ordered = sorted(windows, key=lambda window: -len(window.tokens))
    while ordered:
        size = rows(len(ordered[0].tokens))
        yield stack(ordered[:size], padding_id)
        ordered = ordered[size:]
