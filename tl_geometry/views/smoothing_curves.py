"""Plotly figures of the token vectors at each layer: how alike they are, whether half-spaces part them."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results
from tl_geometry.views.averages import estimate
from tl_geometry.views.profiles import over_layers, profile, shade
from tl_geometry.views.traces import Series, logarithmic

_SIMILARITY = (
    Series("similarity_in", "mean cosine, input", "#7ba3cf", "dash", "circle-open"),
    Series("similarity_out", "mean cosine, output", "#123f80", "solid", "circle"),
    Series("residual_in", "part that is not the mean, input", "#cf9a55", "dash", "square-open"),
    Series("residual_out", "part that is not the mean, output", "#a9640a", "solid", "square"),
)
_MARGINS = (
    Series("halfspace_origin_margin", "(a) origin, tokens", "#123f80", "solid", "circle"),
    Series("halfspace_origin_margin_random", "(a) random", "#6b90bd", "dot", "circle-open"),
    Series("halfspace_sink_margin", "(b) first token", "#a9640a", "solid", "square"),
    Series("halfspace_sink_margin_random", "(b) random", "#cf9a55", "dot", "square-open"),
)

COST = "representation_cost"
_COSTS = (
    Series("sink nuclear", "sink, nuclear", "#123f80", "solid", "circle"),
    Series("sink frobenius", "sink, Frobenius", "#6b90bd", "dot", "circle-open"),
    Series("diagonal nuclear", "diagonal, nuclear", "#a9640a", "solid", "square"),
    Series("diagonal frobenius", "diagonal, Frobenius", "#cf9a55", "dot", "square-open"),
)


def token_similarity_profile(ds: xr.Dataset) -> go.Figure:
    """How alike the tokens are at the input and the output of each layer, the first token apart.

    Example:
        >>> token_similarity_profile(ds).show()  # doctest: +SKIP

    Mean pairwise cosine, and the relative residual |X - 1 mean(X)^T|_F / |X|_F: oversmoothing takes
    them towards 1 and 0. Sukenik et al., arXiv 2605.08453. Bands: two standard errors over
    documents to each side.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no similarity per layer (`Smoothing` measures it).
    """
    results.check_result(ds)
    shown = over_layers(ds, _SIMILARITY)
    return profile(ds, "Likeness of the tokens", "cosine, or part", shown)


def halfspace_profile(ds: xr.Dataset) -> go.Figure:
    """Margins of the two half-space conditions of a sink at each layer, with those of random vectors.

    Example:
        >>> halfspace_profile(ds).show()  # doctest: +SKIP

    (a) distance of the origin from the convex hull of the tokens, (b) distance of the first token
    from that of the others; both over the length of the longest token, 0 where the condition fails.
    After Sukenik et al., arXiv 2605.08453 (our reconstruction, :func:`tl_geometry.halfspace_margins`).

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no margins (`Smoothing(halfspace=True)` measures them).
    """
    results.check_result(ds)
    shown = over_layers(ds, _MARGINS)
    title = "Margins of the half-space conditions"
    figure = profile(ds, title, "margin over longest token", shown)
    shade(figure, ds, "middle third")
    return figure


def representation_cost_profile(ds: xr.Dataset) -> go.Figure:
    """What a sink at the first token and the diagonal cost to represent on each layer's tokens.

    Example:
        >>> representation_cost_profile(ds).show()  # doctest: +SKIP

    Least norm of a bilinear form that puts the target ahead of all other keys by a margin of 1, on
    tokens of mean squared length 1. Sukenik et al., arXiv 2605.08453, as
    :func:`tl_geometry.representation_cost` reconstructs it. Bands: two standard errors over
    documents to each side; a gap where no document has a cost.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no costs (`Costs` measures them).
    """
    results.check_result(ds)
    costs = estimate(ds, COST, "target", "norm", "layer")
    targets, norms = ds["target"].values.tolist(), ds["norm"].values.tolist()
    shown = []
    for series in _COSTS:
        target, norm = series.variable.split()
        if target in targets and norm in norms:
            shown.append((series, costs[targets.index(target), norms.index(norm)]))
    figure = profile(ds, "Cost of a sink and of the diagonal", "norm of W (logarithmic)", shown)
    least = np.nanmin(costs.value, initial=np.inf) / 2
    for trace in figure.data:  # where an interval reaches zero, its band goes to the bottom
        trace.y = [None if y is None else max(y, least) for y in trace.y]
    figure.update_yaxes(logarithmic(figure, "y") | {"zeroline": False})
    return figure
