"""The commands that run a model many times with parts of its attention taken away.

`COMMANDS` are registered by :mod:`tl_geometry.cli`. Each prints the tables of its evaluation, and writes the result
and a report where it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tl_geometry.cli.arguments import (
    EVERY_IMPORTANCE,
    Backend,
    BackendOption,
    BatchSize,
    Checkpoint,
    CorpusOption,
    Dataset,
    Device,
    DtypeOption,
    Force,
    Heads,
    Layers,
    MaxDocuments,
    Mode,
    Model,
    NoProgress,
    Out,
    PrependBos,
    Processing,
    Reference,
    Removal,
    RemovalOption,
    Report,
    Resume,
    Scope,
    ScopeOption,
    Seed,
    Sink,
    Split,
    Text,
    TextField,
    Window,
    parse_names,
    parse_shares,
    parse_sink,
)
from tl_geometry.cli.evaluating import chosen, on_tasks, on_texts, running, windows

__all__ = ["COMMANDS"]


def faithfulness(
    model: Model,
    text: Text = None,
    dataset: Dataset = None,
    corpus: CorpusOption = None,
    split: Split = "train",
    text_field: TextField = "text",
    backend: BackendOption = Backend.auto,
    processing: Processing = True,
    device: Device = None,
    dtype: DtypeOption = None,
    importances: Annotated[str, typer.Option(help="Importances to compare.")] = EVERY_IMPORTANCE,
    modes: Annotated[
        str, typer.Option(help="Whose output they refer to: the head's, the layer's.")
    ] = "intra,inter",
    rankings: Annotated[
        str, typer.Option(help="Contributions by value and by size.")
    ] = "signed,absolute",
    fractions: Annotated[
        str, typer.Option(help="Shares of the entries to remove.")
    ] = "0.01,0.05,0.1,0.2,0.5",
    scope: ScopeOption = Scope.query,
    reference: Annotated[
        Reference, typer.Option(help="Rank by the masked run itself or by the unmasked one.")
    ] = Reference.online,
    repeats: Annotated[int, typer.Option(min=1, help="Random rankings.")] = 1,
    sink: Sink = "first",
    layers: Layers = None,
    heads: Heads = None,
    n_ctx: Window = 256,
    batch_size: BatchSize = None,
    max_documents: MaxDocuments = 8,
    prepend_bos: PrependBos = None,
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    resume: Resume = False,
    out: Out = None,
    report: Report = None,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Compare importances: the loss with the most and the least important entries removed."""
    options = {
        "importances": parse_names(importances),
        "modes": parse_names(modes),
        "rankings": parse_names(rankings),
        "fractions": parse_shares(fractions, "--fractions"),
        "scope": scope.value,
        "reference": reference.value,
        "repeats": repeats,
        "sink": parse_sink(sink),
        **chosen(layers, heads),
        **windows(n_ctx, batch_size, max_documents, prepend_bos),
        **running(seed, checkpoint, resume, no_progress),
    }
    source = (text, dataset, corpus, split, text_field)
    loading = (model, backend, processing, device, dtype)
    on_texts("faithfulness", options, source, loading, (out, report, force))


def sparsify(
    model: Model,
    text: Text = None,
    dataset: Dataset = None,
    corpus: CorpusOption = None,
    split: Split = "train",
    text_field: TextField = "text",
    backend: BackendOption = Backend.auto,
    processing: Processing = True,
    device: Device = None,
    dtype: DtypeOption = None,
    orders: Annotated[
        str | None, typer.Option(help="Orders of removal, e.g. entropy,random; default: all.")
    ] = None,
    retention: Annotated[
        str, typer.Option(help="Shares of the heads that stay.")
    ] = "1,0.9,0.75,0.5,0.25,0.1",
    repeats: Annotated[int, typer.Option(min=1, help="Random orders.")] = 3,
    mode: RemovalOption = Removal.zero,
    layers: Layers = None,
    heads: Heads = None,
    n_ctx: Window = 256,
    batch_size: BatchSize = None,
    max_documents: MaxDocuments = 8,
    prepend_bos: PrependBos = None,
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    resume: Resume = False,
    out: Out = None,
    report: Report = None,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Remove more and more heads in several orders, and follow the loss."""
    options = {
        "orders": None if orders is None else parse_names(orders),
        "retention": parse_shares(retention, "--retention"),
        "repeats": repeats,
        "mode": mode.value,
        **chosen(layers, heads),
        **windows(n_ctx, batch_size, max_documents, prepend_bos),
        **running(seed, checkpoint, resume, no_progress),
    }
    source = (text, dataset, corpus, split, text_field)
    loading = (model, backend, processing, device, dtype)
    on_texts("sparsify", options, source, loading, (out, report, force))


def sensitivity(
    model: Model,
    text: Text = None,
    dataset: Dataset = None,
    corpus: CorpusOption = None,
    split: Split = "train",
    text_field: TextField = "text",
    backend: BackendOption = Backend.auto,
    processing: Processing = True,
    device: Device = None,
    dtype: DtypeOption = None,
    mode: RemovalOption = Removal.zero,
    layers: Layers = None,
    heads: Heads = None,
    n_ctx: Window = 256,
    batch_size: BatchSize = None,
    max_documents: MaxDocuments = 8,
    prepend_bos: PrependBos = None,
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    resume: Resume = False,
    out: Out = None,
    report: Report = None,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Remove one head at a time: what each does to the loss, and which are outliers."""
    options = {
        "mode": mode.value,
        **chosen(layers, heads),
        **windows(n_ctx, batch_size, max_documents, prepend_bos),
        **running(seed, checkpoint, resume, no_progress),
    }
    source = (text, dataset, corpus, split, text_field)
    loading = (model, backend, processing, device, dtype)
    on_texts("sensitivity", options, source, loading, (out, report, force))


def downstream(
    model: Model,
    tasks: Annotated[str, typer.Option(help="Tasks of lm_eval, e.g. boolq,winogrande.")],
    backend: BackendOption = Backend.auto,
    processing: Processing = True,
    device: Device = None,
    dtype: DtypeOption = None,
    importances: Annotated[
        str, typer.Option(help='Remove entries by these; "none" for the model as it is.')
    ] = EVERY_IMPORTANCE,
    fraction: Annotated[float, typer.Option(help="Share of the entries to remove.")] = 0.1,
    scope: ScopeOption = Scope.query,
    mode: Annotated[Mode, typer.Option(help="Whose output they refer to.")] = Mode.inter,
    sink: Sink = "first",
    limit: Annotated[int | None, typer.Option(min=1, help="Questions of a task.")] = None,
    num_fewshot: Annotated[int, typer.Option(min=0, help="Solved examples in front.")] = 0,
    include_path: Annotated[
        Path | None, typer.Option(help="A directory of YAML files that define tasks.")
    ] = None,
    n_ctx: Annotated[int | None, typer.Option(min=2, help="Tokens of a row, at most.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 8,
    prepend_bos: PrependBos = None,
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    resume: Resume = False,
    out: Out = None,
    report: Report = None,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Accuracy on tasks of the evaluation harness, with attention entries removed."""
    options = {
        "importances": None if importances == "none" else parse_names(importances),
        "fraction": fraction,
        "scope": scope.value,
        "mode": mode.value,
        "sink": parse_sink(sink),
        "limit": limit,
        "num_fewshot": num_fewshot,
        "include_path": include_path,
        "n_ctx": n_ctx,
        "batch_size": batch_size,
        "prepend_bos": prepend_bos,
        **running(seed, checkpoint, resume, no_progress),
    }
    loading = (model, backend, processing, device, dtype)
    on_tasks(parse_names(tasks), options, loading, (out, report, force))


COMMANDS: tuple[Callable[..., None], ...] = (faithfulness, sparsify, sensitivity, downstream)
