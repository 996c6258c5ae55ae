"""Plotly figures of attention switches: how often heads are off, and what they attend to meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.averages import (
    PREFERRED_FRACTION,
    Quantity,
    estimate,
    fractions,
    nearest_fraction,
)
from tl_geometry.views.page import rounded
from tl_geometry.views.results import Values
from tl_geometry.views.traces import unit_axis

FRACTION = "fraction"
_OFF = "%{text}: sink rate %{x:.2f}, off in %{y:.2f} of its rows<extra></extra>"
_ON = "%{text}: sink rate of its rows %{x:.2f} on, %{y:.2f} off<extra></extra>"
_DEPTH = [(0.0, "#8fb5d9"), (0.5, "#2f6aa8"), (1.0, "#0a2a5c")]


def by_fraction(ds: xr.Dataset, name: str) -> Quantity:
    """A variable per layer, head and fraction.

    Raises:
        ValueError: when `ds` holds no such variable (`Switches` measures it).
    """
    return estimate(ds, name, "layer", "head", FRACTION)


def off_rates(ds: xr.Dataset, fraction: int | float = PREFERRED_FRACTION) -> go.Figure:
    """How often each head is off, against the attention that it gives to the sink.

    Example:
        >>> off_rates(ds, fraction=0.2).show()  # doctest: +SKIP

    A row is off when its output is shorter than `fraction` times the document's median |v W_O|.
    After Sukenik et al., arXiv 2605.08453.

    Args:
        ds: A result of `analyze` with `Switches` and `Sinks`.
        fraction: The nearest one of the run is drawn.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no off-rates or no sink rates, or `fraction` is not positive.
    """
    results.check_result(ds)
    by_fraction(ds, "off_rate")
    place = nearest_fraction(ds, fraction)
    figure = go.Figure(off_traces(ds, place))
    return _over_heads(figure, ds, place, "Heads that are off", "sink rate", "rows that are off")


def off_traces(ds: xr.Dataset, place: int) -> list[go.Scatter]:
    """The marks of `off_rates` at one place of the axis `fraction`."""
    rates = estimate(ds, "sink_rate", "layer", "head").value
    return [_heads(ds, rates, by_fraction(ds, "off_rate").value[:, :, place], _OFF)]


def off_and_on(ds: xr.Dataset, fraction: int | float = PREFERRED_FRACTION) -> go.Figure:
    """Attention to the sink of each head's rows that are off, against that of its other rows.

    Example:
        >>> off_and_on(ds).show()  # doctest: +SKIP

    Above the dashed line a head attends to the sink more when it is off. After Sukenik et al.,
    arXiv 2605.08453.

    Args:
        ds: A result of `analyze` with `Switches`.
        fraction: The nearest one of the run is drawn.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no such rates, or `fraction` is not positive.
    """
    results.check_result(ds)
    by_fraction(ds, "sink_rate_off")
    place = nearest_fraction(ds, fraction)
    figure = go.Figure(on_traces(ds, place))
    return _over_heads(
        figure, ds, place, "The sink in rows that are off", "sink rate, rows on", "rows off"
    )


def on_traces(ds: xr.Dataset, place: int) -> list[go.Scatter]:
    """The dashed line and the marks of `off_and_on` at one place of the axis `fraction`."""
    alike = go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        line={"color": "#6b727c", "dash": "dash", "width": 1},
        hoverinfo="skip",
    )
    off, on = (by_fraction(ds, f"sink_rate_{name}").value[:, :, place] for name in ("off", "on"))
    return [alike, _heads(ds, on, off, _ON)]


def _heads(ds: xr.Dataset, x: Values, y: Values, hover: str) -> go.Scatter:
    """One mark for each head, the darker the deeper its layer; none where a value is missing."""
    depth = np.broadcast_to(np.arange(x.shape[0])[:, None], x.shape)
    missing = ~(np.isfinite(x) & np.isfinite(y))
    return go.Scatter(
        x=rounded(np.where(missing, np.nan, x).ravel(), 3),
        y=rounded(np.where(missing, np.nan, y).ravel(), 3),
        mode="markers",
        marker={
            "size": 7,
            "opacity": 0.8,
            "color": depth.ravel().tolist(),
            "coloraxis": "coloraxis",
        },
        text=[style.text(name) for row in results.head_names(ds) for name in row],
        hovertemplate=hover,
    )


def _over_heads(
    figure: go.Figure, ds: xr.Dataset, place: int, title: str, x: str, y: str
) -> go.Figure:
    full_title = f"{title}, f = {fractions(ds)[place]:g}"
    figure.update_layout(style.layout(full_title, width=440, height=420), showlegend=False)
    figure.update_layout(xaxis=unit_axis(x), yaxis=unit_axis(y), coloraxis=_depth_axis(ds))
    return figure


def _depth_axis(ds: xr.Dataset) -> dict[str, Any]:
    """The colours of the layers, with a bar that names a few of them."""
    labels = results.layer_labels(ds)
    shown = style.thinned("layer", labels, most=6)
    bar = {
        "title": {"text": "layer", "side": "right", "font": {"size": 12}},
        "thickness": 10,
        "outlinewidth": 0,
        "tickvals": shown["tickvals"],
        "ticktext": shown["ticktext"],
    }
    return {"colorscale": _DEPTH, "cmin": 0, "cmax": max(1, len(labels) - 1), "colorbar": bar}
