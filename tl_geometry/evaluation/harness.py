"""A hooked model as EleutherAI's evaluation harness sees it. Imported only where `lm_eval` is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from torch import Tensor
from tqdm.auto import tqdm

from tl_geometry.data.stacking import Window, stack
from tl_geometry.evaluation.checkpoint import Checkpoint
from tl_geometry.evaluation.prefix import forward_logits
from tl_geometry.evaluation.runs import Factory, on_device
from tl_geometry.hooks import attention_sites

__all__ = ["HookedLM"]

_REFUSED = (
    "downstream scores given answers only: choose tasks of the output types multiple_choice and "
    "loglikelihood ({what} was asked for)"
)


@dataclass(frozen=True)
class _Continuation:
    """Tokens to score at the end of a row, and the number of the request they answer."""

    request: int
    tokens: tuple[int, ...]


class HookedLM(TemplateLM):  # type: ignore[misc]
    """Log-likelihoods of continuations, with the attention mask given to the model and to its hooks.

    >>> lm = HookedLM(model, "full", lambda batch: [], batch_size=8, n_ctx=512, bos=1, done=done)
    >>> lm_eval.evaluator.evaluate(lm, task_dict)

    Rows are padded on the right and run from long to short; requests that put the same tokens into
    the model share a forward. Rows longer than ``n_ctx`` lose tokens at the beginning of the
    context, bos apart, and are counted in ``truncated``.
    """

    def __init__(
        self,
        model: Any,
        variant: str,
        hooks: Factory,
        *,
        batch_size: int,
        n_ctx: int,
        bos: int | None,
        done: Checkpoint,
        progress: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.variant, self.hooks = model, variant, hooks
        self.tokenizer = model.tokenizer
        self.batch_size, self.n_ctx, self.bos = batch_size, n_ctx, bos
        self.done, self.progress = done, progress
        self.truncated = 0
        self._device = attention_sites(model)[0].device

    @property
    def eot_token_id(self) -> int:
        """The token that stands for an empty context: bos where windows have one, else eos."""
        return int(self.tokenizer.eos_token_id if self.bos is None else self.bos)

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> list[int]:
        """Token ids without special tokens; bos is added to whole rows."""
        return list(self.tokenizer(string, add_special_tokens=False)["input_ids"])

    def loglikelihood(
        self,
        requests: Any,
        disable_tqdm: bool = True,  # noqa: ARG002
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would give it."""
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Refused."""
        raise NotImplementedError(_REFUSED.format(what="loglikelihood_rolling"))

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Refused."""
        raise NotImplementedError(_REFUSED.format(what="generate_until"))

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        **kwargs: Any,  # noqa: ARG002
    ) -> list[tuple[float, bool]]:
        rows: dict[tuple[int, ...], list[_Continuation]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            row = self._row(context, continuation)
            rows.setdefault(row, []).append(_Continuation(number, tuple(continuation)))
        ordered = sorted(rows, key=lambda row: (-len(row), row))
        answers: dict[int, tuple[float, bool]] = {}
        with tqdm(
            total=len(rows), desc=self.variant, unit=" rows", disable=not self.progress
        ) as bar:
            for start in range(0, len(ordered), self.batch_size):
                some = ordered[start : start + self.batch_size]
                asked = [rows[row] for row in some]
                numbers = iter(self._numbers(start, some, asked))
                for one in (one for row in asked for one in row):
                    answers[one.request] = (next(numbers), bool(next(numbers)))
                bar.update(len(some))
        return [answers[number] for number in range(len(requests))]

    def _row(self, context: list[int], continuation: list[int]) -> tuple[int, ...]:
        """What the model reads to predict the continuation: all but its last token."""
        ids = [*context, *continuation]
        opening = [] if self.bos is None or ids[0] == self.bos else [self.bos]
        room = self.n_ctx - len(opening)
        if len(continuation) > room:
            raise ValueError(
                f"n_ctx={self.n_ctx} is too short for an answer of {len(continuation)} tokens"
            )
        if len(ids) - 1 > room:
            self.truncated += 1
        return (*opening, *ids[:-1][-room:])

    def _numbers(
        self,
        start: int,
        rows: Sequence[tuple[int, ...]],
        asked: Sequence[Sequence[_Continuation]],
    ) -> list[float]:
        """Log-probability and greediness (1 or 0) of each continuation in turn."""
        content = json.dumps([rows, [[one.tokens for one in row] for row in asked]])
        unit = f"{self.variant}/{start}/{hashlib.sha256(content.encode()).hexdigest()}"
        if unit not in self.done:
            self.done[unit] = self._run(start, rows, asked)
        return self.done[unit]

    def _run(
        self,
        start: int,
        rows: Sequence[tuple[int, ...]],
        asked: Sequence[Sequence[_Continuation]],
    ) -> list[float]:
        windows = [Window(start + k, torch.tensor(row)) for k, row in enumerate(rows)]
        padded = stack(windows, padding_id=0)
        batch = on_device(padded, self._device)
        logits = forward_logits(self.model, batch, self.hooks(batch))
        numbers: list[float] = []
        for row, of_row, logits_of_row in zip(rows, asked, logits, strict=True):
            for one in of_row:
                predicted = logits_of_row[len(row) - len(one.tokens) : len(row)]
                numbers += _score(predicted, one.tokens)
        if any(number != number for number in numbers):
            raise ValueError(
                f"variant {self.variant!r} gives NaN log-likelihoods: its edit, the weights or the "
                "data type break the forward"
            )
        return numbers


def _score(logits: Tensor, tokens: Sequence[int]) -> tuple[float, float]:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    wanted = torch.tensor(tokens, device=logits.device)
    picked = wide.log_softmax(-1).gather(-1, wanted[:, None]).sum()
    return picked.item(), float((wide.argmax(-1) == wanted).all())
