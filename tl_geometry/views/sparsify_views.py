"""Structured removal of heads: curves against retention, areas, tables, and their place on a page."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import style
from tl_geometry.views.drawings import drawing
from tl_geometry.views.estimates import (
    bootstrap_note,
    estimates,
    over_documents,
    percent,
    require_evaluation,
)
from tl_geometry.views.maps import TS
from tl_geometry.views.page import rounded
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.results import Values, significant
from tl_geometry.views.summary import Table
from tl_geometry.views.traces import PANEL_TITLES, Series, band, line, panels

TABLE = (0.9, 0.75, 0.5, 0.25)
"""Retentions of the table."""

RANDOM = Series("random", "random", "#6b727c", "dot", "x")
_SCORES = (
    Series("output_norm", "output norm", "#123f80", "solid", "circle"),
    Series("contribution", "contribution", "#a9640a", "dash", "square"),
    Series("entropy", "entropy", "#1d7a6c", "dashdot", "triangle-up"),
    Series("weight_norm", "weight norm", "#8b2f7f", "longdash", "diamond"),
)
# The colour of the regime that goes first, the dash for the order of the other two.
_REGIME_LINES = {"retriever": "#17366b", "mixer": "#bd6a05", "reset": "#3d8b78"}
_REGIMES = tuple(
    Series(f"{first}>{second}>{third}", f"{first}, {second}, {third}", colour, dash, symbol)
    for first, colour in _REGIME_LINES.items()
    for (second, third), dash, symbol in zip(
        ([r for r in _REGIME_LINES if r != first], [r for r in _REGIME_LINES if r != first][::-1]),
        ("solid", "dash"),
        ("circle", "square"),
        strict=True,
    )
)
_RANKS = {"rank": "order", "random_rank": "repeat"}
_INTRODUCTION = (
    "Heads are ranked over the whole model, the least valuable first by each of several orders, and removed "
    "together ({mode}) until a share of them is left. Orders by regime remove all heads of one regime "
    "before those of the next."
)
_READING = (
    "How much the loss rises as heads are removed, from left to right: the lower a line, the better its "
    "order finds the heads that can go. Thin dotted lines are the single random orders, the thick one "
    "their mean. The names of the regimes' orders say what is removed first."
)


def sparsification_curves(ds: xr.Dataset) -> go.Figure:
    """NLL minus that of the whole model against the share of heads that stay, by order of removal.

    Example:
        >>> sparsification_curves(sparsify(model, texts)).show()  # doctest: +SKIP

    Orders by regime and orders by a score have a panel each, the random orders are in both. Nats per
    token, with bands for the intervals. Mudarisov et al., arXiv 2602.01893.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `sparsify`.
    """
    require_evaluation(ds, "sparsify")
    held = [str(name) for name in ds["order"].values]
    groups = {"Removed by regime": _REGIMES, "Removed by a score": _SCORES}
    shown = {
        title: [series for series in group if series.variable in held]
        for title, group in groups.items()
        if any(series.variable in held for series in group)
    } or {"Removed at random": []}
    figure = panels(
        list(shown), title="Loss as heads are removed", width=170 + 400 * len(shown), height=540
    )
    for column, group in enumerate(shown.values(), 1):
        traces = [trace for series in group for trace in _traces(ds, series)]
        if "random" in held:
            traces = [*_repeats(ds), *_traces(ds, RANDOM), *traces]
        for trace in traces:
            random = trace.legendgroup == RANDOM.variable
            trace.showlegend = bool(trace.showlegend is not False and not (random and column > 1))
            figure.add_trace(trace, row=1, col=column)
    shares = [float(share) for share in ds["retention"].values]
    ticks = style.axis("heads that stay, %", shares, [f"{100 * share:.6g}" for share in shares])
    figure.update_xaxes(tickvals=ticks["tickvals"], ticktext=ticks["ticktext"])
    figure.update_xaxes(title=ticks["title"], autorange="reversed")
    figure.update_yaxes(zeroline=True, zerolinecolor=style.INK, zerolinewidth=1)
    figure.update_yaxes(title={"text": "delta NLL, nats per token"}, col=1)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"})
    return figure


def _traces(ds: xr.Dataset, series: Series) -> list[go.Scatter]:
    along = np.argsort(-ds["retention"].values)
    shares = ds["retention"].values[along]
    found = estimates(ds, "delta_nll", order=series.variable)[along]
    perplexity = estimates(ds, "perplexity", order=series.variable)[along]
    labels = [
        f"{percent(float(share))} of the heads stay, perplexity {perplexity.text(k)}"
        for k, share in enumerate(shares)
    ]
    traces = [
        band(series, shares.tolist(), found, 6),
        line(series, shares.tolist(), found, labels, digits=6),
    ]
    for trace in traces:
        trace.legendgroup = series.variable
    return traces


def _repeats(ds: xr.Dataset) -> list[go.Scatter]:
    along = np.argsort(-ds["retention"].values)
    each = _random_deltas(ds)
    if len(each) < 2:
        return []
    return [
        go.Scatter(
            x=ds["retention"].values[along].tolist(),
            y=rounded(values[along], 6),
            mode="lines",
            line={"color": RANDOM.colour, "dash": "dot", "width": 1},
            opacity=0.6,
            hoverinfo="skip",
            showlegend=False,
            legendgroup=RANDOM.variable,
        )
        for values in each
    ]


def _random_deltas(ds: xr.Dataset) -> Values:
    """Delta NLL of each random order, repeat by retention."""
    random = ds.sel(order="random")
    whole = random["nll"] - random["delta_nll"]
    return np.asarray((ds["random_nll"] - whole).transpose("repeat", "retention").values)


def sparsify_tables(ds: xr.Dataset) -> list[Table]:
    """The area under each curve, and delta NLL at 90, 75, 50 and 25 % of the heads; best order first.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `sparsify`.
    """
    require_evaluation(ds, "sparsify")
    names = _best_first(ds)
    held = [float(share) for share in ds["retention"].values]
    shares = [share for share in TABLE if share in held] or [s for s in held if s < 1]
    area = estimates(ds, "auc")
    place = [str(name) for name in ds["order"].values].index
    rows = []
    for name in names:
        found = estimates(ds, "delta_nll", order=name)
        rows.append((_row_name(ds, name), *(found.text(held.index(share)) for share in shares)))
    if "random" in names and ds.sizes["repeat"] > 1:
        spread = ds["nll_spread"].sel(order="random").values
        cells = (f"± {significant(float(spread[held.index(share)]))}" for share in shares)
        rows.append(("spread of the random orders", *cells))
    areas = [(_row_name(ds, name), area.text(place(name)), _spread(ds, name)) for name in names]
    return [
        Table(
            "areas",
            "Area under delta NLL over the share of heads removed, nats per token",
            ("order", "area", "spread"),
            tuple(areas),
            (False, True, True),
            "The smaller, the better the order; by the trapezoid rule from no head removed to the most. "
            "Spread: standard deviation over the random orders.",
        ),
        Table(
            "retention",
            "Delta NLL with a share of the heads left, nats per token",
            ("order", *(percent(share) for share in shares)),
            tuple(rows),
            (False, *(True for _ in shares)),
            "NLL minus that of the whole model; orders as above, by area. Intervals are over documents, "
            "the spread (a standard deviation) over random orders.",
        ),
    ]


def _spread(ds: xr.Dataset, name: str) -> str:
    if name != "random" or ds.sizes["repeat"] < 2:
        return ""
    return f"± {significant(float(ds['auc_spread'].sel(order=name)))}"


def _row_name(ds: xr.Dataset, name: str) -> str:
    repeats = ds.sizes.get("repeat", 1)
    return f"random (mean of {repeats} orders)" if name == "random" and repeats > 1 else name


def _best_first(ds: xr.Dataset) -> list[str]:
    ranked = np.argsort(ds["auc"].values, kind="stable")
    return [str(ds["order"].values[k]) for k in ranked]


def sentences(ds: xr.Dataset) -> list[str]:
    """What the run found."""
    names = _best_first(ds)
    area = {name: estimates(ds, "auc", order=name).text() for name in names}
    most = int(ds["removed"].max())
    orders = "1 order" if len(names) == 1 else f"{len(names)} orders"
    found = [f"Up to {_heads(most)} of {_count(ds)} were removed in {orders}{over_documents(ds)}."]
    if len(names) > 1:
        found.append(
            f"The area under delta NLL is smallest for the order “{names[0]}”, {area[names[0]]} nats, and "
            f"largest for “{names[-1]}”, {area[names[-1]]}."
        )
    if "random" in names:
        better = sum(
            float(ds["auc"].sel(order=name)) < float(ds["auc"].sel(order="random"))
            for name in names
        )
        spread = _spread(ds, "random")
        found.append(
            f"Random orders have an area of {area['random']} nats"
            + (
                f" (standard deviation over {ds.sizes['repeat']} orders {spread[2:]})"
                if spread
                else ""
            )
            + f"; {better} of {len(names) - 1} others have a smaller one."
        )
    regimes = [name for name in names if ">" in name]
    scores = [name for name in names if name not in (*regimes, "random")]
    if regimes and scores:
        found.append(
            f"The best of the regimes' orders, “{regimes[0]}”, has {area[regimes[0]]}, the best order by a "
            f"score, “{scores[0]}”, {area[scores[0]]}."
        )
    return found


def _count(ds: xr.Dataset) -> int:
    """Number of heads that were ranked."""
    held = [(name, dim) for name, dim in _RANKS.items() if name in ds]
    return max(int(ds[name].notnull().any(dim).sum()) for name, dim in held)


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def section(ds: xr.Dataset) -> Section:
    """All about the removal of heads."""
    mode = ds.attrs.get("settings", {}).get("mode", "zero")
    words = {"zero": "output set to zero", "mean": "output set to its running mean"}.get(mode, mode)
    return Section(
        id="sparsify",
        title="Loss as heads are removed",
        introduction=_INTRODUCTION.format(mode=words),
        figures=(_drawing(ds),),
        tables=tuple(sparsify_tables(ds)),
        notes=(bootstrap_note(ds),),
    )


def _drawing(ds: xr.Dataset) -> Figure:
    areas = [f"{name} {estimates(ds, 'auc', order=name).text()}" for name in _best_first(ds)]
    return drawing(
        "sparsification-curves",
        sparsification_curves(ds),
        title="Delta NLL against the heads that stay",
        label=f"Lines by order of removal; areas under them, in nats: {', '.join(areas)}",
        reading=_READING,
        source=TS,
        above=PANEL_TITLES,
        least=560,
    )
