"""Profiles: lines over the layers of a model, with their intervals; and states that a reader chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.averages import Quantity, estimate, held
from tl_geometry.views.parts import Choice
from tl_geometry.views.traces import Series, band, graded, legend, line

_CHANGING = ("x", "y", "hovertext", "error_y")


def profile(
    ds: xr.Dataset, title: str, axis: str, shown: Sequence[tuple[Series, Quantity]]
) -> go.Figure:
    """Quantities per layer as lines with bands, in a figure as wide as a page.

    Args:
        ds: Names the layers.
        title: Of the figure.
        axis: Title of the vertical axis.
        shown: What to draw, one value per layer each.
    """
    figure = go.Figure(profile_traces(ds, shown))
    figure.update_layout(style.layout(title, width=1010, height=400), legend=legend(above=True))
    # Room above for two rows of the legend.
    figure.update_layout(margin={"t": 80}, title={"yref": "container", "y": 0.97, "yanchor": "top"})
    span = [-0.5, ds.sizes["layer"] - 0.5]
    labels = style.thinned("layer", results.layer_labels(ds), most=16)
    zero = {"zeroline": True, "zerolinecolor": style.INK, "zerolinewidth": 1}
    figure.update_layout(xaxis=labels | {"range": span}, yaxis=graded(axis) | zero)
    return figure


def over_layers(ds: xr.Dataset, wanted: Sequence[Series]) -> list[tuple[Series, Quantity]]:
    """Those of some variables per layer that the run holds.

    Raises:
        ValueError: when it does not hold the first.
    """
    present = [series for series in wanted[1:] if held(ds, series.variable, "layer")]
    return [(s, estimate(ds, s.variable, "layer")) for s in (wanted[0], *present)]


def profile_traces(ds: xr.Dataset, shown: Sequence[tuple[Series, Quantity]]) -> list[go.Scatter]:
    """The bands and lines of `profile`."""
    x = [float(i) for i in range(ds.sizes["layer"])]
    names = [f"layer {label}" for label in results.layer_labels(ds)]
    traces = []
    for series, quantity in shown:
        traces += [band(series, x, quantity), line(series, x, quantity, names)]
    return traces


def shade(figure: go.Figure, ds: xr.Dataset, words: str) -> None:
    """Lay a grey strip under the middle third of the layers, with its name; nothing where there is none."""
    middle = results.middle_layers(ds)
    if middle is None:
        return
    places = middle.nonzero()[0]
    low, high = float(places[0]) - 0.5, float(places[-1]) + 0.5
    grey = {"fillcolor": "#eeedea", "line": {"width": 0}, "layer": "below"}
    figure.add_shape(type="rect", yref="paper", x0=low, x1=high, y0=0, y1=1, **grey)
    small = {"size": 11, "color": "#59616b"}
    place = {"x": high, "xanchor": "right", "y": 1, "yanchor": "bottom", "yref": "paper"}
    figure.add_annotation(text=words, showarrow=False, font=small, **place)


def choice(name: str, traces: Sequence[go.Scatter | go.Bar], label: str) -> Choice:
    """A state of a drawing that the reader can choose, from its traces."""
    drawn: list[dict[str, Any]] = json.loads(str(go.Figure(traces).to_json()))["data"]
    return Choice(name, [{k: t[k] for k in _CHANGING if k in t} for t in drawn], label)
