"""The plotly maps as parts of a page: title above, description for those who cannot see it."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import figures, results
from tl_geometry.views.maps import MAPS, TS, coloured
from tl_geometry.views.page import Figure
from tl_geometry.views.results import number

_REGIME_READING = (
    "The colour of a head is the token that most often carries its largest weighted value "
    "(attention times value length): the looking token itself (retriever), the sink (mixer), or "
    "another one (reset; a tie counts as reset). Hover for the shares and the margin."
)


def regime_drawing(ds: xr.Dataset) -> Figure:
    """The regime map with its words."""
    figure = figures.regime_map(ds)
    labels = results.regimes(ds)
    counts = ", ".join(f"{int((labels == r).sum())} {r}" for r in results.REGIMES)
    return _drawing(
        "map-regime",
        figure,
        title="Regime of every head",
        label=f"Map of head regimes, {_size(ds)}: {counts}",
        reading=_REGIME_READING,
        source=TS,
        notes=_blank(int((labels == "").sum())),
    )


def map_drawing(ds: xr.Dataset, variable: str) -> Figure:
    """The map of one variable with its words."""
    figure = figures.head_map(ds, variable)
    spec, grid = MAPS[variable], results.values(ds, variable)
    finite = grid[np.isfinite(grid)]
    label = f"Map of {spec.title.lower()}, {_size(ds)}"
    if finite.size:
        low, middle, high = (spec.text(float(x)) for x in np.percentile(finite, [0, 50, 100]))
        label += f": {spec.quantity} from {low} to {high}, median {middle}"
    notes = _blank(int(grid.size - finite.size))
    if capped := coloured(spec, grid).capped:
        heads = "1 head lies" if capped == 1 else f"{capped} heads lie"
        notes.append(f"{heads} beyond the ends of the colour scale; the hover has the value.")
    return _drawing(
        f"map-{variable}",
        figure,
        title=spec.title,
        label=label,
        reading=spec.reading,
        source=spec.source,
        notes=notes,
    )


def _drawing(
    figure_id: str,
    figure: go.Figure,
    *,
    title: str,
    label: str,
    reading: str,
    source: str,
    notes: list[str],
) -> Figure:
    data = json.loads(str(figure.to_json()))
    layout = data["layout"]
    width, height = int(layout.pop("width")), int(layout["height"])
    del layout["title"]  # a heading of the page, not part of the drawing
    layout["margin"]["t"] = 8
    layout["height"] = height = height + layout["margin"]["t"] - 48
    return Figure(
        id=figure_id,
        kind="plotly",
        data=data,
        title=title,
        label=label,
        height=height,
        width=width,
        reading=reading,
        source=source,
        notes=notes,
    )


def _size(ds: xr.Dataset) -> str:
    return f"{number(ds.sizes['layer'], 0)} layers by {number(ds.sizes['head'], 0)} heads"


def _blank(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count} {'head is' if count == 1 else 'heads are'} blank: no value in this run."]
