"""The commands that change the attention of the whole model: its sinks, or all of its patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tl_geometry.cli.arguments import (
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
    Model,
    NoProgress,
    Out,
    PrependBos,
    Processing,
    Report,
    Resume,
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
from tl_geometry.cli.evaluating import chosen, on_texts, running, windows

__all__ = ["COMMANDS"]


def sinks(
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
    interventions: Annotated[
        str, typer.Option(help="What to do with the sinks.")
    ] = "zero_value,renormalize,rescale,mean",
    factor: Annotated[float, typer.Option(help="Factor of rescale.")] = 2.0,
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
    """Change the attention sinks: loss, output norms and cone alignment before and after."""
    options = {
        "interventions": parse_names(interventions),
        "factor": factor,
        "sink": parse_sink(sink),
        **chosen(layers, heads),
        **windows(n_ctx, batch_size, max_documents, prepend_bos),
        **running(seed, checkpoint, resume, no_progress),
    }
    source = (text, dataset, corpus, split, text_field)
    loading = (model, backend, processing, device, dtype)
    on_texts("sinks", options, source, loading, (out, report, force))


def mixing(
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
    targets: Annotated[
        str, typer.Option(help="Patterns to move to: identity, uniform, sink, permuted.")
    ] = "identity,uniform",
    ts: Annotated[str, typer.Option(help="Shares of the target in the pattern.")] = "0.25,0.5,1",
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
    """Make attention sparser and denser: the loss, and how alike tokens become in every layer."""
    options = {
        "targets": parse_names(targets),
        "ts": parse_shares(ts, "--ts"),
        "sink": parse_sink(sink),
        **chosen(layers, heads),
        **windows(n_ctx, batch_size, max_documents, prepend_bos),
        **running(seed, checkpoint, resume, no_progress),
    }
    source = (text, dataset, corpus, split, text_field)
    loading = (model, backend, processing, device, dtype)
    on_texts("mixing", options, source, loading, (out, report, force))


COMMANDS: tuple[Callable[..., None], ...] = (sinks, mixing)
