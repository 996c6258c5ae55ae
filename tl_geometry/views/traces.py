"""Lines with their intervals, panels side by side, and the axes of N and F."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tl_geometry.views import averages, style
from tl_geometry.views.averages import Quantity
from tl_geometry.views.estimates import Estimates
from tl_geometry.views.page import rounded

Means: TypeAlias = Quantity | Estimates

PANEL_TITLES = 34
"""Pixels that the titles of panels take above them."""

_MOST_TICKS = 8
_ALONE = "N = 1: not compared"


@dataclass(frozen=True)
class Series:
    """One line: what it shows and how it is told apart without colours."""

    variable: str
    name: str
    colour: str
    dash: str
    symbol: str


def along_n(ds: xr.Dataset, series: Series, mean: Quantity, more: str = "") -> list[go.Scatter]:
    """Line and band over log2 N; N = 1 stands apart, a hollow mark."""
    x = np.log2(averages.sizes(ds)).tolist()
    labels = [f"N = {n}" for n in averages.sizes(ds)]
    rest = averages.compared(ds)
    alone = [place for place in range(len(x)) if place not in rest]
    along = [x[k] for k in rest]
    main = line(series, along, mean[rest], [labels[k] for k in rest], more)
    traces = [band(series, along, mean[rest]), main]
    if alone:
        single = line(series, [x[k] for k in alone], mean[alone], [labels[k] for k in alone])
        single.update(mode="markers", showlegend=False)
        single.marker.symbol = f"{series.symbol}-open"
        traces.append(single)
    return traces


def line(
    series: Series,
    x: Sequence[int | float],
    mean: Means,
    labels: Sequence[str],
    more: str = "",
    digits: int = 4,
) -> go.Scatter:
    """Marks joined by a line; labels are for the hover, `more` goes into the legend."""
    texts = [f"{style.text(labels[k])}<br>{series.name}: {mean.text(k)}" for k in range(len(x))]
    return go.Scatter(
        x=list(x),
        y=rounded(mean.value, digits),
        mode="lines+markers",
        name=series.name + more,
        line={"color": series.colour, "dash": series.dash, "width": 2},
        marker={"symbol": series.symbol, "size": 7, "color": series.colour},
        hovertext=texts,
        hoverinfo="text",
    )


def band(series: Series, x: Sequence[int | float], mean: Means, digits: int = 4) -> go.Scatter:
    """The intervals as areas, one for each stretch without a gap."""
    known = np.flatnonzero(np.isfinite(mean.low))
    stretches = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if known.size else []
    xs: list[Any] = []
    ys: list[Any] = []
    for stretch in stretches:
        there, back = stretch.tolist(), stretch.tolist()[::-1]
        xs += [*(x[k] for k in there), *(x[k] for k in back), None]
        ys += [*rounded(mean.low[there], digits), *rounded(mean.high[back], digits), None]
    red, green, blue = (int(series.colour[k : k + 2], 16) for k in (1, 3, 5))
    return go.Scatter(
        x=xs[:-1],
        y=ys[:-1],
        mode="lines",
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.16)",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )


def against_n(ds: xr.Dataset, *, alone_at: Literal["top", "bottom"]) -> dict[str, Any]:
    """The axis of N, its grey strip for N = 1 with the words at one end, and the legend."""
    numbers = averages.sizes(ds)
    x = np.log2(numbers).tolist()
    span = [min(x) - 0.4, max(x) + 0.3]
    found: dict[str, Any] = {
        "xaxis": style.axis("N (logarithmic)", x, [str(n) for n in numbers]) | {"range": span},
        "legend": legend(),
    }
    if 1 in numbers and len(numbers) > 1:
        edge = sorted(x)[1] / 2
        grey = {"type": "rect", "yref": "paper", "x0": span[0], "x1": edge, "y0": 0, "y1": 1}
        found["shapes"] = [grey | {"fillcolor": "#eeedea", "line": {"width": 0}, "layer": "below"}]
        note = {"text": _ALONE, "textangle": -90, "x": span[0], "xanchor": "left"}
        place = {"y": 0.98 if alone_at == "top" else 0.02, "yanchor": alone_at}
        small = {"size": 11, "color": "#59616b"}
        found["annotations"] = [note | place | {"yref": "paper", "showarrow": False, "font": small}]
    return found


def panels(
    titles: Sequence[str],
    *,
    rows: int = 1,
    title: str,
    width: int,
    height: int,
    shared: bool = True,
) -> go.Figure:
    """Empty panels in a row, or in several under one another, with the titles above the columns.

    Args:
        titles: Of the columns.
        rows: How many panels stand under one another.
        title: Of the figure.
        width: Of the figure in pixels.
        height: Of the figure in pixels.
        shared: Whether the panels of a row have one vertical axis.
    """
    figure = make_subplots(
        rows=rows,
        cols=len(titles),
        column_titles=[style.text(name) for name in titles],
        shared_yaxes=shared,
        horizontal_spacing=0.025 if shared else 0.1,
        vertical_spacing=0.07,
    )
    figure.update_annotations(font={"size": 13})
    figure.update_layout(style.layout(title, width=width, height=height))
    figure.update_layout(margin={"t": 48 + PANEL_TITLES})
    figure.update_xaxes(graded(""))
    figure.update_yaxes(graded(""))
    return figure


def graded(title: str, ticks: Sequence[int | float] = ()) -> dict[str, Any]:
    """An axis with grid lines; without ticks plotly chooses them."""
    grid: dict[str, Any] = {"showgrid": True, "gridcolor": "#e6e4de"}
    axis = style.axis(title, list(ticks), [f"{tick:g}" for tick in ticks]) | grid
    if not ticks:
        del axis["tickvals"], axis["ticktext"]
    return axis


def decades(low: int | float, high: int | float) -> dict[str, Any]:
    """Ticks of a logarithmic axis at 1, 2, 5, 10, ... from low to high; only powers of ten if these are many.

    Example:
        >>> decades(0.5, 12)["ticktext"], decades(0.01, 100)["ticktext"]
        (['0.5', '1', '2', '5', '10'], ['0.01', '0.1', '1', '10', '100'])
    """
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [float(f"{m}e{k}") for k in powers for m in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > _MOST_TICKS:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1.")]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def logarithmic(figure: go.Figure, direction: str) -> dict[str, Any]:
    """A logarithmic axis over what the traces span."""
    shown = [x for trace in figure.data for x in trace[direction] or () if x is not None and x > 0]
    low, high = (min(shown), max(shown)) if shown else (1.0, 10.0)
    return {"type": "log"} | decades(low / 1.5, high * 1.5)


def unit_axis(title: str = "F") -> dict[str, Any]:
    """The axis of F, from 0 to 1 whatever the data."""
    return graded(title, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]) | {"range": [-0.03, 1.03]}


def legend(*, above: bool = False) -> dict[str, Any]:
    """A legend below the drawing, or above it where the labels of the axis may be long."""
    place = {"y": 1.02, "yanchor": "bottom"} if above else {"y": -0.2, "yanchor": "top"}
    return {"orientation": "h", "x": 0, "font": {"size": 12}} | place
