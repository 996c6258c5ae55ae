"""What the weights of heads cost, beside how the heads attend: figure, tables, words, and the part of a page."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.drawings import drawing
from tl_geometry.views.estimates import estimates, listed, percent, require_evaluation
from tl_geometry.views.maps import SD
from tl_geometry.views.page import rounded
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.results import number, significant
from tl_geometry.views.summary import Table
from tl_geometry.views.traces import PANEL_TITLES, logarithmic, panels, unit_axis

__all__ = [
    "correlation_sentences",
    "correlations",
    "head_cost_scatter",
    "head_costs_tables",
    "head_drawings",
    "section",
    "sentences",
]

WEIGHTS = {
    "qk_frobenius": "W_Q W_K^T, Frobenius",
    "qk_nuclear": "W_Q W_K^T, nuclear",
    "vo_frobenius": "W_V W_O, Frobenius",
    "vo_nuclear": "W_V W_O, nuclear",
}
_ATTENTION = {"sink_rate": "sink rate", "diagonal_attention": "attention to itself"}
_PAID = {"qk_nuclear": "W_Q W_K^T", "vo_nuclear": "W_V W_O"}
_INTRODUCTION = (
    "The norms of a head's weights, as they are: W_Q W_K^T makes its scores, W_V W_O what it writes. The nuclear "
    "norm is what weight decay on both factors charges."
)
_SCATTER = (
    "Each mark is a head: across the nuclear norm of its weights (logarithmic), upwards the mean share of "
    "attention that it gives to the sink. Hover for the name."
)


def head_costs_tables(ds: xr.Dataset) -> list[Table]:
    """The norms of the weights over heads, and how they go with attention where the run knows it.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `head_costs`.
    """
    require_evaluation(ds, "head_costs")
    names = np.ravel(results.head_names(ds))
    rows = []
    for cost, words in WEIGHTS.items():
        found = results.values(ds, cost).ravel()
        known = np.flatnonzero(np.isfinite(found))
        if not known.size:
            continue
        order = known[np.argsort(found[known], kind="stable")]
        low, high = (f"{significant(float(found[k]))} ({names[k]})" for k in (order[0], order[-1]))
        median = significant(float(np.median(found[known])))
        rows.append((words, low, median, high, number(known.size, 0)))
    table = Table(
        "weights",
        "Norms of the heads' weights",
        ("norm of", "least", "median", "greatest", "heads"),
        tuple(rows),
        (False, True, True, True, True),
        "The heads with the least and the greatest are in brackets.",
    )
    return [table, *correlations(ds)]


def correlations(ds: xr.Dataset) -> list[Table]:
    """How the norms go with attention, where the run knows it."""
    if "spearman" not in ds:
        return []
    rows = [
        (
            WEIGHTS[cost],
            words,
            estimates(ds, "spearman", cost=cost, attention=attention).text(),
            number(int(ds["heads"].sel(attention=attention)), 0),
        )
        for attention, words in _ATTENTION.items()
        if attention in ds["attention"].values
        for cost in WEIGHTS
    ]
    table = Table(
        "head_costs",
        "The norms of the heads' weights against how they attend",
        ("norm of", "attention", "rank correlation", "heads"),
        tuple(rows),
        (False, False, True, True),
        f"Spearman's rank correlation over heads, with {percent(_confidence(ds))} of a bootstrap over them. It "
        "says what goes together, not what causes what.",
    )
    return [table]


def _confidence(ds: xr.Dataset) -> float:
    """Coverage of the intervals over heads."""
    settings = ds.attrs.get("settings")
    own = settings.get("confidence") if isinstance(settings, Mapping) else None
    return float(own or ds.attrs.get("confidence", 0.95))


def sentences(ds: xr.Dataset) -> list[str]:
    """What the weights cost, and whether sinks go with it."""
    rows = {row[0]: row for row in head_costs_tables(ds)[0].rows}
    found = [
        f"The nuclear norm of {words} goes from {row[1]} to {row[3]}, median {row[2]}."
        for name, words in _PAID.items()
        if (row := rows.get(WEIGHTS[name]))
    ]
    return [*found, *correlation_sentences(ds)]


def correlation_sentences(ds: xr.Dataset) -> list[str]:
    """How the nuclear norms go with the sink rate, where the run knows it."""
    if "spearman" not in ds or "sink_rate" not in ds["attention"].values:
        return []
    parts = [
        f"{estimates(ds, 'spearman', cost=cost, attention='sink_rate').text()} for {words}"
        for cost, words in _PAID.items()
    ]
    return [
        f"Over {number(int(ds['heads'].sel(attention='sink_rate')), 0)} heads, the rank correlation of the sink "
        f"rate with the nuclear norm is {listed(parts)}."
    ]


def section(ds: xr.Dataset) -> Section:
    """All about what the weights of heads cost."""
    return Section(
        id="head-costs",
        title="What the heads' weights cost",
        introduction=_INTRODUCTION,
        figures=tuple(head_drawings(ds)),
        tables=tuple(head_costs_tables(ds)),
        source=SD,
    )


def head_drawings(ds: xr.Dataset) -> list[Figure]:
    """The scatter over heads, where the run knows how they attend."""
    if not results.measured(ds, "sink_rate", *_PAID):
        return []
    return [
        drawing(
            "costs-heads",
            head_cost_scatter(ds),
            title="What the heads pay, and how they attend",
            label="Nuclear norms of every head's weights against its sink rate; the rank correlations stand "
            "in the table",
            reading=_SCATTER,
            source=SD,
            above=PANEL_TITLES,
            least=560,
        )
    ]


def head_cost_scatter(ds: xr.Dataset) -> go.Figure:
    """Nuclear norm of each head's W_Q W_K^T and W_V W_O against its sink rate.

    Example:
        >>> head_cost_scatter(head_costs(model, analyze(model, texts))).show()  # doctest: +SKIP

    The titles name Spearman's rank correlation over heads with its interval.

    Args:
        ds: A result of `head_costs` with a run, or of `token_costs` with one.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` holds no norms or no sink rate.
    """
    results.check_result(ds)
    needed = ("sink_rate", *_PAID)
    if not results.measured(ds, *needed):
        raise ValueError(
            f"ds lacks one of {needed} per layer and head: give head_costs(model, ds) of a run with sinks"
        )
    ranks = {
        name: estimates(ds, "spearman", cost=name, attention="sink_rate").text() for name in _PAID
    }
    figure = panels(
        [f"{words}: rank correlation {ranks[name]}" for name, words in _PAID.items()],
        title="What heads pay, and how they attend",
        width=860,
        height=460,
        shared=False,
    )
    rate, names = results.values(ds, "sink_rate"), np.array(results.head_names(ds))
    for column, name in enumerate(_PAID, 1):
        norm = results.values(ds, name)
        known = np.isfinite(rate) & (norm > 0)
        heads = zip(names[known], norm[known], rate[known], strict=True)
        marks = go.Scatter(
            x=rounded(norm[known], 6),
            y=rounded(rate[known], 6),
            mode="markers",
            marker={"color": "#123f80", "size": 6, "opacity": 0.7},
            hovertext=[
                f"{style.text(str(head))}: norm {significant(float(x))}, sink rate {number(float(y))}"
                for head, x, y in heads
            ],
            hoverinfo="text",
            showlegend=False,
        )
        figure.add_trace(marks, row=1, col=column)
    figure.update_xaxes(
        logarithmic(figure, "x") | {"title": {"text": "nuclear norm", "standoff": 6}}
    )
    figure.update_yaxes(unit_axis("sink rate"))
    return figure
