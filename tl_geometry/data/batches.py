"""Windows of tokens in batches: the one form in which every analysis reads its data."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from tl_geometry.arguments import whole_number
from tl_geometry.data.bos import BosRule, bos_id, resolve_bos
from tl_geometry.data.items import Block, Row, TokenData, count_documents, read_items
from tl_geometry.data.limits import (
    check_length,
    check_takes_tokens,
    check_text,
    check_vocabulary,
    model_context,
    padding_warning,
    vocabulary_size,
)
from tl_geometry.data.stacking import Batch, Window, by_length, stack

__all__ = ["Batch", "BatchStream", "BosRule", "resolve_bos", "token_batches"]

TOKENS_PER_BATCH = 1024
LOOK_AHEAD = 64  # short windows held back so that those of similar length share a batch


class BatchStream(Iterable[Batch]):
    """Batches of one pass over the data, and what was counted on the way.

    Example::

        stream = token_batches(["A text.", "Another."], model, n_ctx=64)
        for batch in stream:
            model(batch.tokens, attention_mask=batch.attention_mask)
        stream.documents, stream.tokens, stream.skipped, stream.bos.rule

    After (and during) an iteration `documents` and `tokens` count the rows and the real tokens
    (bos included) handed out, `skipped` maps a reason to the number of documents left out,
    `warnings` lists what should be known about the result, `bos` is the decision about the bos
    token. `n_ctx` is the window in force. `total` is the number of documents where it is known
    beforehand (token ids, or a list of them), else None. Each iteration starts anew; over a generator there
    is only one.
    """

    def __init__(
        self,
        data: TokenData,
        model: Any,
        *,
        n_ctx: int = 512,
        batch_size: int | None = None,
        prepend_bos: bool | None = None,
        max_documents: int | None = None,
    ) -> None:
        check_takes_tokens(model)
        self._data = data
        self._model = model
        self._asked_bos = prepend_bos
        self._text_bos = resolve_bos(model, prepend_bos)
        self._batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        self._limit = (
            None if max_documents is None else whole_number("max_documents", max_documents, 1)
        )
        self._bos_id = bos_id(model) if self._text_bos.prepend else None
        # A window of text holds bos and at least one token, or two tokens.
        self.n_ctx = whole_number("n_ctx", n_ctx, 2)
        self._notes: list[str] = []
        context = model_context(model)
        if context is not None and self.n_ctx > context:
            self._notes.append(
                f"n_ctx={n_ctx} is more than the model's context: windows have {context} tokens"
            )
            self.n_ctx = context
        self.total = self._count_beforehand()
        self._start()

    def _count_beforehand(self) -> int | None:
        rows = count_documents(self._data)
        return rows if rows is None or self._limit is None else min(rows, self._limit)

    def _start(self) -> None:
        self.documents = 0
        self.tokens = 0
        self.skipped: dict[str, int] = {}
        self.warnings: list[str] = list(self._notes)
        self._taken = 0
        self._saw_text = False
        self._saw_ids = False

    @property
    def bos(self) -> BosRule:
        """The decision about bos; token ids are never given one."""
        as_they_are = "token ids are taken as they are, no bos token is added to them"
        if not self._saw_ids:
            return self._text_bos
        if not self._saw_text:
            return BosRule(False, as_they_are)
        return BosRule(self._text_bos.prepend, f"{self._text_bos.rule}; {as_they_are}")

    def __iter__(self) -> Iterator[Batch]:
        self._start()
        full: list[Window] = []
        short: list[Window] = []
        padding_id = self._padding_id()
        for found in self._documents():
            if isinstance(found, Batch):
                yield self._count(found)
                continue
            group = full if len(found.tokens) == self.n_ctx else short
            group.append(found)
            if len(full) == self._rows(self.n_ctx):
                yield self._count(stack(full, padding_id))
                full = []
            if len(short) == max(LOOK_AHEAD, self._batch_size or 0):
                yield from map(self._count, by_length(short, self._rows, padding_id))
                short = []
        if full:
            yield self._count(stack(full, padding_id))
        yield from map(self._count, by_length(short, self._rows, padding_id))
        if not self.documents:
            raise ValueError(f"data holds no document to analyse{self._reasons()}")

    def _reasons(self) -> str:
        counts = ", ".join(f"{count} with {why}" for why, count in self.skipped.items())
        return f"; skipped: {counts}" if counts else ": it is empty"

    def _documents(self) -> Iterator[Window | Batch]:
        """Windows of one row and ready batches in reading order, up to max_documents."""
        for item in read_items(self._data):
            if isinstance(item, Block):
                batch = self._ready(item)
                if batch is not None:
                    yield batch
            else:
                rows = self._cut(item) if isinstance(item, str) else self._whole(item)
                for tokens in rows:
                    if len(tokens) < 2:
                        self._skip("fewer than 2 tokens")
                        continue
                    yield Window(self._taken, tokens)
                    self._taken += 1
                    if self._taken == self._limit:
                        return
            if self._taken == self._limit:
                return

    def _cut(self, text: str) -> Iterator[Int64[Tensor, " pos"]]:
        tokenizer = getattr(self._model, "tokenizer", None)
        if tokenizer is None:
            raise ValueError("data is text, but the model has no tokenizer; pass token ids instead")
        self._saw_text = True
        if not text.strip():
            self._skip("empty text")
            return
        check_text(text)
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"]).to(torch.int64)
        check_vocabulary(ids, self._model, "the tokenizer's output")
        opening = torch.tensor([] if self._bos_id is None else [self._bos_id], dtype=torch.int64)
        step = self.n_ctx - len(opening)
        for start in range(0, len(ids), step):
            yield torch.cat([opening, ids[start : start + step]])

    def _whole(self, row: Row) -> Iterator[Int64[Tensor, " pos"]]:
        self._check_ids(row)
        yield row.tokens

    def _ready(self, block: Block) -> Batch | None:
        self._check_ids(block)
        lengths = block.attention_mask.sum(dim=1)
        if block.masked and bool((lengths == 0).any()):
            row = int((lengths == 0).nonzero()[0])
            raise ValueError(
                f"{block.name}: row {row} is all padding, its attention_mask is 0 only"
            )
        keep = (lengths >= 2).nonzero().flatten()
        self._skip("fewer than 2 tokens", len(lengths) - len(keep))
        if self._limit is not None:
            keep = keep[: self._limit - self._taken]
        if not len(keep):
            return None
        tokens, mask = block.tokens, block.attention_mask
        if len(keep) < len(lengths):
            tokens, mask = tokens[keep], mask[keep]
        first, self._taken = self._taken, self._taken + len(keep)
        return Batch(tokens, mask, tuple(range(first, self._taken)))

    def _check_ids(self, item: Row | Block) -> None:
        if not self._saw_ids and self._asked_bos is True:
            self.warnings.append("prepend_bos=True has no effect on token ids")
        self._saw_ids = True
        tokens, name = item.tokens, item.name
        check_length(tokens, self.n_ctx, model_context(self._model), name)
        check_vocabulary(tokens, self._model, name)
        if isinstance(item, Block) and item.masked:
            return
        warning = padding_warning(tokens, self._model, name)
        if warning is not None and warning not in self.warnings:
            self.warnings.append(warning)

    def _skip(self, why: str, count: int = 1) -> None:
        if count:
            self.skipped[why] = self.skipped.get(why, 0) + count

    def _rows(self, length: int) -> int:
        return self._batch_size or max(1, TOKENS_PER_BATCH // length)

    def _padding_id(self) -> int:
        """Any id the model can embed will do, since the mask hides it."""
        number = getattr(getattr(self._model, "tokenizer", None), "pad_token_id", None)
        size = vocabulary_size(self._model)
        if not isinstance(number, int) or (size is not None and number >= size):
            return 0
        return number

    def _count(self, batch: Batch) -> Batch:
        self.documents += len(batch.documents)
        self.tokens += int(batch.attention_mask.sum())
        return batch


def token_batches(
    data: TokenData,
    model: Any,
    *,
    n_ctx: int = 512,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    max_documents: int | None = None,
) -> BatchStream:
    """Cut text into windows, or take token ids as they are, and hand them out in batches.

    Example: ``for batch in token_batches("A long text ...", model, n_ctx=128): ...``

    A text is tokenised without special tokens and cut into windows of `n_ctx` tokens; bos (see
    `resolve_bos`) opens *every* window and counts among the `n_ctx`. Full windows share batches
    without padding. Shorter ones, the tails, wait for up to 64 others, are sorted by length and
    padded on the right. Token ids are taken as they are, without bos: a tensor ``batch pos`` is
    cut into batches, but ready batches in an iterable, or with a mask, stay whole. Padding may be
    anywhere. Which windows exist, and their indices, do not depend on `batch_size`.

    `data` is described at `read_items`; iterables are read lazily, so memory does not grow with
    the corpus. `max_documents` counts windows in reading order (a long text gives several), not
    texts. `batch_size` defaults to as many rows as make about 1024 tokens. An `n_ctx` beyond the
    model's context is reduced to it, with a warning. Windows of fewer than 2 tokens, bos included,
    and empty texts are skipped and counted.

    Raises at once for a bad argument and for a model that takes no tokens; while iterating,
    ValueError for text without a tokenizer, ids outside the vocabulary, rows longer than `n_ctx`,
    masks of the wrong shape, rows of padding only, rows that look padded but come without a mask,
    and data of which nothing is left;
    TypeError for data of another kind and for tokens that are no integers.
    """
    return BatchStream(
        data,
        model,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
