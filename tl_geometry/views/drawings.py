"""The plotly maps as parts of a page: title above, description for those who cannot see it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import figures, results
from tl_geometry.views.hovers import factored
from tl_geometry.views.maps import MAPS, TS, HeadMap, coloured
from tl_geometry.views.parts import Choice, Figure
from tl_geometry.views.results import Values, number

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
    return drawing(
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
    return value_drawing(
        ds, figures.head_map(ds, variable), MAPS[variable], results.values(ds, variable)
    )


def value_drawing(ds: xr.Dataset, figure: go.Figure, spec: HeadMap, grid: Values) -> Figure:
    """The map of any values per layer and head with its words."""
    finite = grid[np.isfinite(grid)]
    label = f"Map “{spec.title}”, {_size(ds)}"
    if finite.size:
        low, middle, high = (spec.text(float(x)) for x in np.percentile(finite, [0, 50, 100]))
        label += f": {spec.quantity} from {low} to {high}, median {middle}"
    notes = _blank(int(grid.size - finite.size))
    if capped := coloured(spec, grid).capped:
        heads = "1 head lies" if capped == 1 else f"{capped} heads lie"
        notes.append(f"{heads} beyond the ends of the colour scale; the hover has the value.")
    return drawing(
        f"map-{spec.variable}",
        figure,
        title=spec.title,
        label=label,
        reading=spec.reading,
        source=spec.source,
        notes=notes,
    )


def drawing(
    figure_id: str,
    figure: go.Figure,
    *,
    title: str,
    label: str,
    reading: str,
    source: str,
    notes: Sequence[str] = (),
    choices: Sequence[Choice] = (),
    choice_of: str = "",
    above: int = 8,
    least: int = 0,
) -> Figure:
    """A plotly figure as a part of a page.

    Args:
        above: Pixels above the drawing, in place of its title.
        least: Pixels across, below which it scrolls instead of shrinking.
    """
    data = json.loads(str(figure.to_json()))
    layout = data["layout"]
    for trace in data["data"]:
        if trace["type"] == "heatmap" and (parts := factored(trace.get("hovertext", []))):
            trace["hover"] = parts
            del trace["hovertext"]
    width, height = int(layout.pop("width")), int(layout["height"])
    del layout["title"]  # a heading of the page, not part of the drawing
    layout["margin"]["t"] = above
    layout["height"] = height = height + layout["margin"]["t"] - 48
    return Figure(
        id=figure_id,
        kind="plotly",
        data=data,
        title=title,
        label=label,
        height=height,
        width=width,
        least=least,
        reading=reading,
        source=source,
        notes=notes,
        choices=choices,
        choice_of=choice_of,
    )


def _size(ds: xr.Dataset) -> str:
    return f"{number(ds.sizes['layer'], 0)} layers by {number(ds.sizes['head'], 0)} heads"


def _blank(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count} {'head is' if count == 1 else 'heads are'} blank: no value in this run."]
