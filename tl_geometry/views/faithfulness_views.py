"""Faithfulness of importances: curves against the removed share, and their place on a page."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import order, style
from tl_geometry.views.drawings import drawing
from tl_geometry.views.estimates import (
    bootstrap_note,
    estimates,
    percent,
    require_evaluation,
)
from tl_geometry.views.faithfulness_tables import faithfulness_tables
from tl_geometry.views.maps import CW
from tl_geometry.views.order import DIRECTIONS, word
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.traces import PANEL_TITLES, Series, band, line, panels
from tl_geometry.views.verdicts import ALIKE, ORDER_RULE, RULE

DEYOUNG = "DeYoung et al., “ERASER”, arXiv 1911.03429"
_STYLES = {
    "attention": ("#a9640a", "dash", "square"),
    "value_weighted": ("#1d7a6c", "dashdot", "triangle-up"),
    "value_weighted_normalized": ("#8b2f7f", "longdash", "diamond"),
    "contribution": ("#123f80", "solid", "circle"),
    "random": ("#6b727c", "dot", "x"),
}
_OWN_STYLES = (
    ("#7d1f1f", "solid", "star"),
    ("#3d3d8f", "dash", "cross"),
    ("#4d6b12", "dot", "hexagon"),
)
_READING = (
    "Above, the most important share of the attention entries is removed: a good importance loses "
    "much. Below, the least important share: a good importance loses little. Entries are removed "
    "from the weighted sums, nothing is renormalised. Panels: output that the importance refers to "
    "(intra: the head's, inter: the layer's), contributions ranked by value (signed) or by size "
    "(absolute); lines that neither concerns are the same in all panels."
)
_INTRODUCTION = (
    "Remove attention entries and see what it does to the loss: by the share that an importance ranks "
    "highest (comprehensiveness) and by the share that it ranks lowest (sufficiency), ranked together "
    "{scope}, in NLL of the next token minus that of the full model, nats per token."
)
_SCOPES = {
    "row": "within one query of one head",
    "query": "within one query over all heads of a layer",
    "head": "within one head",
    "layer": "within one layer",
    "token": "by token (whole keys, within one layer)",
}


def faithfulness_curves(ds: xr.Dataset) -> go.Figure:
    """Comprehensiveness (above) and sufficiency (below) against the removed share, by importance.

    Example:
        >>> faithfulness_curves(faithfulness(model, texts)).show()  # doctest: +SKIP

    A panel for each mode and ranking of the run; NLL minus that of the full model, nats per token,
    with bands for the intervals. Cunningham & Muca Cirone, arXiv 2606.07604; DeYoung et al., arXiv
    1911.03429.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `faithfulness`.
    """
    require_evaluation(ds, "faithfulness")
    columns = [(str(m), str(r)) for m in ds["mode"].values for r in ds["ranking"].values]
    figure = panels(
        [f"{mode}, {sign}" for mode, sign in columns],
        rows=2,
        title="Faithfulness",
        width=230 + 195 * len(columns),
        height=650,
    )
    for row, direction in enumerate(DIRECTIONS, 1):
        figure.update_yaxes(title={"text": f"{direction}, nats"}, row=row, col=1)
        for column, (mode, sign) in enumerate(columns, 1):
            first = row == column == 1
            for trace in _traces(ds, direction, mode, sign):
                trace.showlegend = bool(first and trace.name)
                figure.add_trace(trace, row=row, col=column)
    shares = [float(share) for share in ds["fraction"].values]
    ticks = {
        "tickvals": _positions(shares),
        "ticktext": [percent(s).removesuffix(" %") for s in shares],
    }
    figure.update_xaxes(ticks)
    figure.update_xaxes(title={"text": "removed, %", "standoff": 4}, row=2)
    figure.update_xaxes(showticklabels=False, row=1)
    figure.update_yaxes(zeroline=True, zerolinecolor=style.INK, zerolinewidth=1)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": -0.1, "yanchor": "top"})
    return figure


def _positions(shares: list[float]) -> list[float]:
    """Where fractions stand: on a logarithmic axis unless 0 is one of them."""
    return shares if 0 in shares else np.log10(shares).tolist()


def _traces(ds: xr.Dataset, direction: str, mode: str, sign: str) -> Iterator[go.Scatter]:
    shares = [float(share) for share in ds["fraction"].values]
    along = np.argsort(shares)
    x = [_positions(shares)[k] for k in along]
    own = iter(_OWN_STYLES * len(ds["importance"]))
    for name in dict.fromkeys(ranking.importance for ranking in order.rankings(ds)):
        colour, dash, symbol = _STYLES.get(name) or next(own)
        series = Series(name, style.text(word(name)), colour, dash, symbol)
        where = {"importance": name, "mode": mode, "ranking": sign}
        found = estimates(ds, direction, **where)[along]
        more = estimates(ds, f"{direction}_perplexity", **where)[along]
        labels = [
            f"{percent(shares[k])} removed, perplexity {more.text(j)}" for j, k in enumerate(along)
        ]
        for trace in (band(series, x, found, 6), line(series, x, found, labels, digits=6)):
            trace.legendgroup = name
            yield trace


def section(ds: xr.Dataset) -> Section:
    """All about faithfulness."""
    scope = _SCOPES.get(str(ds.attrs.get("settings", {}).get("scope")), "")
    alike = any(
        ALIKE in order.statuses(ds, step, name) for step in order.steps(ds) for name in DIRECTIONS
    )
    return Section(
        id="faithfulness",
        title="Faithfulness of importances",
        introduction=_INTRODUCTION.format(scope=scope).replace("together , in", "together, in"),
        figures=(_drawing(ds),),
        tables=tuple(faithfulness_tables(ds)),
        findings=tuple(order.order_findings(ds)),
        findings_title="What the paper found, and whether this run shows it",
        source=CW,
        rule=f"{RULE} {ORDER_RULE}",
        notes=((bootstrap_note(ds), order.ALIKE_NOTE) if alike else (bootstrap_note(ds),)),
    )


def _drawing(ds: xr.Dataset) -> Figure:
    means = [
        f"{direction}: "
        + ", ".join(f"{r.name} {order.level(ds, r, direction).text(0)}" for r in order.rankings(ds))
        for direction in DIRECTIONS
    ]
    return drawing(
        "faithfulness-curves",
        faithfulness_curves(ds),
        title="Loss against the share of removed entries",
        label=f"Lines by importance; means over the fractions: {'; '.join(means)}",
        reading=_READING,
        source=f"{CW}; {DEYOUNG}",
        above=PANEL_TITLES,
        least=190 + 130 * ds.sizes["mode"] * ds.sizes["ranking"],
    )
