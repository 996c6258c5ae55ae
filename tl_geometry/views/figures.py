"""Plotly maps of a result, layer by head. Every function takes a Dataset and returns a Figure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.maps import MAPS, HeadMap, coloured
from tl_geometry.views.page import rounded
from tl_geometry.views.results import Values, number
from tl_geometry.views.style import REGIME_COLOURS


def regime_map(ds: xr.Dataset) -> go.Figure:
    """Which regime every head is in; hover for the shares behind it.

    Example:
        >>> regime_map(ds).show()  # doctest: +SKIP

    Regimes after Mudarisov et al., arXiv 2602.01893. Heads without a regime stay blank.

    Raises:
        ValueError: when `ds` holds no regimes.
    """
    results.check_result(ds)
    _require(ds, "regime")
    labels = results.regimes(ds)
    codes = np.full(labels.shape, np.nan)
    for code, regime in enumerate(results.REGIMES):
        codes[labels == regime] = code
    edges = enumerate(REGIME_COLOURS.values())
    steps = [(edge / 3, colour) for k, colour in edges for edge in (k, k + 1)]
    heat = go.Heatmap(
        z=rounded(codes),
        zmin=-0.5,
        zmax=2.5,
        colorscale=steps,
        showscale=False,
    )
    figure = _map_figure(ds, heat, _regime_hover(ds, labels), "Regime of every head")
    for regime in results.REGIMES:
        count = int((labels == regime).sum())
        marker = {"symbol": "square", "size": 13, "color": REGIME_COLOURS[regime]}
        name = f"{regime} ({count})"
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name))
    figure.update_layout(
        showlegend=True,
        legend={"itemclick": False, "itemdoubleclick": False},
    )
    return figure


def head_map(ds: xr.Dataset, variable: str) -> go.Figure:
    """A map of one variable of the result, with the colours and the words of `maps.MAPS`.

    Example:
        >>> head_map(ds, "sink_rate").show()  # doctest: +SKIP

    Raises:
        ValueError: when there is no such map, or `ds` does not hold the variable.
    """
    results.check_result(ds)
    if variable not in MAPS:
        raise ValueError(f"variable={variable!r} has no map; there are maps of {sorted(MAPS)}")
    _require(ds, variable)
    return value_map(ds, MAPS[variable], results.values(ds, variable), errors_of(ds, variable))


def value_map(ds: xr.Dataset, spec: HeadMap, grid: Values, errors: Values) -> go.Figure:
    """A map of any values per layer and head of `ds`, with their standard errors in the hover."""
    colours = coloured(spec, grid)
    bar = {
        "title": {"text": colours.title, "side": "right", "font": {"size": 12}},
        "thickness": 12,
        "outlinewidth": 0,
        "len": 1.0,
        "tickvals": colours.tick_positions,
        "ticktext": colours.tick_labels,
    }
    heat = go.Heatmap(
        z=rounded(colours.z),
        zmin=colours.low,
        zmax=colours.high,
        colorscale=colours.scale,
        colorbar=bar,
    )
    return _map_figure(ds, heat, _value_hover(ds, spec, grid, errors), spec.title)


def errors_of(ds: xr.Dataset, variable: str) -> Values:
    """Standard errors of a variable, NaN where the run has none."""
    name = f"{variable}_se"
    if results.measured(ds, name):
        return results.values(ds, name)
    return np.full((ds.sizes["layer"], ds.sizes["head"]), np.nan)


def _require(ds: xr.Dataset, variable: str) -> None:
    if not results.measured(ds, variable):
        held = sorted(str(name) for name in ds.data_vars)
        raise ValueError(f"ds holds no {variable!r} per layer and head; it holds {held}")


def _value_hover(ds: xr.Dataset, spec: HeadMap, grid: Values, errors: Values) -> list[list[str]]:
    def cell(i: int, j: int) -> str:
        if not np.isfinite(grid[i, j]):
            return "not available"
        text = f"{spec.quantity} {spec.text(grid[i, j])}"
        return text + (f" ± {errors[i, j]:.3f}" if np.isfinite(errors[i, j]) else "")

    return _hover(ds, cell)


def _regime_hover(ds: xr.Dataset, labels: Values) -> list[list[str]]:
    grids = {
        word: results.values(ds, name)
        for word, name in (
            ("self", "self_share"),
            ("sink", "sink_share"),
            ("other", "other_share"),
            ("margin", "regime_margin"),
            ("rows", "regime_rows"),
        )
        if results.measured(ds, name)
    }

    def cell(i: int, j: int) -> str:
        shares = [f"{k} {number(grids[k][i, j])}" for k in ("self", "sink", "other") if k in grids]
        evidence = [f"margin {number(grids['margin'][i, j])}"] if "margin" in grids else []
        evidence += [f"{number(grids['rows'][i, j], 0)} rows"] if "rows" in grids else []
        lines = [str(labels[i, j]) or "regime unknown", " · ".join(shares), " · ".join(evidence)]
        return "<br>".join(line for line in lines if line)

    return _hover(ds, cell)


def _hover(ds: xr.Dataset, cell: Callable[[int, int], str]) -> list[list[str]]:
    names = results.head_names(ds)
    return [
        [f"{style.text(name)}: {cell(i, j)}" for j, name in enumerate(row)]
        for i, row in enumerate(names)
    ]


def _map_figure(ds: xr.Dataset, heat: go.Heatmap, hover: list[list[str]], title: str) -> go.Figure:
    layers, heads = results.layer_labels(ds), results.head_labels(ds)
    gap = 1 if len(layers) * len(heads) <= 1200 else 0
    heat.update(hovertext=hover, hoverinfo="text", xgap=gap, ygap=gap)
    figure = go.Figure(heat)
    plot_height = max(150, min(22, max(9, 528 // len(layers))) * len(layers))
    cell_width = min(30, max(11, 700 // len(heads)))
    widest = max(len(label) for label in layers)
    width = max(340, 170 + min(7 * widest, 190) + cell_width * len(heads))
    figure.update_layout(
        style.layout(title, width=width, height=100 + plot_height),
        xaxis=style.thinned("head", heads, most=16),
        yaxis=style.thinned("layer", layers, most=24) | {"autorange": "reversed"},
    )
    return figure
