"""What the commands of the evaluations run, print and write."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from tl_geometry.cli.arguments import (
    Backend,
    Corpus,
    Dtype,
    check_checkpoint,
    check_output,
    choose_texts,
    load_model,
    parse_heads,
    parse_layers,
)

__all__ = ["chosen", "on_tasks", "on_texts", "running", "windows"]

Source = tuple[Path | None, str | None, Corpus | None, str, str]
"""Text file, data set, corpus, split and field."""

Loading = tuple[str, Backend, bool, str | None, Dtype | None]
"""Model, its class, whether it is processed, device and precision."""

Output = tuple[Path | None, Path | None, bool]
"""Result, report, and whether to replace existing files."""

_WIDTH = 150  # of the printed tables where the output is no terminal

_FUNCTIONS = {
    "faithfulness": ("faithfulness", "faithfulness"),
    "sparsify": ("sparsify", "sparsify"),
    "sensitivity": ("sensitivity", "head_sensitivity"),
    "sinks": ("sinks", "sink_interventions"),
    "mixing": ("mixing", "pattern_mixing"),
    "downstream": ("downstream", "downstream"),
}
"""Module and function in the room evaluation, by command."""


def chosen(layers: str | None, heads: str | None) -> dict[str, Any]:
    """Which layers and heads to edit."""
    return {
        "layers": None if layers is None else parse_layers(layers),
        "heads": None if heads is None else parse_heads(heads),
    }


def windows(
    n_ctx: int, batch_size: int | None, max_documents: int, prepend_bos: bool | None
) -> dict[str, Any]:
    """How texts become documents."""
    return {
        "n_ctx": n_ctx,
        "batch_size": batch_size,
        "max_documents": max_documents,
        "prepend_bos": prepend_bos,
    }


def running(seed: int, checkpoint: Path | None, resume: bool, no_progress: bool) -> dict[str, Any]:
    """How the run goes."""
    return {
        "seed": seed,
        "checkpoint": checkpoint,
        "resume": resume,
        "progress": not no_progress,
    }


def on_texts(
    command: str, options: dict[str, Any], source: Source, loading: Loading, output: Output
) -> None:
    """Run an evaluation on texts."""
    _check(options, output)
    texts = choose_texts(*source)
    evaluate = _function(command)
    ds = evaluate(load_model(*loading), texts, **options)
    ds.attrs["corpus"] = [texts.record(ds.attrs["tokens"])]
    show(ds, output)


def on_tasks(tasks: list[str], options: dict[str, Any], loading: Loading, output: Output) -> None:
    """Run the evaluation on downstream tasks."""
    _check(options, output)
    evaluate = _function("downstream")
    show(evaluate(load_model(*loading), tasks, **options), output)


def _check(options: dict[str, Any], output: Output) -> None:
    """Refuse before the computation what would be refused after it."""
    out, report, force = output
    for path, option in ((out, "--out"), (report, "--report")):
        if path is not None:
            check_output(path, force, option)
    check_checkpoint(options["checkpoint"], options["resume"])


def _function(command: str) -> Callable[..., Any]:
    module, name = _FUNCTIONS[command]
    found: Callable[..., Any] = getattr(import_module(f"tl_geometry.evaluation.{module}"), name)
    return found


def show(ds: Any, output: Output) -> None:
    """Save, print, report; saved first, so that no fault of the display loses the result."""
    from tl_geometry.analysis.store import save

    out, report, _ = output
    if out is not None:
        save(ds, out)

    from tl_geometry.cli.terminal import plain_console, print_tables
    from tl_geometry.views.evaluations import evaluation_tables
    from tl_geometry.views.report import report as write_report

    print_tables(evaluation_tables(ds), plain_console(_WIDTH))
    if report is not None:
        write_report(ds, report)
    if "documents" in ds.attrs:
        typer.echo(f"{ds.attrs['documents']} documents, {ds.attrs['tokens']} tokens")
    for path in filter(None, (out, report)):
        typer.echo(str(path))
