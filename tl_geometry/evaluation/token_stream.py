"""How alike the tokens are around every layer, read behind edits in forwards that run anyway."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from tl_geometry.data import Batch
from tl_geometry.evaluation.documents import Documents
from tl_geometry.evaluation.prefix import forward_logits
from tl_geometry.evaluation.runs import Factory, on_device
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.entries import FwdHook, hook_entries
from tl_geometry.hooks.stream import stream_points
from tl_geometry.measures.devices import upload
from tl_geometry.measures.similarity import TokenVectors

__all__ = ["TokenStream"]

FEWEST_TOKENS = 3
"""The first token apart, a pair is left."""


class TokenStream:
    """Reads token similarity and relative residual at the input and output of every layer.

    >>> stream = TokenStream(model, documents, {"none": unedited, "mixed": make_hooks})
    >>> variants = [Variant(name, partial(stream.hooks, name)) for name in stream.edits]
    >>> scores = run_variants(model, documents, variants, settings={})
    >>> stream.complete(progress=False)                # what came from a checkpoint was not run
    >>> stream.numbers["similarity"][0, 1]             # layer document, at the layers' outputs

    Attributes:
        numbers: by measure, ``variant end layer document``; the ends are the layer's input and
            output.
        counted: which documents are long enough to be compared within.

    Raises:
        ValueError: no document is.
    """

    def __init__(self, model: Any, documents: Documents, edits: Mapping[str, Factory]) -> None:
        self.model, self.documents, self.edits = model, documents, edits
        self.sites = attention_sites(model)
        self.points = [stream_points(model, site) for site in self.sites]
        self.counted = np.zeros(documents.count, dtype=bool)
        for batch in documents.batches:
            real = batch.attention_mask.sum(-1).cpu().numpy()
            self.counted[list(batch.documents)] = real >= FEWEST_TOKENS
        if not self.counted.any():
            raise ValueError(
                f"data: no document has {FEWEST_TOKENS} tokens, the least for a similarity of tokens; give longer "
                "texts, or a larger n_ctx"
            )
        shape = (len(edits), 2, len(self.sites), documents.count)
        self.numbers = {name: np.full(shape, np.nan) for name in ("similarity", "residual")}
        self._seen: set[tuple[str, tuple[int, ...]]] = set()

    @property
    def warnings(self) -> list[str]:
        """What must be known about the documents."""
        short = int((~self.counted).sum())
        if not short:
            return []
        return [
            f"{short} of {len(self.counted)} documents have fewer than {FEWEST_TOKENS} tokens: they count for the "
            "loss, not for the similarity of tokens"
        ]

    def hooks(self, name: str, batch: Batch) -> list[FwdHook]:
        """The edits of a variant, and behind them what reads."""
        self._seen.add((name, batch.documents))
        variant = list(self.edits).index(name)
        reading = {
            hook: partial(self._read, place=(variant, end, layer), batch=batch)
            for layer, points in enumerate(self.points)
            for end, hook in enumerate((points.before, points.after))
        }
        return [*self.edits[name](batch), *hook_entries(self.model, reading)]

    def complete(self, *, progress: bool) -> None:
        """Run what was not run: that whose scores came from a checkpoint."""
        left = [
            (name, batch)
            for batch in self.documents.batches
            for name in self.edits
            if (name, batch.documents) not in self._seen
        ]
        device = self.sites[0].device
        with torch.no_grad():
            for name, batch in tqdm(left, unit=" runs", disable=not (progress and left)):
                on = on_device(batch, device)
                forward_logits(self.model, on, self.hooks(name, on))

    def _read(self, x: Tensor, hook: Any, *, place: tuple[int, ...], batch: Batch) -> None:  # noqa: ARG002
        tokens = TokenVectors(x.detach(), upload(batch.attention_mask, x.device))
        found = {"similarity": tokens.similarity(), "residual": tokens.residual()}
        where: Any = (*place, list(batch.documents))
        for name, values in found.items():
            self.numbers[name][where] = values.cpu().double().numpy()
