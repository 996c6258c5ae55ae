"""Plotly figures of the angles that make a sink: of its value, and of its token, with the others."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.averages import estimate
from tl_geometry.views.page import rounded
from tl_geometry.views.profiles import over_layers, profile, shade
from tl_geometry.views.traces import Series, band, line

Space: TypeAlias = Literal["value", "model"]
SPACES: dict[Space, str] = {"value": "sink_cosine", "model": "sink_cosine_model"}

_LAYER = Series("", "mean over the layer's heads", "#a9640a", "solid", "diamond")
_BOS = (
    Series("bos_cosine", "mean over the others", "#123f80", "solid", "circle"),
    Series("bos_cosine_max", "largest", "#a9640a", "dash", "triangle-up"),
)


def sink_cosines(ds: xr.Dataset, *, space: Space = "value") -> go.Figure:
    """Mean cosine of the sink's value with the other values: every head, and the mean of each layer.

    Example:
        >>> sink_cosines(ds, space="model").show()  # doctest: +SKIP

    Below 0 the sink's value points away from the others. Mudarisov et al., arXiv 2602.01893 (value
    space); Cunningham & Muca Cirone, arXiv 2606.07604 (projected values).

    Args:
        ds: A result of `analyze` with `Sinks`.
        space: "value" (v) or "model" (v W_O).

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no such cosines, or there is no such space.
    """
    results.check_result(ds)
    if space not in SPACES:
        raise ValueError(f"space={space!r} must be one of {list(SPACES)}")
    figure = profile(ds, f"Angle of the sink’s value, {space} space", "mean cosine", [])
    return figure.add_traces(cosine_traces(ds, space))


def cosine_traces(ds: xr.Dataset, space: Space) -> list[go.Scatter]:
    """The traces of `sink_cosines`: marks of the heads, band and line of the layers."""
    found = estimate(ds, SPACES[space], "layer", "head")
    layers, heads = found.value.shape
    beside = (np.arange(heads) - (heads - 1) / 2) * (0.6 / max(heads, 1))
    marks = go.Scatter(
        x=rounded((np.arange(layers)[:, None] + beside).ravel(), 3),
        y=rounded(found.value.ravel()),
        mode="markers",
        name="a head",
        marker={"size": 4, "color": "#4f87bd", "opacity": 0.75},
        text=[style.text(name) for row in results.head_names(ds) for name in row],
        hovertemplate="%{text}: mean cosine %{y:.2f}<extra></extra>",
    )
    x = [float(i) for i in range(layers)]
    names = [f"layer {label}" for label in results.layer_labels(ds)]
    mean = found.mean_by_layer()
    return [marks, band(_LAYER, x, mean), line(_LAYER, x, mean, names)]


def bos_cosines(ds: xr.Dataset) -> go.Figure:
    """Cosine of the first token with the others at each layer, as its attention reads them.

    Example:
        >>> bos_cosines(ds).show()  # doctest: +SKIP

    Where the largest is below 0, attention can make every token look at the first one, whatever
    else it does. Sukenik et al., arXiv 2605.08453. The middle third of the layers is shaded.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no such cosines (`Smoothing` measures them).
    """
    results.check_result(ds)
    shown = over_layers(ds, _BOS)
    figure = profile(ds, "Cosine of the first token with the others", "cosine", shown)
    shade(figure, ds, "middle third")
    return figure
