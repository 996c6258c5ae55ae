"""Accuracy on tasks of EleutherAI's evaluation harness while hooks are active."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_args

import torch
import xarray as xr

from tl_geometry.ablations.entries import EntryMasker
from tl_geometry.analysis.reading import plain_sink
from tl_geometry.analysis.run_identity import model_fingerprint
from tl_geometry.arguments import one_of, whole_number, whole_seed
from tl_geometry.data import Batch, resolve_bos
from tl_geometry.data.bos import bos_id
from tl_geometry.data.limits import model_context
from tl_geometry.evaluation.checkpoint import Checkpoint
from tl_geometry.evaluation.next_token import check_next_token_model
from tl_geometry.evaluation.record import model_record
from tl_geometry.evaluation.runs import Factory, unedited
from tl_geometry.evaluation.scorers import (
    Importances,
    described,
    described_scorers,
    named_scorers,
)
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.hooks.probe_inputs import probe_arguments
from tl_geometry.measures.geometry import Mode
from tl_geometry.measures.importances import IMPORTANCES
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.selection import Scope, check_fraction

__all__ = ["Hooks", "downstream"]

Hooks: TypeAlias = Sequence[FwdHook] | Factory
"""Forward hooks, or a function that makes them for a batch (:class:`tl_geometry.data.Batch`)."""

_INSTALL = 'pip install "tl-geometry[eval]"'


def downstream(
    model: Any,
    tasks: str | Iterable[str],
    *,
    hooks: Hooks | None = None,
    importances: Importances | None = IMPORTANCES,
    fraction: float | int = 0.1,
    scope: Scope = "query",
    mode: Mode = "inter",
    sink: SinkRule = "first",
    limit: int | None = None,
    num_fewshot: int | None = 0,
    include_path: str | Path | None = None,
    n_ctx: int | None = None,
    batch_size: int = 8,
    prepend_bos: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Accuracy on downstream tasks: of the model, under hooks, and with attention entries removed.

    >>> ds = downstream(model, ["boolq", "winogrande"], importances=["contribution", "random"], limit=100)
    >>> ds.accuracy.sel(task="boolq", variant="contribution top")
    >>> sinkless = lambda batch: zero_sink_values(model, attention_mask=batch.attention_mask)
    >>> downstream(model, "boolq", hooks=sinkless, importances=None)

    The variants are ``"full"``; ``"hooks"`` where hooks are given; and of each importance ``"<name>
    top"`` and ``"<name> bottom"``, the most and the least important share of the entries of the
    attention removed (:func:`tl_geometry.mask_entries`) while the model reads. Source: Cunningham &
    Muca Cirone, arXiv 2606.07604; tasks, prompts and accuracy are those of `lm_eval`.

    Args:
        model: a HookedTransformer or TransformerBridge with its tokenizer.
        tasks: names that `lm_eval` knows (``"boolq"``, ``"winogrande"``, ``"mmlu"``; their data come
            from the Hugging Face hub), or names of tasks in ``include_path``. They must score given
            answers (multiple choice); nothing is generated.
        hooks: forward hooks, or a function that makes them for a batch with its ``tokens``,
            ``attention_mask`` and ``documents``: batches are padded on the right, each to its own length.
        importances: names for :func:`tl_geometry.mask_entries`, or a mapping of names to functions;
            None removes no entries, the choice for a bridge that mixes values by itself.
        fraction: share of the entries that goes.
        scope, mode, sink: as in :func:`tl_geometry.mask_entries`.
        limit: questions per task, all by default.
        num_fewshot: solved examples in front of each question; None takes the task's own number. A
            task whose own number is 0 stays at 0.
        include_path: directory of YAML files that define tasks, for instance over local JSON.
        n_ctx: longest row; the model's context by default.
        prepend_bos: whether bos opens each row; by default what the model's tokenizer setting says.
        checkpoint: file that keeps what is scored; the run can be killed at any time. Functions are
            told apart by their code and the plain values, and the model, that they use
            (:mod:`tl_geometry.evaluation.function_digest`); others are refused.
        resume: go on from that file.
        seed: of few-shot examples and of the random importance.

    Returns:
        ``accuracy`` (task variant) and its standard error over questions ``accuracy_se``, and
        ``questions`` (task). Of a group such as ``"mmlu"`` the row is the group's own mean.

    Raises:
        ImportError: `lm_eval` is not installed.
        ValueError: an unknown task, one without accuracy, a model without tokenizer or loss of the
            next token, a checkpoint of another run, or one with functions that can't be told apart.
        ConnectionError: a task's data can't be reached.
        NotImplementedError: a task that generates text.
    """
    try:
        import lm_eval
        from lm_eval.evaluator import evaluate

        from tl_geometry.evaluation.harness import HookedLM
        from tl_geometry.evaluation.tasks import accuracies, load_tasks
    except ImportError as error:
        raise ImportError(
            f"downstream needs the package lm_eval, the evaluation harness: {_INSTALL} ({error})"
        ) from error
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    share = check_fraction(fraction)
    one_of("scope", scope, get_args(Scope))
    one_of("mode", mode, get_args(Mode))
    batch_size, seed = whole_number("batch_size", batch_size, 1), whole_seed(seed)
    if limit is not None:
        limit = whole_number("limit", limit, 1)
    context = _context(model, n_ctx)
    rule = resolve_bos(model, prepend_bos)
    scorers = {} if importances is None else named_scorers(importances)
    variants: dict[str, Factory] = {"full": unedited}
    if hooks is not None:
        variants["hooks"] = hooks if callable(hooks) else partial(_ready, hooks=hooks)
    if tuple(scorers) == IMPORTANCES:
        _check_default(model)
    for name, scorer in scorers.items():
        for largest, which in ((True, "top"), (False, "bottom")):
            masker = EntryMasker(
                model,
                scorer,
                share,
                largest=largest,
                scope=scope,
                mode=mode,
                sink=sink,
                seed=seed,
            )
            variants[f"{name} {which}"] = partial(_masking, masker=masker)
    loaded = load_tasks(names, include_path)
    settings = {
        "evaluation": "downstream",
        "tasks": names,
        "limit": limit,
        "num_fewshot": num_fewshot,
        "n_ctx": context,
        "batch_size": batch_size,
        "prepend_bos": rule.prepend,
        "hooks": _described_hooks(hooks, checkpoint, model),
        "importances": described_scorers(scorers, checkpoint, model),
        "fraction": share,
        "scope": scope,
        "mode": mode,
        "sink": plain_sink(sink),
        "seed": seed,
        "lm_eval": lm_eval.__version__,
    }
    tokens = probe_arguments(model)[0][0]
    check_next_token_model(model, Batch(tokens, torch.ones_like(tokens).bool(), (0, 1)))
    record = model_record(model)
    fingerprint = {
        "settings": settings,
        "model": {} if checkpoint is None else model_fingerprint(model),
    }
    results: dict[str, Any] = {}
    truncated = 0
    with Checkpoint(checkpoint, fingerprint, resume=resume) as done, torch.no_grad():
        for variant, factory in variants.items():
            lm = HookedLM(
                model,
                variant,
                factory,
                batch_size=batch_size,
                n_ctx=context,
                bos=bos_id(model) if rule.prepend else None,
                done=done,
                progress=progress,
            )
            for task in loaded["tasks"].values():
                if num_fewshot is not None and task.get_config("num_fewshot") != 0:
                    task.set_config(key="num_fewshot", value=num_fewshot)
                task.set_fewshot_seed(seed=seed)  # so that all variants see the same examples
            results[variant] = evaluate(
                lm, loaded, limit=limit, log_samples=False, bootstrap_iters=1
            )
            truncated = lm.truncated
    ds = accuracies(results, names)
    ds.attrs = {
        **record,
        "settings": settings,
        "prepend_bos": rule.prepend,
        "bos_rule": rule.rule,
        "truncated_rows": truncated,
    }
    return ds


def _context(model: Any, n_ctx: int | None) -> int:
    """The longest row.

    Raises:
        ValueError: the model has no tokenizer, or ``n_ctx`` is more than it takes.
    """
    if getattr(model, "tokenizer", None) is None:
        raise ValueError("model has no tokenizer, and tasks are text; load it with its tokenizer")
    most = model_context(model)
    if n_ctx is None:
        if most is None:
            raise ValueError("the model states no context length: give n_ctx=")
        return most
    n_ctx = whole_number("n_ctx", n_ctx, 2)
    if most is not None and n_ctx > most:
        raise ValueError(f"n_ctx={n_ctx} is more than the model's context of {most} tokens")
    return n_ctx


def _described_hooks(
    hooks: Hooks | None, checkpoint: str | Path | None, model: Any
) -> str | list[str] | None:
    if hooks is None:
        return None
    say = partial(
        described,
        checkpoint=checkpoint,
        model=model,
        instead="make the hooks of such values in a function of the batch",
    )
    if callable(hooks):
        return say("hooks", hooks)
    return [
        " ".join(part if isinstance(part, str) else say(f"hooks[{number}]", part) for part in entry)
        for number, entry in enumerate(hooks)
    ]


def _check_default(model: Any) -> None:
    """Refuse a model that can't be masked, for a user who has asked for no masks."""
    try:
        EntryMasker(model, "attention", 0.0)
    except ValueError as error:
        raise ValueError(
            f"{error}. To score the model as it is, and under hooks, give importances=None"
        ) from error


def _ready(batch: Batch, *, hooks: Sequence[FwdHook]) -> Sequence[FwdHook]:  # noqa: ARG001
    return hooks


def _masking(batch: Batch, *, masker: EntryMasker) -> Sequence[FwdHook]:
    return masker.hooks(batch.attention_mask, documents=batch.documents)
