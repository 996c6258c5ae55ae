"""The documents of an evaluation, read once so that every variant sees the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tl_geometry.analysis.run_identity import add_batch
from tl_geometry.data import Batch, BosRule, token_batches

__all__ = ["Documents", "read_documents"]


@dataclass(frozen=True)
class Documents:
    """Batches of token windows, with how they were made.

    Attributes:
        batches: in the order in which they run; a row is one document of the statistics.
        digest: of tokens, masks and batching, padding ids apart.
        n_ctx: the window in force.
    """

    batches: tuple[Batch, ...]
    digest: str
    n_ctx: int
    bos: BosRule
    skipped: Mapping[str, int]
    warnings: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of documents."""
        return sum(len(batch.documents) for batch in self.batches)

    @property
    def tokens(self) -> int:
        """Number of real tokens, bos included."""
        return sum(int(batch.attention_mask.sum()) for batch in self.batches)

    @property
    def provenance(self) -> dict[str, Any]:
        """What a result says about its documents."""
        return {
            "n_ctx": self.n_ctx,
            "prepend_bos": self.bos.prepend,
            "bos_rule": self.bos.rule,
            "documents": self.count,
            "tokens": self.tokens,
            "skipped_documents": dict(self.skipped),
        }


def read_documents(
    model: Any,
    data: Any,
    *,
    n_ctx: int = 256,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    max_documents: int | None = 8,
) -> Documents:
    """Read windows of tokens into memory, in the forms that :func:`tl_geometry.analyze` takes.

    >>> documents = read_documents(model, ["A text.", "Another text."], n_ctx=128)
    >>> documents.count, documents.tokens
    (2, 9)

    An evaluation runs many forwards over few documents, several times, so they are kept: 8 bytes a
    token. Arguments and errors are those of :func:`tl_geometry.data.token_batches`.
    """
    stream = token_batches(
        data,
        model,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
    batches = tuple(stream)
    return Documents(
        batches, _digest(batches), stream.n_ctx, stream.bos, stream.skipped, tuple(stream.warnings)
    )


def _digest(batches: tuple[Batch, ...]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        add_batch(digest, batch)
    return digest.hexdigest()
