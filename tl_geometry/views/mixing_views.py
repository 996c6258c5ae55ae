"""Denser and sparser attention: token similarity layer by layer, and its place on a page."""

from __future__ import annotations

from collections.abc import Iterator

import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.drawings import drawing
from tl_geometry.views.estimates import (
    bootstrap_note,
    estimates,
    listed,
    over_documents,
    require_evaluation,
)
from tl_geometry.views.maps import SD
from tl_geometry.views.mixing_tables import (
    AS_IS,
    mixing_findings,
    mixing_tables,
    shares,
    targets,
)
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.traces import PANEL_TITLES, Series, band, line, panels

_WORDS = {
    "identity": "towards identity (sparser)",
    "uniform": "towards uniform (denser)",
    "sink": "towards the sink",
    "permuted": "towards permuted weights",
}
_UNCHANGED = ("#22262b", "solid", "circle")
_MIXED = (
    ("#1d7a6c", "dash", "square"),
    ("#a9640a", "dashdot", "triangle-up"),
    ("#8b2f7f", "dot", "diamond"),
    ("#123f80", "longdash", "x"),
)
_INTRODUCTION = (
    "What becomes of the loss and of the tokens when every attention pattern is moved to a simple one: to "
    "(1 − t) attention + t target, in all layers at once unless the settings below say otherwise, so that "
    "the input of a layer has changed already. Identity: each token attends to itself alone (as sparse as "
    "can be); uniform: to all tokens that it can see alike (as dense as can be)."
)
_READING = (
    "How alike the tokens of a document are at the output of each layer: the mean cosine between two of "
    "them, the first token apart; 1 when all point the same way. One line for each share t of the target, "
    "a panel for each target. Hover for the numbers."
)
_ALONE = (
    "With identity at t = 1 every token sees itself alone, as otherwise only the first token does. What a model "
    "makes of its first token, often a vector of large norm, it can then make of all, and they become alike."
)


def mixing_curves(ds: xr.Dataset) -> go.Figure:
    """Token similarity at every layer's output, as the model is and under mixed patterns.

    Example:
        >>> mixing_curves(pattern_mixing(model, texts)).show()  # doctest: +SKIP

    A panel for each target, a line for each share t, with bands for the intervals. Sukenik et al.,
    arXiv 2605.08453.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `pattern_mixing`.
    """
    require_evaluation(ds, "pattern_mixing")
    figure = panels(
        [_WORDS.get(target, target) for target in targets(ds)],
        title="Token similarity under mixed patterns",
        width=170 + 400 * ds.sizes["target"],
        height=500,
    )
    for column, target in enumerate(targets(ds), 1):
        for trace in _traces(ds, target):
            trace.showlegend = bool(column == 1 and trace.name)
            figure.add_trace(trace, row=1, col=column)
    axis = style.thinned("layer", results.layer_labels(ds), most=16)
    span = [-0.5, ds.sizes["layer"] - 0.5]
    figure.update_xaxes(tickvals=axis["tickvals"], ticktext=axis["ticktext"], range=span)
    figure.update_xaxes(title={"text": "layer", "standoff": 6})
    figure.update_yaxes(title={"text": "mean cosine between tokens"}, col=1)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": -0.18, "yanchor": "top"})
    return figure


def _traces(ds: xr.Dataset, target: str) -> Iterator[go.Scatter]:
    x = list(range(ds.sizes["layer"]))
    labels = [f"layer {label}" for label in results.layer_labels(ds)]
    for k, t in enumerate((0.0, *shares(ds))):
        name = f"t = {t:g}" if k else AS_IS
        look = _MIXED[(k - 1) % len(_MIXED)] if k else _UNCHANGED
        series = Series(name, name, *look)
        found = estimates(ds, "similarity_out", target=target, t=t)
        for trace in (band(series, x, found), line(series, x, found, labels)):
            trace.legendgroup = name
            yield trace


def sentences(ds: xr.Dataset) -> list[str]:
    """What the run found."""
    plain = {"target": targets(ds)[0], "t": 0.0}
    perplexity, level = (
        estimates(ds, name, **plain).text() for name in ("perplexity", "similarity_mean")
    )
    found = [
        f"The model as it is has a perplexity of {perplexity}{over_documents(ds)}; the mean cosine between "
        f"tokens is {level}, averaged over the layers' outputs."
    ]
    for target in targets(ds):
        losses, alike = (
            listed(
                [
                    f"{estimates(ds, name, target=target, t=t).text()} at t = {t:g}"
                    for t in shares(ds)
                ]
            )
            for name in ("delta_perplexity", "delta_similarity_mean")
        )
        words = _WORDS.get(target, target)
        found.append(
            f"With attention moved {words}, perplexity changes by {losses}, and the mean cosine between tokens "
            f"by {alike}."
        )
    return found


def section(ds: xr.Dataset) -> Section:
    """All about denser and sparser attention."""
    alone = "identity" in targets(ds) and 1 in shares(ds)
    return Section(
        id="mixing",
        title="Denser and sparser attention",
        introduction=_INTRODUCTION,
        figures=(_drawing(ds),),
        tables=tuple(mixing_tables(ds)),
        findings=tuple(mixing_findings(ds)),
        findings_title="What the paper found, and whether this run shows it",
        source=SD,
        notes=(bootstrap_note(ds), _ALONE) if alone else (bootstrap_note(ds),),
    )


def _drawing(ds: xr.Dataset) -> Figure:
    means = [
        f"{target} {estimates(ds, 'similarity_mean', target=target, t=t).text()} at t = {t:g}"
        for target in targets(ds)
        for t in (0.0, *shares(ds))
    ]
    return drawing(
        "mixing-curves",
        mixing_curves(ds),
        title="How alike the tokens are, layer by layer",
        label=f"Lines by share of the target; means over layers: {'; '.join(means)}",
        reading=_READING,
        source=SD,
        above=PANEL_TITLES,
        least=560,
    )
