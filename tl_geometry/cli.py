"""The command `tl-geometry`: thin commands over `load_model`, `analyze`, `report`, `doctor` and the evaluations.

Exit codes: 0 good; 2 for a mistake in the usage or the input, with one line on stderr; 130 when it was
interrupted; 1 for a bug, with its traceback. The heavy imports stand inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from traceback import walk_tb
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from tl_geometry.arguments import (
    Backend,
    BackendOption,
    BatchSize,
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
    Sink,
    Split,
    Text,
    TextField,
    Window,
    check_output,
    choose_texts,
    load_model,
    parse_heads,
    parse_layers,
    parse_sink,
    parse_top_n,
)
from tl_geometry.cli_evaluation import COMMANDS

__all__ = ["app", "main"]

# Of the exceptions for a wrong usage, typer itself exports only this one's subclass.
_UsageError: Any = typer.BadParameter.__base__


_USER_ERRORS = (ValueError, OSError, ImportError)
_INTERRUPTED = 130
# Where errors of these very types say what is wrong with the model, the file or the task, and the remedy.
_CHECKS: dict[type[Exception], tuple[str, ...]] = {
    RuntimeError: ("tl_geometry.analysis.ledger", "tl_geometry.evaluation.checkpoint"),
    NotImplementedError: ("tl_geometry.evaluation.harness",),
}


class _Group(TyperGroup):
    """Ends with 2 and one line on stderr for a user's mistake; lets every other exception out."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            _fail("interrupted", _INTERRUPTED)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        try:
            status = super().main(*args, **kwargs)
        except _UsageError as error:
            _fail(f"error: {error.format_message().rstrip('.')}; see tl-geometry --help")
        except (*_USER_ERRORS, RuntimeError) as error:
            if os.environ.get("TL_GEOMETRY_TRACEBACK") or not _is_users(error):
                raise
            _fail(f"error: {error}")
        sys.exit(status if isinstance(status, int) else 0)


def _is_users(error: Exception) -> bool:
    """Whether the message says all that the user needs."""
    if isinstance(error, _USER_ERRORS):
        # A failed import of Python's own has the name of the module; ours explain what to do.
        return not getattr(error, "name", None)
    raised_in = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    return raised_in[-1] in _CHECKS.get(type(error), ())


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(f"tl-geometry: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _warn(message: str) -> None:
    typer.echo(f"tl-geometry: warning: {message}", err=True)


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The geometry of attention: contribution weights, head regimes, sinks.",
    epilog="With TL_GEOMETRY_TRACEBACK=1 in the environment every error shows its traceback.",
)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    app(prog_name="tl-geometry")


def _version(wanted: bool) -> bool:
    if wanted:
        from tl_geometry import __version__

        typer.echo(f"tl-geometry {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
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
    from tl_geometry.demo import measure, print_findings
    from tl_geometry.views.report import report as write_report

    ds = measure(progress=not no_progress)
    save(ds, result)
    write_report(ds, page)
    print_findings(ds)
    typer.echo(f"\n{result}\n{page}")


@app.command()
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
    keep_examples: Annotated[int, typer.Option(min=0, help="Windows to keep in full.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random controls.")] = 0,
    force: Force = False,
    no_progress: NoProgress = False,
) -> None:
    """Measure a model on texts and write the result as a netCDF file."""
    options: dict[str, Any] = {
        "n_ctx": n_ctx,
        "batch_size": batch_size,
        "prepend_bos": prepend_bos,
        "sink": parse_sink(sink),
        "max_documents": max_documents,
        "on_unsupported": "skip" if skip_unsupported else "raise",
        "layers": None if layers is None else parse_layers(layers),
        "heads": None if heads is None else parse_heads(heads),
        "queries": queries,
        "top_n": parse_top_n(top_n),
        "value_bias": "as_hooked" if value_bias else "remove",
        "output": "normed" if output_norm else "raw",
        "seed": seed,
        "progress": not no_progress,
        "keep_examples": keep_examples,
    }
    check_output(out, force)
    texts = choose_texts(text, dataset, corpus, split, text_field)
    if texts.streamed and max_documents is None:
        _warn(f"without --max-documents the whole split {split!r} of {dataset} is read")

    from tl_geometry.analysis import analyze
    from tl_geometry.analysis.store import save

    ds = analyze(load_model(model, backend, processing, device, dtype), texts, **options)
    ds.attrs["corpus"] = [texts.record(ds.attrs["tokens"])]
    save(ds, out)
    typer.echo(f"{out}: {ds.attrs['documents']} documents, {ds.attrs['tokens']} tokens")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A netCDF file of `tl-geometry analyze`.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
    title: Annotated[str | None, typer.Option(help="Heading of the report.")] = None,
    force: Force = False,
) -> None:
    """Write the report of a result as one HTML file that needs no network."""
    check_output(out, force)

    from tl_geometry.analysis.store import load
    from tl_geometry.views.report import report as write_report

    write_report(load(run), out, title)
    typer.echo(str(out))


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A netCDF file of `tl-geometry analyze`.")],
    second: Annotated[Path, typer.Argument(help="Another one, of the same layers and heads.")],
) -> None:
    """Show how far two results agree about the heads: regimes, separability, sinks."""
    from tl_geometry.analysis.compare import compare as compare_runs
    from tl_geometry.analysis.store import load

    typer.echo(repr(compare_runs(load(first), load(second))))


@app.command()
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


for command in COMMANDS:
    app.command()(command)
