"""The command that says what a sink and the diagonal cost on the tokens of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tl_geometry.cli.arguments import (
    Backend,
    BackendOption,
    BatchSize,
    CorpusOption,
    Dataset,
    Device,
    DtypeOption,
    Force,
    MaxDocuments,
    Model,
    NoProgress,
    Out,
    PrependBos,
    Processing,
    Report,
    Seed,
    Split,
    Text,
    TextField,
    Window,
    check_output,
    choose_texts,
    load_model,
    parse_names,
    parse_numbers,
)
from tl_geometry.cli.evaluating import show, windows

__all__ = ["COMMANDS"]


def costs(
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
    lengths: Annotated[
        str, typer.Option(help="Numbers of tokens, the sink included.")
    ] = "8,16,32,64",
    layer: Annotated[
        str | None, typer.Option(help="The layer that reads the tokens; default: the first.")
    ] = None,
    norms: Annotated[str, typer.Option(help="Norms of W.")] = "frobenius,nuclear",
    samples: Annotated[
        int, typer.Option(min=1, help="Samples of random tokens, and of the model's.")
    ] = 8,
    causal: Annotated[bool, typer.Option(help="Only earlier tokens compete.")] = True,
    run: Annotated[
        Path | None,
        typer.Option(help="A netCDF file of `tl-geometry analyze`, for the weights of the heads."),
    ] = None,
    n_ctx: Window = 256,
    batch_size: BatchSize = None,
    max_documents: MaxDocuments = 8,
    prepend_bos: PrependBos = None,
    seed: Seed = 0,
    out: Out = None,
    report: Report = None,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """What a sink and the diagonal cost on the model's tokens; without texts, on its vocabulary."""
    options = {
        "lengths": tuple(parse_numbers(lengths, "--lengths")),
        "layer": int(layer) if layer and layer.isdecimal() else layer,
        "norms": parse_names(norms),
        "samples": samples,
        "causal": causal,
        **windows(n_ctx, batch_size, max_documents, prepend_bos),
        "seed": seed,
        "progress": not no_progress,
    }
    for path, option in ((out, "--out"), (report, "--report")):
        if path is not None:
            check_output(path, force, option)
    given = any(source is not None for source in (text, dataset, corpus))
    texts = choose_texts(text, dataset, corpus, split, text_field) if given else None

    from tl_geometry.analysis import load, token_costs

    heads = None if run is None else load(run)
    loaded = load_model(model, backend, processing, device, dtype)
    ds = token_costs(loaded, texts, ds=heads, **options)
    if texts is not None:
        ds.attrs["corpus"] = [texts.record(ds.attrs["tokens"])]
    show(ds, (out, report, force))


COMMANDS: tuple[Callable[..., None], ...] = (costs,)
