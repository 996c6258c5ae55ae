"""A result in words and in short tables, for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tl_geometry.views import null_sinks, results
from tl_geometry.views.results import Values, number, significant

TOP = 10


@dataclass(frozen=True)
class Table:
    """A small table of finished strings.

    Args:
        key: Which table it is, "regimes" or "sinks".
        title: What the table lists.
        columns: Headings.
        rows: Cells, as many a row as there are columns.
        numeric: Whether a column holds numbers, to be aligned right.
        note: How the rows were chosen and what the columns mean.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    note: str


@dataclass(frozen=True)
class _Column:
    variable: str
    heading: str
    text: Callable[[float], str] = number
    errors: bool = False


_SINK_COLUMNS = (
    _Column("sink_rate", "sink rate", errors=True),
    _Column(null_sinks.RATE, "null sink"),
    _Column("sink_metric", "sink metric"),
    _Column("sink_norm_ratio", "norm ratio", significant),
    _Column("sink_cosine", "cosine to others"),
    _Column("contribution_sink", "sink's contribution"),
)
_CONTRIBUTION_COLUMNS = (
    _Column("contribution_attention_distance", "distance", errors=True),
    _Column("sink_rate", "attention to the sink"),
    _Column(null_sinks.RATE, "to the null sink"),
    _Column("contribution_sink", "sink's contribution"),
    _Column("contribution_negative", "negative part"),
    _Column("contribution_inter", "share of layer output"),
)


def headline_tables(ds: xr.Dataset) -> list[Table]:
    """Regime counts, the ten strongest sinks, the ten heads whose contributions leave attention.

    What was not measured is left out: a column, or a table that would have no rows.

    Example:
        >>> for table in headline_tables(ds):  # doctest: +SKIP
        ...     print(table.title, *table.rows, sep="\\n")

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` has no layers or no heads.
    """
    results.check_result(ds)
    tables = []
    if results.measured(ds, "regime"):
        tables.append(_regime_table(ds))
    if results.measured(ds, "sink_rate"):
        note = (
            "Heads by sink rate, the mean share of attention that later tokens give to the sink. "
            "Sink metric: share of documents in which it receives more than 0.3 (64 tokens). "
            "Norm ratio: length of the sink's value vector over the median of the others."
        )
        tables.append(_ranking(ds, "sinks", "strongest sinks", "sink_rate", _SINK_COLUMNS, note))
    if results.measured(ds, "contribution_attention_distance"):
        note = (
            "Heads by distance, half the summed absolute difference between contribution weights "
            "and attention, mean over queries: 0 where attention tells the whole story. "
            "Negative part: summed size of the negative contribution weights of a query."
        )
        title = "heads whose contribution weights differ most from attention"
        column = "contribution_attention_distance"
        tables.append(_ranking(ds, "contributions", title, column, _CONTRIBUTION_COLUMNS, note))
    return [table for table in tables if table.rows]


def _regime_table(ds: xr.Dataset) -> Table:
    labels = results.regimes(ds)
    known = int((labels != "").sum())
    meaning = {"retriever": "the token itself", "mixer": "the sink", "reset": "another token"}
    rows = []
    for regime in results.REGIMES:
        count = int((labels == regime).sum())
        share = f"{100 * count / known:.1f} %" if known else "–"
        rows.append((regime, meaning[regime], str(count), share))
    if unknown := labels.size - known:
        rows.append(("unknown", "no usable rows", str(unknown), "–"))
    return Table(
        "regimes",
        "Regime counts",
        ("regime", "most frequent winner", "heads", "share"),
        tuple(rows),
        (False, False, True, True),
        "The winner of a query is the token with the largest attention times value length.",
    )


def _ranking(
    ds: xr.Dataset, key: str, title: str, variable: str, columns: tuple[_Column, ...], note: str
) -> Table:
    shown = [column for column in columns if null_sinks.shown(ds, column.variable)]
    names = results.head_names(ds)
    labels = results.regimes(ds) if results.measured(ds, "regime") else None
    cells = [_cells(ds, column) for column in shown]
    rows = []
    for i, j in results.strongest(results.values(ds, variable), TOP):
        row = [names[i][j], *(cell(i, j) for cell in cells)]
        rows.append((*row, str(labels[i, j]) or "unknown") if labels is not None else tuple(row))
    headings = ["head", *(column.heading for column in shown)]
    numeric = [False, *(True for _ in shown)]
    if labels is not None:
        headings.append("regime")
        numeric.append(False)
    full_title = f"Ten {title}" if len(rows) == TOP else title[0].upper() + title[1:]
    return Table(key, full_title, tuple(headings), tuple(rows), tuple(numeric), note)


def _cells(ds: xr.Dataset, column: _Column) -> Callable[[int, int], str]:
    grid = results.values(ds, column.variable)
    error_name = f"{column.variable}_se"
    errors: Values | None = None
    if column.errors and results.measured(ds, error_name):
        errors = results.values(ds, error_name)

    def cell(i: int, j: int) -> str:
        text = column.text(grid[i, j])
        if errors is not None and np.isfinite(errors[i, j]):
            text += f" ± {errors[i, j]:.3f}"
        return text

    return cell
