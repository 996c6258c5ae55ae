"""Every batch under every variant: the loop that all evaluations share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from tl_geometry.analysis.run_identity import model_fingerprint
from tl_geometry.data import Batch
from tl_geometry.evaluation.checkpoint import Checkpoint
from tl_geometry.evaluation.documents import Documents
from tl_geometry.evaluation.likelihood import nll_of_targets, nll_per_document
from tl_geometry.evaluation.next_token import check_next_token_model
from tl_geometry.evaluation.prefix import (
    Readout,
    can_start_at_layer,
    clean_prefix,
    ends_with_blocks,
    forward_final,
    forward_logits,
    reproduces,
)
from tl_geometry.evaluation.record import model_record
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.entries import FwdHook

__all__ = ["Factory", "Scores", "Variant", "on_device", "run_variants", "unedited"]

READ_AT_ONCE = 2**25
"""Logits that a readout computes at once."""

Factory: TypeAlias = Callable[[Batch], Sequence[FwdHook]]
"""Makes the forward hooks for one batch, from its tokens, attention mask and documents."""


def unedited(batch: Batch) -> list[FwdHook]:  # noqa: ARG001
    """No hooks: the model as it is."""
    return []


@dataclass(frozen=True)
class Variant:
    """One way to run the model.

    >>> Variant("full")
    >>> Variant("no sinks", lambda batch: zero_sink_values(model, attention_mask=batch.attention_mask))

    Attributes:
        name: what the scores and the checkpoint call it; with the settings of the run it must say
            all that the hooks depend on.
        hooks: makes the forward hooks for one batch. The batch's tensors are on the model's device.
            Anything random in it must be seeded by the batch's documents, not drawn on: a resumed
            run does not call it for what is done.
        first_block: number of the first block that the hooks touch, where it is known; the blocks
            before it are then taken from an unedited run, where the model class allows that.
    """

    name: str
    hooks: Factory = unedited
    first_block: int | None = None


@dataclass(frozen=True)
class Scores:
    """What the variants score on each document.

    Attributes:
        variants: names, in the order of the rows.
        nll: summed over the document's targets, in nats.
        targets: how many tokens were predicted.
        attrs: provenance of model, documents and settings, ready for a dataset.
    """

    variants: tuple[str, ...]
    nll: Float64[NDArray[np.float64], "variant document"]
    targets: Int64[NDArray[np.int64], " document"]
    attrs: dict[str, Any]

    def of(self, name: str) -> Float64[NDArray[np.float64], " document"]:
        """The documents' NLL under one variant."""
        row: NDArray[np.float64] = self.nll[self.variants.index(name)]
        return row


def run_variants(
    model: Any,
    documents: Documents,
    variants: Sequence[Variant],
    *,
    settings: Mapping[str, Any],
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Scores:
    """Score every document under every variant, batch by batch.

    >>> documents = read_documents(model, texts)
    >>> variants = [Variant("full"), Variant("head 0.3", lambda batch: remove_heads(model, [(0, 3)]), 0)]
    >>> scores = run_variants(model, documents, variants, settings={"evaluation": "mine"})
    >>> scores.nll.sum(1) / scores.targets.sum()

    Scores do not depend on the batch size beyond rounding. With a checkpoint, what was scored before
    the process ended is not run again, and the result is the same bit for bit.

    Args:
        documents: from :func:`tl_geometry.evaluation.read_documents`.
        variants: each with a name of its own.
        settings: all options that shape the variants, as JSON has them. They enter the provenance,
            and a checkpoint with other settings is refused.
        checkpoint: file for finished units (:class:`tl_geometry.evaluation.Checkpoint`).
        resume: go on from that file.

    Raises:
        ValueError: a model without a loss of the next token, names that occur twice, a checkpoint of
            another run, or NaN and infinite scores, with the variant's name.
    """
    names = [variant.name for variant in variants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        raise ValueError(f"variants: need one or more, each with a name of its own, got {names}")
    check_next_token_model(model, on_device(documents.batches[0], _device(model)))
    record = model_record(model)
    attrs = {
        **record,
        **documents.provenance,
        "settings": dict(settings),
        "warnings": [*record["warnings"], *documents.warnings],
    }
    fingerprint = {
        "settings": dict(settings),
        "data": {"n_ctx": documents.n_ctx, "documents": documents.digest},
        "variants": names,
        "model": {} if checkpoint is None else model_fingerprint(model),
    }
    nll = np.empty((len(variants), documents.count))
    targets = np.empty(documents.count, dtype=np.int64)
    runner = _Runner(model, variants)
    total = len(variants) * len(documents.batches)
    with (
        Checkpoint(checkpoint, fingerprint, resume=resume) as done,
        torch.no_grad(),
        tqdm(total=total, unit=" runs", disable=not progress) as bar,
    ):
        for number, batch in enumerate(documents.batches):
            columns = list(batch.documents)
            targets[columns] = (batch.attention_mask.sum(-1) - 1).cpu().numpy()
            units = [f"{number}/{name}" for name in names]
            pending = [v for v, unit in zip(variants, units, strict=True) if unit not in done]
            bar.update(len(variants) - len(pending))
            for variant, found in runner.scores(on_device(batch, _device(model)), pending):
                done[f"{number}/{variant.name}"] = found
                bar.update()
            nll[:, columns] = [done[unit] for unit in units]
    return Scores(tuple(names), nll, targets, attrs)


class _Runner:
    """Runs a model's variants on one batch after the other.

    Where some variants leave the first blocks alone and the model can start midway, all of them are
    scored through the readout, but for those with hooks behind the last block: what a variant scores
    must not depend on which others are still to be run.
    """

    def __init__(self, model: Any, variants: Sequence[Variant]) -> None:
        self.model = model
        self._latest = max((v.first_block or 0 for v in variants), default=0)
        midway = self._latest > 0 and can_start_at_layer(model)
        self._readout = Readout(model) if midway else None
        self._verified = False

    def scores(
        self, batch: Batch, variants: Sequence[Variant]
    ) -> Iterator[tuple[Variant, list[float]]]:
        """The documents' NLL under each variant, one after the other."""
        blocks = {v.first_block for v in variants if v.first_block}
        clean, residuals = self._clean(batch, blocks) if variants else (None, {})
        for variant in variants:
            if clean is not None and variant.hooks is unedited:
                nll = clean
            else:
                block = variant.first_block
                start = None if block not in residuals else (block, residuals[block])
                nll = self._score(batch, variant.hooks(batch), start)
            if not bool(nll.isfinite().all()):
                row = int((~nll.isfinite()).nonzero()[0])
                raise ValueError(
                    f"variant {variant.name!r} gives NaN or infinite scores for document "
                    f"{batch.documents[row]}: its edit, the weights or the data type break the forward"
                )
            yield variant, nll.tolist()

    def _clean(self, batch: Batch, blocks: set[int]) -> tuple[Tensor | None, dict[int, Tensor]]:
        """NLL of the unedited run and the residual stream before some blocks; nothing if that saves nothing."""
        check = not self._verified
        if self._readout is None or not (blocks or check):
            return None, {}
        wanted = sorted(blocks | {self._latest} if check else blocks)
        prefix = clean_prefix(self.model, batch, wanted)
        if check and not reproduces(self.model, batch, prefix, self._readout, self._latest):
            self._readout = None
            return None, {}
        self._verified = True
        return _read_nll(self._readout, prefix.final, batch), prefix.residuals

    def _score(
        self, batch: Batch, hooks: Sequence[FwdHook], start: tuple[int, Tensor] | None
    ) -> Tensor:
        """NLL under hooks, of a forward from its beginning or from a block on."""
        if self._readout is not None and ends_with_blocks(hooks):
            final = forward_final(self.model, batch, hooks, start=start)
            return _read_nll(self._readout, final, batch)
        logits = forward_logits(self.model, batch, hooks)
        return nll_per_document(logits, batch.tokens, batch.attention_mask)[0]


def _read_nll(readout: Readout, final: Tensor, batch: Batch) -> Tensor:
    return nll_of_targets(
        readout(final), readout.vocab, batch.tokens, batch.attention_mask, at_once=READ_AT_ONCE
    )[0]


def _device(model: Any) -> torch.device:
    return attention_sites(model)[0].device


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch with its tensors on a device."""
    return Batch(batch.tokens.to(device), batch.attention_mask.to(device), batch.documents)
