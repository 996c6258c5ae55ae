"""The commands that measure a model and show what was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

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
    Model,
    NoProgress,
    PrependBos,
    Processing,
    Resume,
    Sink,
    Split,
    Text,
    TextField,
    Window,
    check_checkpoint,
    check_output,
    choose_texts,
    load_model,
    parse_heads,
    parse_layers,
    parse_measures,
    parse_numbers,
    parse_sink,
)
from tl_geometry.cli.several import taking_part

__all__ = ["COMMANDS"]


def demo(
    out: Annotated[Path, typer.Option(help="Directory for demo.nc and demo.html.")] = Path("out"),
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Analyse SmolLM2-135M on two small corpora; print the findings, write file and report."""
    out.mkdir(parents=True, exist_ok=True)
    result, page = out / "demo.nc", out / "demo.html"
    for path in (result, page):
        check_output(path, force)

    from tl_geometry.analysis.store import save
    from tl_geometry.cli.demo import measure, print_findings
    from tl_geometry.views.report import report as write_report

    ds = measure(progress=not no_progress)
    save(ds, result)
    write_report(ds, page)
    print_findings(ds)
    typer.echo(f"\n{result}\n{page}")


def analyze(
    model: Model,
    out: Annotated[Path, typer.Option(help="The netCDF file to write.")],
    text: Text = None,
    dataset: Dataset = None,
    corpus: CorpusOption = None,
    split: Split = "train",
    text_field: TextField = "text",
    backend: BackendOption = Backend.auto,
    processing: Processing = True,
    device: Device = None,
    dtype: DtypeOption = None,
    n_ctx: Window = 512,
    batch_size: BatchSize = None,
    max_documents: Annotated[int | None, typer.Option(min=1, help="Stop after windows.")] = None,
    prepend_bos: PrependBos = None,
    sink: Sink = "first",
    layers: Layers = None,
    heads: Heads = None,
    measures: Annotated[
        str | None,
        typer.Option(
            help="Only these, e.g. contributions,sinks,halfspace,costs; default: the cheap ones."
        ),
    ] = None,
    top_n: Annotated[
        str, typer.Option(help="Numbers of selected tokens for separability.")
    ] = "1,2,4,8,16,32",
    queries: Annotated[
        int, typer.Option(min=1, help="Queries of a window measured for separability.")
    ] = 64,
    value_bias: Annotated[
        bool, typer.Option(help="Keep the value bias, where the model has one.")
    ] = True,
    output_norm: Annotated[
        bool,
        typer.Option(help="Measure contributions after the norm that follows attention."),
    ] = False,
    skip_unsupported: Annotated[
        bool, typer.Option("--skip-unsupported", help="Leave out layers that are not supported.")
    ] = False,
    memory_budget: Annotated[
        str | None,
        typer.Option(help="For temporaries, e.g. 500MB; default: a quarter of what is free."),
    ] = None,
    keep_examples: Annotated[int, typer.Option(min=0, help="Windows to keep in full.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random controls.")] = 0,
    checkpoint: Checkpoint = None,
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="Windows between two writes of the checkpoint.")
    ] = 64,
    resume: Resume = False,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Measure a model on texts and write the result as a netCDF file."""
    options: dict[str, Any] = {
        "measures": None if measures is None else parse_measures(measures),
        "n_ctx": n_ctx,
        "batch_size": batch_size,
        "prepend_bos": prepend_bos,
        "sink": parse_sink(sink),
        "max_documents": max_documents,
        "on_unsupported": "skip" if skip_unsupported else "raise",
        "layers": None if layers is None else parse_layers(layers),
        "heads": None if heads is None else parse_heads(heads),
        "queries": queries,
        "top_n": tuple(parse_numbers(top_n, "--top-n")),
        "value_bias": "as_hooked" if value_bias else "remove",
        "output": "normed" if output_norm else "raw",
        "memory_budget": memory_budget,
        "seed": seed,
        "checkpoint": checkpoint,
        "checkpoint_every": checkpoint_every,
        "resume": resume,
        "progress": not no_progress,
        "keep_examples": keep_examples,
    }

    def check() -> None:
        if memory_budget is not None:
            from tl_geometry.measures.memory import checked_budget

            checked_budget(memory_budget)
        check_output(out, force)
        check_checkpoint(checkpoint, resume)
        if checkpoint is not None and checkpoint.resolve() == out.resolve():
            raise typer.BadParameter("--checkpoint and --out must be two files")

    with taking_part(check) as processes:
        with processes.in_step():
            texts = choose_texts(text, dataset, corpus, split, text_field)
            if texts.streamed and max_documents is None and processes.first:
                _warn(f"without --max-documents the whole split {split!r} of {dataset} is read")
            if device is None and processes.device is not None:
                device = str(processes.device)
            loaded = load_model(model, backend, processing, device, dtype)

        from tl_geometry.analysis import analyze

        ds = analyze(loaded, texts, **options)
        if not processes.first:
            return

        from tl_geometry.analysis.store import save

        ds.attrs["corpus"] = [texts.record(ds.attrs["tokens"])]
        save(ds, out)
        split_over = f", {processes.world} processes" if processes.several else ""
        typer.echo(
            f"{out}: {ds.attrs['documents']} documents, {ds.attrs['tokens']} tokens{split_over}"
        )


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="netCDF files of one model: of analyze (one), of the evaluations."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")],
    title: Annotated[str | None, typer.Option(help="Heading of the report.")] = None,
    force: Force = False,
) -> None:
    """Write the report of one result or of several as one HTML file that needs no network."""
    check_output(out, force)

    from tl_geometry.analysis.store import load
    from tl_geometry.views.report import report as write_report

    write_report([load(run) for run in runs], out, title)
    typer.echo(str(out))


def compare(
    first: Annotated[Path, typer.Argument(help="A netCDF file of `tl-geometry analyze`.")],
    second: Annotated[Path, typer.Argument(help="Another one, of the same layers and heads.")],
) -> None:
    """Show how far two results agree about the heads: regimes, separability, sinks."""
    from tl_geometry.analysis.compare import compare as compare_runs
    from tl_geometry.analysis.store import load

    typer.echo(repr(compare_runs(load(first), load(second))))


def doctor(
    model: Model,
    backend: BackendOption = Backend.auto,
    processing: Processing = True,
    device: Device = None,
    dtype: DtypeOption = None,
) -> None:
    """Show which layers can be measured, which hook edits take effect, what was processed."""
    from tl_geometry.hooks import doctor as examine

    typer.echo(repr(examine(load_model(model, backend, processing, device, dtype))))


def _warn(message: str) -> None:
    typer.echo(f"tl-geometry: warning: {message}", err=True)


COMMANDS: tuple[Callable[..., None], ...] = (demo, analyze, report, compare, doctor)
