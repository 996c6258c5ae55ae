"""The command `tl-geometry`: thin commands over `load_model`, `analyze`, `report`, `doctor` and the evaluations.

Exit codes: 0 good; 2 for a mistake in the usage or the input, with one line on stderr; 130 when it was
interrupted; 1 for a bug, with its traceback. The heavy imports stand inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from traceback import walk_tb
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from tl_geometry.arguments import processes_launched
from tl_geometry.cli import costs, evaluations, interventions, runs

__all__ = ["app", "main"]

# Of the exceptions for a wrong usage, typer itself exports only this one's subclass.
_UsageError: Any = typer.BadParameter.__base__


_USER_ERRORS = (ValueError, OSError, ImportError)
_INTERRUPTED = 130
# Where errors of these types say what is wrong with the model, the file or the task, and the remedy.
_CHECKS: dict[type[Exception], tuple[str, ...]] = {
    RuntimeError: (
        "tl_geometry.analysis.ledger",
        "tl_geometry.analysis.files",
        "tl_geometry.analysis.processes",
    ),
    NotImplementedError: ("tl_geometry.evaluation.harness",),
}


class _Group(TyperGroup):
    """Ends with 2 and one line on stderr for a user's mistake; lets every other exception out."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            _fail("interrupted", _INTERRUPTED)

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        found = super().resolve_command(ctx, args)
        if processes_launched() > 1 and found[0] != "analyze":
            raise typer.BadParameter(
                f"{found[0]} runs in one process, and {processes_launched()} were started: only analyze "
                "splits its documents over several"
            )
        return found

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
    return any(
        isinstance(error, kind) and raised_in[-1] in rooms for kind, rooms in _CHECKS.items()
    )


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(f"tl-geometry: {' '.join(message.split())}", err=True)
    sys.exit(code)


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


for command in (
    *runs.COMMANDS,
    *evaluations.COMMANDS,
    *interventions.COMMANDS,
    *costs.COMMANDS,
):
    app.command()(command)
