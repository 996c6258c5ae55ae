"""Tables of a result in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tl_geometry.texts import visible
from tl_geometry.views.summary import Table as Found

__all__ = ["plain_console", "print_tables"]


def plain_console(width: int = 120) -> Console:
    """A console that prints text as it is; into a file or a pipe, lines of a fixed width."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = width
    return console


def print_tables(tables: Sequence[Found], console: Console) -> None:
    """Print tables with their notes, an empty line after each."""
    for found in tables:
        table = Table(title=found.title, title_justify="left", caption=found.note)
        for column, numeric in zip(found.columns, found.numeric, strict=True):
            table.add_column(column, justify="right" if numeric else "left")
        for row in found.rows:
            table.add_row(*map(visible, row))
        console.print(table, "")
