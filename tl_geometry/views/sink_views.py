"""Interventions on sinks: every head before and after, and their place on a page."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import results, style
from tl_geometry.views.drawings import drawing
from tl_geometry.views.estimates import (
    bootstrap_note,
    estimates,
    over_documents,
    require_evaluation,
)
from tl_geometry.views.maps import CW
from tl_geometry.views.page import rounded
from tl_geometry.views.parts import Choice, Figure, Section
from tl_geometry.views.results import number, significant
from tl_geometry.views.sink_tables import (
    GROUPS,
    head_values,
    in_words,
    interventions,
    sink_findings,
    sink_tables,
)
from tl_geometry.views.traces import PANEL_TITLES, decades, panels

_MARKS = {"other": ("#123f80", "circle", 6), "low norm": ("#a9640a", "triangle-up", 9)}
"""The few stand above the many."""

_INTRODUCTION = (
    "What happens to the loss and to the heads' outputs when the sinks are changed, in all layers at once "
    "unless the settings below say otherwise. The semantic cone of a head is the mean direction of its "
    "other values; alignment is the cosine of the head's output with it, read behind the change. Heads of "
    "low norm, the lowest quartile of mean output norm in their layer as the model is, stand apart."
)
_READING = (
    "Each mark is a head: across as the model is, upwards under the intervention; on the dashed line "
    "nothing has changed. Above the line in the right panel heads have moved towards the cone's axis "
    "(alignment 1). Hover for the name."
)


def sink_intervention_map(ds: xr.Dataset, intervention: str | None = None) -> go.Figure:
    """Output norm and cone alignment of every head, as the model is and under an intervention.

    Example:
        >>> sink_intervention_map(sink_interventions(model, texts), "zero_value").show()  # doctest: +SKIP

    Means over documents and later queries; the norms in units of the residual stream, on logarithmic
    axes. Cunningham & Muca Cirone, arXiv 2606.07604.

    Args:
        ds: A result of `sink_interventions`.
        intervention: Which one; by default the first of the run.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no such result, or has no such intervention.
    """
    require_evaluation(ds, "sink_interventions")
    held = interventions(ds)
    chosen = held[0] if intervention is None else intervention
    if chosen not in held:
        raise ValueError(f"intervention={intervention!r} is not among those of ds: {held}")
    figure = panels(
        ["Output norm", "Cone alignment"],
        title=f"Heads with the sink’s {in_words(ds, chosen)}",
        width=860,
        height=500,
        shared=False,
    )
    for column, (name, log) in enumerate((("output_norm", True), ("cone_alignment", False)), 1):
        low, high = _span(ds, name, log)
        unchanged = go.Scatter(
            x=[low, high],
            y=[low, high],
            mode="lines",
            line={"color": "#6b727c", "dash": "dash", "width": 1},
            hoverinfo="skip",
            showlegend=False,
        )
        figure.add_trace(unchanged, row=1, col=column)
        for trace in _traces(ds, chosen, name, log):
            trace.showlegend = column == 1
            figure.add_trace(trace, row=1, col=column)
        limits = np.log10([low, high]).tolist() if log else [low, high]
        axes = {"range": limits, "type": "log" if log else "linear"}
        figure.update_xaxes(**axes, title={"text": "as the model is", "standoff": 6}, col=column)
        figure.update_yaxes(**axes, title={"text": "under the intervention"}, col=column)
        ticks = decades(low, high) if log else {"dtick": 0.2 if high - low < 1.6 else 0.5}
        figure.update_xaxes(ticks, col=column)
        figure.update_yaxes(ticks, col=column)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"})
    return figure


def _span(ds: xr.Dataset, name: str, log: bool) -> tuple[float, float]:
    """One range for both axes and all interventions of the run."""
    found = ds[name].values
    found = found[np.isfinite(found) & ((found > 0) | (not log))]
    if not found.size:
        return (0.1, 1.0) if log else (-1.0, 1.0)
    low, high = float(found.min()), float(found.max())
    if log:
        return low / 1.2, high * 1.2
    return max(-1.05, low - 0.05), min(1.05, high + 0.05)


def _traces(ds: xr.Dataset, intervention: str, name: str, log: bool) -> list[go.Scatter]:
    before, after = (head_values(ds, name, which) for which in ("none", intervention))
    if log:
        before, after = (np.where(grid > 0, grid, np.nan) for grid in (before, after))
    heads = np.array(results.head_names(ds))
    low = results.values(ds, "low_norm")
    traces = []
    for group, (colour, symbol, size) in _MARKS.items():
        chosen = low == (1 if group == "low norm" else 0)
        pairs = zip(heads[chosen], before[chosen], after[chosen], strict=True)
        digits = significant if log else number
        traces.append(
            go.Scatter(
                x=rounded(before[chosen], 6),
                y=rounded(after[chosen], 6),
                mode="markers",
                name=f"{GROUPS[group]} ({int(chosen.sum())})",
                legendgroup=group,
                marker={"color": colour, "symbol": symbol, "size": size, "opacity": 0.75},
                hovertext=[
                    f"{style.text(str(head))}: {digits(float(x))}, then {digits(float(y))}"
                    for head, x, y in pairs
                ],
                hoverinfo="text",
            )
        )
    return traces


def sentences(ds: xr.Dataset) -> list[str]:
    """What the run found."""
    before = estimates(ds, "perplexity", intervention="none").text()
    found = [f"The model as it is has a perplexity of {before}{over_documents(ds)}."]
    parts = [
        f"{estimates(ds, 'delta_perplexity', intervention=name).text()} with the sink's {in_words(ds, name)}"
        for name in interventions(ds)
    ]
    return [*found, f"Perplexity changes by {'; '.join(parts)}."]


def section(ds: xr.Dataset) -> Section:
    """All about interventions on sinks."""
    return Section(
        id="interventions",
        title="Interventions on the sink",
        introduction=_INTRODUCTION,
        figures=(_drawing(ds),),
        tables=tuple(sink_tables(ds)),
        findings=tuple(sink_findings(ds)),
        findings_title="What the paper found, and whether this run shows it",
        source=CW,
        notes=(bootstrap_note(ds),),
    )


def _drawing(ds: xr.Dataset) -> Figure:
    choices = []
    for name in interventions(ds):
        traces = json.loads(str(sink_intervention_map(ds, name).to_json()))["data"]
        changing = ("x", "y", "hovertext")
        label = f"Norm and alignment of every head, before and after: sink’s {in_words(ds, name)}"
        states = [{key: trace[key] for key in changing if key in trace} for trace in traces]
        choices.append(Choice(name, states, label))
    return drawing(
        "interventions-heads",
        sink_intervention_map(ds),
        title="Every head before and after",
        label=choices[0].label,
        reading=_READING,
        source=CW,
        choices=choices,
        choice_of="Intervention",
        above=PANEL_TITLES,
        least=560,
    )
