"""Plotly figures of how sinks act on outputs: their length against the sink rate, the optimum."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.averages import estimate
from tl_geometry.views.curves import heads_of
from tl_geometry.views.page import rounded
from tl_geometry.views.parabolas import NORM, RATE_BIN, Parabola, fitted, norms_by_rate
from tl_geometry.views.results import Values, number
from tl_geometry.views.traces import Series, band, graded, legend, line

GAPS, GAP_BIN = "optimum_gap_histogram", "gap_bin"

_MEAN = Series(NORM, "rows with this sink rate", "#123f80", "solid", "circle")
_FIT = Series("", "parabola fitted to |o|²", "#a9640a", "dash", "diamond")
_OPTIMUM = Series("sink_optimum", "mean optimum a*", "#8b2f7f", "dot", "line-ns")
_SHARE = "share of rows %{y:.3f} ± %{error_y.array:.3f}<extra></extra>"


def norm_against_sink_rate(ds: xr.Dataset, *, layer: object | None = None) -> go.Figure:
    """Output length against the attention to the sink, mean over heads, with a fitted parabola.

    Example:
        >>> norm_against_sink_rate(ds, layer=12).show()  # doctest: +SKIP

    Rows are binned by their sink rate a; |o| is in units of the head's mean over all its rows. The
    parabola is fitted to the squares of the means, weighted by the number of heads with rows in a bin.
    Cunningham & Muca Cirone, arXiv 2606.07604; the optimum a* (the attention at which a row's own
    output would be shortest) is our reconstruction. Bands: two standard errors over documents to
    each side, as wide as they can be (`tl_geometry.views.averages`).

    Args:
        ds: A result of `analyze` with `Sinks`.
        layer: Only the heads of this layer, by its label.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no such lengths, or no such layer.
    """
    results.check_result(ds)
    figure = go.Figure(norm_traces(ds, heads_of(ds, layer=layer)))
    title = "Output length against sink rate" + ("" if layer is None else f", layer {layer}")
    figure.update_layout(style.layout(title, width=470, height=440), legend=legend())
    ticks = graded("sink rate a of a row", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]) | {"range": [0, 1]}
    length = graded("|o| over the head's mean |o|") | {"rangemode": "tozero"}
    figure.update_layout(xaxis=ticks, yaxis=length)
    return figure


def norm_traces(ds: xr.Dataset, heads: Values) -> list[go.Scatter]:
    """The traces of `norm_against_sink_rate` for the heads that are marked."""
    norms = norms_by_rate(ds)
    mean = norms.mean(heads)
    a = np.asarray(ds[RATE_BIN].values, dtype=np.float64)
    counts = np.isfinite(norms.value[heads]).sum(0)
    half = 0.5 / len(a)
    labels = [
        f"sink rate {number(x - half)} to {number(x + half)}, heads: {n}"
        for x, n in zip(a.tolist(), counts.tolist(), strict=True)
    ]
    drawn = [band(_MEAN, a.tolist(), mean), line(_MEAN, a.tolist(), mean, labels)]
    parabola = fitted(ds, heads)
    drawn += _fit_traces(parabola)
    known = mean.value[np.isfinite(mean.value)]
    return [*drawn, _optimum_trace(ds, heads, float(known.max()) if known.size else 1.0)]


def _fit_traces(parabola: Parabola | None) -> list[go.Scatter]:
    """The fitted curve, and its minimum where it has one."""
    x = np.linspace(parabola.low, parabola.high, 31) if parabola else np.zeros(0)
    y = parabola.length(x) if parabola else x
    lowest = parabola.lowest if parabola else np.nan
    found = parabola is not None and np.isfinite(lowest)
    bottom = parabola.length(np.array([lowest])) if parabola and found else np.zeros(0)
    bend = number(float(parabola.coefficients[2])) if parabola else "–"
    shape = {"color": _FIT.colour, "dash": _FIT.dash, "width": 2}
    mark = {"symbol": _FIT.symbol, "size": 12, "color": "#ffffff"}
    return [
        go.Scatter(
            x=rounded(x),
            y=rounded(y),
            mode="lines",
            name=_FIT.name,
            line=shape,
            hovertext=f"fitted parabola: c₂ = {bend}",
            hoverinfo="text",
        ),
        go.Scatter(
            x=[round(lowest, 4)] if found else [],
            y=rounded(bottom),
            mode="markers",
            name="its minimum",
            marker=mark | {"line": {"color": _FIT.colour, "width": 2}},
            hovertext=f"the parabola is lowest at a = {number(lowest)}",
            hoverinfo="text",
        ),
    ]


def _optimum_trace(ds: xr.Dataset, heads: Values, top: float) -> go.Scatter:
    optimum = np.nan
    if results.measured(ds, "sink_optimum"):
        optimum = float(estimate(ds, "sink_optimum", "layer", "head").mean(heads).value)
    found = np.isfinite(optimum)
    return go.Scatter(
        x=[round(optimum, 4)] * 2 if found else [],
        y=[0, round(top, 4)] if found else [],
        mode="lines",
        name=_OPTIMUM.name,
        line={"color": _OPTIMUM.colour, "dash": _OPTIMUM.dash, "width": 2},
        hovertext=f"mean a* = {number(optimum)}",
        hoverinfo="text",
    )


def optimum_gaps(ds: xr.Dataset, *, layer: object | None = None) -> go.Figure:
    """How far rows are from their optimum: histogram of a - a*, mean over heads.

    Example:
        >>> optimum_gaps(ds).show()  # doctest: +SKIP

    To the left of 0 more attention to the sink would shorten the output, to the right less would.
    Cunningham & Muca Cirone, arXiv 2606.07604; a* is our reconstruction, clipped to [0, 1].

    Args:
        ds: A result of `analyze` with `Sinks`.
        layer: Only the heads of this layer, by its label.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no such histogram, or no such layer.
    """
    results.check_result(ds)
    figure = go.Figure(gap_traces(ds, heads_of(ds, layer=layer)))
    title = "Sink rate minus its optimum" + ("" if layer is None else f", layer {layer}")
    figure.update_layout(style.layout(title, width=410, height=440), showlegend=False, bargap=0.06)
    zero = {"zeroline": True, "zerolinecolor": style.INK, "zerolinewidth": 1}
    ticks = graded("a − a* of a row", [-1.0, -0.5, 0.0, 0.5, 1.0]) | {"range": [-1.02, 1.02]}
    share = graded("share of rows") | {"rangemode": "tozero"}
    figure.update_layout(xaxis=ticks | zero, yaxis=share)
    return figure


def gap_traces(ds: xr.Dataset, heads: Values) -> list[go.Bar]:
    """The bars of `optimum_gaps` for the heads that are marked, with their intervals."""
    mean = estimate(ds, GAPS, "layer", "head", GAP_BIN).mean(heads)
    x = np.asarray(ds[GAP_BIN].values, dtype=np.float64)
    whisker = {"type": "data", "color": "#59616b", "thickness": 1, "width": 2}
    return [
        go.Bar(
            x=rounded(x),
            y=rounded(mean.value),
            marker={"color": "#4f87bd"},
            error_y=whisker | {"array": rounded(2 * mean.error)},
            hovertemplate=f"a − a* within {1 / len(x):.2g} of %{{x:.2f}}<br>{_SHARE}",
        )
    ]
