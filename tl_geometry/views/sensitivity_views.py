"""One head removed at a time: the map of the loss, outliers by name, and their place on a page."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import figures, results, style
from tl_geometry.views.drawings import value_drawing
from tl_geometry.views.estimates import (
    Estimates,
    bootstrap_note,
    estimates,
    listed,
    over_documents,
    require_evaluation,
)
from tl_geometry.views.maps import TS, HeadMap
from tl_geometry.views.page import rounded
from tl_geometry.views.parts import Section
from tl_geometry.views.results import Values, number, significant
from tl_geometry.views.summary import TOP, Table

DELTA_NLL = HeadMap(
    "delta_nll",
    "Loss without the head",
    "delta NLL, nats",
    "signed",
    significant,
    "NLL without this one head minus NLL of the whole model. Blue: the loss rises, the head is missed; "
    "brown: it falls. Framed heads are outliers; the ten largest are named.",
    TS,
)
_INTRODUCTION = (
    "Each head is removed alone ({mode}), all else stays as it is. A head is an outlier where its delta "
    "NLL lies more than 5 robust standard deviations (1.4826 times the median absolute deviation over "
    "the heads) from the median."
)
_NAMED = 10


def sensitivity_map(ds: xr.Dataset) -> go.Figure:
    """Delta NLL of every head removed alone, layer by head; outliers are framed and the largest named.

    Example:
        >>> sensitivity_map(head_sensitivity(model, texts)).show()  # doctest: +SKIP

    Nats per token; the colours end at the 99th percentile. Mudarisov et al., arXiv 2602.01893.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `head_sensitivity`.
    """
    require_evaluation(ds, "head_sensitivity")
    delta, outlier = _delta(ds), _outliers(ds)
    figure = figures.value_map(ds, DELTA_NLL, delta.value, np.full(delta.value.shape, np.nan))
    heat = figure.data[0]
    heat.z = rounded(delta.value, 8)
    heat.hovertext = _hover(ds, delta, outlier)
    ranked = _ranked(np.where(outlier, np.abs(delta.value), np.nan))
    names = results.head_names(ds)
    for i, j in ranked:
        line = {"color": style.INK, "width": 2}
        figure.add_shape(type="rect", x0=j - 0.5, x1=j + 0.5, y0=i - 0.5, y1=i + 0.5, line=line)
    for i, j in ranked[:_NAMED]:
        left = j < ds.sizes["head"] / 2
        figure.add_annotation(
            x=j + (0.5 if left else -0.5),
            y=i,
            text=style.text(names[i][j]),
            showarrow=False,
            xanchor="left" if left else "right",
            xshift=2 if left else -2,
            font={"size": 11, "color": style.INK},
            bgcolor="rgba(255,255,255,0.8)",
            borderpad=1,
        )
    return figure


def _hover(ds: xr.Dataset, delta: Estimates, outlier: Values) -> list[list[str]]:
    def cell(i: int, j: int) -> str:
        if not np.isfinite(delta.value[i, j]):
            return "not available"
        return f"delta NLL {delta.text((i, j))}{', outlier' if outlier[i, j] else ''}"

    return [
        [f"{style.text(name)}: {cell(i, j)}" for j, name in enumerate(row)]
        for i, row in enumerate(results.head_names(ds))
    ]


def _delta(ds: xr.Dataset) -> Estimates:
    return estimates(ds.transpose("layer", "head", ...), "delta_nll")


def _outliers(ds: xr.Dataset) -> Values:
    return np.asarray(ds["outlier"].transpose("layer", "head").values, dtype=bool)


def _ranked(grid: Values) -> list[tuple[int, int]]:
    return results.strongest(grid, grid.size)


def _deviations(delta: Values) -> Values:
    """Distances from the median in robust standard deviations; NaN where more than half are equal."""
    distance = np.abs(delta - np.nanmedian(delta))
    spread = 1.4826 * np.nanmedian(distance)
    return distance / spread if spread > 0 else np.full(delta.shape, np.nan)


def sensitivity_tables(ds: xr.Dataset) -> list[Table]:
    """All outliers, and the ten heads whose removal raises and lowers the loss most.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `head_sensitivity`.
    """
    require_evaluation(ds, "head_sensitivity")
    value = _delta(ds).value
    outliers = _ranked(np.where(_outliers(ds), np.abs(value), np.nan))
    raised = _ranked(np.where(value > 0, value, np.nan))[:TOP]
    lowered = _ranked(np.where(value < 0, -value, np.nan))[:TOP]
    tables = [
        _table(ds, "outliers", "Outliers, largest first", outliers),
        _table(ds, "raised", "Heads whose removal raises the loss most", raised),
        _table(ds, "lowered", "Heads whose removal lowers the loss most", lowered),
    ]
    return [table for table in tables if table.rows]


def _table(ds: xr.Dataset, key: str, title: str, heads: list[tuple[int, int]]) -> Table:
    delta, names = _delta(ds), results.head_names(ds)
    far, outlier = _deviations(delta.value), _outliers(ds)
    rows = [
        (
            names[i][j],
            delta.text((i, j)),
            number(float(far[i, j]), 1),
            "yes" if outlier[i, j] else "no",
        )
        for i, j in heads
    ]
    return Table(
        key,
        title,
        ("head", "delta NLL, nats per token", "deviations", "outlier"),
        tuple(rows),
        (False, True, True, False),
        "Deviations: distance from the median head in robust standard deviations; above 5 a head is an "
        "outlier.",
    )


def sentences(ds: xr.Dataset) -> list[str]:
    """What the run found."""
    delta, names = _delta(ds), results.head_names(ds)
    ranked = _ranked(delta.value)
    if not ranked:
        return []
    most, least = ranked[0], ranked[-1]
    found = [
        f"The whole model has an NLL of {estimates(ds, 'nll').text()} nats per token"
        f"{over_documents(ds)}. Without one head it changes by between {delta.text(least)} "
        f"({names[least[0]][least[1]]}) and {delta.text(most)} ({names[most[0]][most[1]]}); in the median "
        f"by {significant(float(np.nanmedian(delta.value)))}."
    ]
    if np.isfinite(delta.low).any():
        rises, falls = int((delta.low > 0).sum()), int((delta.high < 0).sum())
        found.append(
            f"By its interval the loss rises without {rises} of {len(ranked)} heads and falls without "
            f"{falls}."
        )
    outliers = [str(name) for name in ds.attrs.get("outliers", [])]
    if not outliers:
        return [*found, "No head is an outlier."]
    shown = listed(outliers[:_NAMED])
    more = f", and {len(outliers) - _NAMED} more (see the table)" if len(outliers) > _NAMED else ""
    verb = "The only outlier is" if len(outliers) == 1 else f"{len(outliers)} heads are outliers:"
    return [*found, f"{verb} {shown}{more}."]


def section(ds: xr.Dataset) -> Section:
    """All about heads removed one at a time."""
    mode = ds.attrs.get("settings", {}).get("mode", "zero")
    words = {"zero": "its output set to zero", "mean": "its output set to its running mean"}
    figure = value_drawing(ds, sensitivity_map(ds), DELTA_NLL, _delta(ds).value)
    return Section(
        id="sensitivity",
        title="One head at a time",
        introduction=_INTRODUCTION.format(mode=words.get(mode, mode)),
        figures=(figure,),
        tables=tuple(sensitivity_tables(ds)),
        notes=(bootstrap_note(ds),),
    )
