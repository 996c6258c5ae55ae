"""Costs of a sink and of the diagonal against the number of tokens, what heads pay, and the part of a page."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views.cost_findings import token_costs_findings
from tl_geometry.views.cost_tables import (
    KINDS,
    TARGETS,
    costs,
    exponent,
    lengths,
    norms,
    sentences,
    token_costs_tables,
)
from tl_geometry.views.drawings import drawing
from tl_geometry.views.estimates import estimates, require_evaluation
from tl_geometry.views.head_cost_views import head_cost_scatter, head_drawings
from tl_geometry.views.maps import SD
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.traces import (
    PANEL_TITLES,
    Series,
    band,
    graded,
    line,
    logarithmic,
    panels,
)

__all__ = [
    "cost_curves",
    "head_cost_scatter",
    "section",
    "sentences",
    "token_costs_findings",
    "token_costs_tables",
]

_COLOURS = {"orthonormal": "#6b727c", "random": "#a9640a", "model": "#123f80"}
_STYLES = {"sink": ("solid", "circle"), "diagonal": ("dash", "square")}
_NAMES = {"orthonormal": "orthonormal", "random": "random", "model": "the model's"}
_LEGEND = 150  # pixels of six lines and the title of the axis
_INTRODUCTION = (
    "A head that has nothing to say can look at a sink or at its own token. The cost is the norm of the "
    "smallest W whose scores x_i^T W x_j put that key ahead of all others by a margin of 1. The nuclear norm is "
    "what weight decay on both factors of W charges. All tokens have mean squared length 1, so that the lines "
    "can be compared."
)
_CURVES = (
    "Both axes are logarithmic, so that a power of T is a straight line; its exponent stands in the legend. Bands: "
    "from the least to the greatest of the samples. A line ends where no W will do. The model's: its own tokens."
)


def cost_curves(ds: xr.Dataset) -> go.Figure:
    """Cost of a sink and of the diagonal against the number of tokens T, one panel for each norm.

    Example:
        >>> cost_curves(token_costs(model, texts)).show()  # doctest: +SKIP

    Logarithmic axes; geometric means over the samples with their range. Sukenik et al., arXiv 2605.08453.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `token_costs`.
    """
    require_evaluation(ds, "token_costs")
    held, sizes = norms(ds), lengths(ds)
    titles = [f"{norm.capitalize()} norm" for norm in held]
    figure = panels(
        titles,
        title="Cost of a sink and of the diagonal",
        width=90 + 420 * len(held),
        height=480 + _LEGEND,
        shared=False,
    )
    for column, norm in enumerate(held, 1):
        for trace in _curves(ds, norm, sizes):
            trace.legend = "legend" if column == 1 else f"legend{column}"
            figure.add_trace(trace, row=1, col=column)
        left = figure.layout[f"xaxis{column if column > 1 else ''}"].domain[0]
        place = {"x": left, "y": -0.17, "yanchor": "top", "font": {"size": 12}}
        figure.update_layout({f"legend{column if column > 1 else ''}": place})
    figure.update_xaxes(graded("T, number of tokens", sizes) | {"type": "log"})
    figure.update_yaxes(logarithmic(figure, "y") | {"title": {"text": "cost", "standoff": 4}})
    figure.update_layout(margin={"b": 52 + _LEGEND})
    return figure


def _curves(ds: xr.Dataset, norm: str, sizes: list[int]) -> list[go.Scatter]:
    bands, lines = [], []
    for kind, words in _NAMES.items():
        for target, (dash, symbol) in _STYLES.items():
            found = costs(ds, target, kind, norm)
            series = Series(target, f"{words}, {target}", _COLOURS[kind], dash, symbol)
            power = exponent(ds, f"{target}_exponent", kind, norm)
            labels = [f"T = {size}" for size in sizes]
            bands.append(band(series, sizes, found, digits=6))
            lines.append(line(series, sizes, found, labels, f": exponent {power}", digits=6))
    return [*bands, *lines]


def section(ds: xr.Dataset) -> Section:
    """All about the costs of sinks and diagonals."""
    return Section(
        id="costs",
        title="What a sink and the diagonal cost",
        introduction=_INTRODUCTION,
        figures=tuple(_drawings(ds)),
        tables=tuple(token_costs_tables(ds)),
        findings=tuple(token_costs_findings(ds)),
        findings_title="What the paper says, and whether this run shows it",
        source=SD,
    )


def _drawings(ds: xr.Dataset) -> list[Figure]:
    last = {norm: estimates(ds, "cost_ratio", tokens="model", norm=norm) for norm in norms(ds)}
    ratios = "; ".join(f"{norm} norm {ratio.text(-1)}" for norm, ratio in last.items())
    return [
        drawing(
            "costs-curves",
            cost_curves(ds),
            title="Cost against the number of tokens",
            label=f"Lines of {' and '.join(TARGETS)} for {', '.join(KINDS.values())}; with {lengths(ds)[-1]} of the "
            f"model's own tokens, diagonal over sink: {ratios}",
            reading=_CURVES,
            source=SD,
            above=PANEL_TITLES,
            least=820,
        ),
        *head_drawings(ds),
    ]
