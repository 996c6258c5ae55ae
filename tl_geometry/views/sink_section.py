"""Sinks as a part of a page: the figures of how they work with their words, dormant heads, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.measures.dormant import DORMANT_RATE
from tl_geometry.texts import visible
from tl_geometry.views import parabolas, results, sink_curves
from tl_geometry.views.angles import SPACES, cosine_traces, sink_cosines
from tl_geometry.views.averages import estimate, held, settled
from tl_geometry.views.curves import heads_of
from tl_geometry.views.drawings import drawing
from tl_geometry.views.findings import counted
from tl_geometry.views.maps import CW, TS
from tl_geometry.views.null_sinks import has_null_sink
from tl_geometry.views.parts import Choice, Figure, Section
from tl_geometry.views.profiles import choice
from tl_geometry.views.results import Values, number
from tl_geometry.views.separable import INTERVALS
from tl_geometry.views.sink_claims import interval, suppression_findings
from tl_geometry.views.sink_curves import GAP_BIN, GAPS
from tl_geometry.views.summary import Table

FINDINGS_TITLE = "What the paper found, and whether this run shows it"

_INTRODUCTION = (
    "How much attention goes to the sink, how long its value vector is, where it points, and what "
    "that does to the outputs. With a the attention that a row gives to the sink, the length of its "
    "output as a function of a is a convex curve, lowest at a = a*."
)
_NORM_READING = (
    "Rows in tenths by their sink rate, and how long their outputs are there, in units of the "
    "head's mean. The parabola is fitted to the squared marks, each weighing as much as it has "
    "heads; the dotted line is the mean over rows of the attention at which a row's own output "
    "would be shortest. Marks mix heads where not all have rows at every rate: hover for their "
    "number, or choose a layer."
)
_GAP_READING = (
    "Left of 0 more attention to the sink would shorten the output, right of 0 less would: there "
    "the sink no longer only quiets the head."
)
_COSINE_READING = (
    "Each small mark is a head (hover for its name), the line the mean of a layer. Below 0 the "
    "sink's value points against the other tokens' values."
)
_DORMANT_NOTE = (
    "Two criteria for heads that do next to nothing: most attention on the sink (after Gu et al., "
    "arXiv 2410.10781), or outputs that are short beside the layer's mean (Sandoval-Segura et al., "
    "arXiv 2504.03889). The field has agreed on no threshold, so several are shown. Last column: "
    "how many of these heads meet the first criterion too."
)


def extended(section: Section, ds: xr.Dataset) -> Section:
    """The section on sinks with all that the run holds about how they work."""
    findings = tuple(suppression_findings(ds))
    more, table = _figures(ds), dormant_table(ds)
    if not (findings or more):
        return replace(section, tables=(*section.tables, *table))
    return replace(
        section,
        introduction=_INTRODUCTION,
        figures=(*section.figures, *more),
        tables=(*section.tables, *table),
        findings=findings,
        findings_title=FINDINGS_TITLE,
        source=CW,
        notes=(INTERVALS,),
    )


def _figures(ds: xr.Dataset) -> list[Figure]:
    figures = []
    if parabolas.measured(ds):
        figures.append(_norm(ds))
    if held(ds, GAPS, "layer", "head", GAP_BIN):
        figures.append(_gaps(ds))
    if any(results.measured(ds, name) for name in SPACES.values()):
        figures.append(_cosines(ds))
    return figures


def _norm(ds: xr.Dataset) -> Figure:
    choices = _by_layer(ds, sink_curves.norm_traces, _norm_words)
    return drawing(
        "sinks-norm",
        sink_curves.norm_against_sink_rate(ds),
        title="Output length against sink rate",
        label=choices[0].label,
        reading=_NORM_READING,
        source=CW,
        choices=choices,
        choice_of="Mean over",
    )


def _norm_words(ds: xr.Dataset, heads: Values) -> str:
    text = f"Line of output length against sink rate, mean over {counted(int(heads.sum()))}"
    parabola = parabolas.fitted(ds, heads)
    if parabola is None:
        return f"{text}; too few bins for a parabola"
    text += f"; fitted parabola {'convex' if parabola.coefficients[2] > 0 else 'not convex'}"
    if np.isfinite(parabola.lowest):
        text += f", lowest at a = {number(parabola.lowest)}"
    if results.measured(ds, "sink_optimum"):
        optimum = estimate(ds, "sink_optimum", "layer", "head").mean(heads)
        text += f"; mean optimum a* {interval(optimum).text()}"
    return text


def _gaps(ds: xr.Dataset) -> Figure:
    choices = _by_layer(ds, sink_curves.gap_traces, _gap_words)
    return drawing(
        "sinks-gaps",
        sink_curves.optimum_gaps(ds),
        title="Sink rate minus its optimum",
        label=choices[0].label,
        reading=_GAP_READING,
        source=f"{CW}; the optimum is reconstructed",
        choices=choices,
        choice_of="Mean over",
    )


def _gap_words(ds: xr.Dataset, heads: Values) -> str:
    text = f"Histogram of a minus a*, mean over {counted(int(heads.sum()))}"
    if not results.measured(ds, "sink_optimum_gap"):
        return text
    mean = settled(estimate(ds, "sink_optimum_gap", "layer", "head")).mean(heads)
    return f"{text}: mean {interval(mean).text()}"


def _by_layer(
    ds: xr.Dataset,
    traces: Callable[[xr.Dataset, Values], Sequence[go.Scatter | go.Bar]],
    words: Callable[[xr.Dataset, Values], str],
) -> list[Choice]:
    """All heads, and the heads of each layer where there are several."""
    everything = heads_of(ds)
    choices = [choice("all heads", traces(ds, everything), words(ds, everything))]
    for label in results.layer_labels(ds) if ds.sizes["layer"] > 1 else []:
        heads = heads_of(ds, layer=label)
        choices.append(choice(f"layer {visible(label)}", traces(ds, heads), words(ds, heads)))
    return choices


def _cosines(ds: xr.Dataset) -> Figure:
    spaces = [space for space, name in SPACES.items() if results.measured(ds, name)]
    choices = []
    for space in spaces:
        mean = settled(estimate(ds, SPACES[space], "layer", "head")).mean()
        label = f"Cosine of the sink's value with the others by layer, {space} space"
        label += f"; mean over heads {interval(mean).text()}"
        choices.append(choice(f"{space} space", cosine_traces(ds, space), label))
    return drawing(
        "sinks-cosine",
        sink_cosines(ds, space=spaces[0]),
        title="Angle of the sink’s value",
        label=choices[0].label,
        reading=_COSINE_READING,
        source=f"{TS}; projected values: {CW}",
        choices=choices,
        choice_of="In",
    )


def dormant_table(ds: xr.Dataset) -> list[Table]:
    """How many heads are dormant by their sink rate, and by their output norm at each threshold.

    Example:
        >>> (table,) = dormant_table(ds)  # doctest: +SKIP

    Nothing where the run holds neither.
    """
    rows = []
    rested = np.zeros((ds.sizes["layer"], ds.sizes["head"]), dtype=bool)
    by_rate = results.measured(ds, "dormant_by_rate")
    if by_rate:
        grid = results.values(ds, "dormant_by_rate")
        rested = grid == 1
        with_null = ", null sink included," if has_null_sink(ds) else ""
        rows.append((f"sink rate{with_null} above {DORMANT_RATE:g}", *_counts(grid), "–"))
    if held(ds, "dormant_by_norm", "layer", "head", "norm_threshold"):
        norms = estimate(ds, "dormant_by_norm", "layer", "head", "norm_threshold").value
        for k, threshold in enumerate(ds["norm_threshold"].values):
            both = str(int(((norms[..., k] == 1) & rested).sum())) if by_rate else "–"
            words = f"output norm below {threshold:g} of the mean"
            rows.append((words, *_counts(norms[..., k]), both))
    if all(row[2] == "–" for row in rows):
        return []
    columns = ("criterion", "heads", "share", "of these, by sink rate")
    numeric = (False, True, True, True)
    return [Table("dormant", "Dormant heads", columns, tuple(rows), numeric, _DORMANT_NOTE)]


def _counts(flags: Values) -> tuple[str, str]:
    """How many heads, and what share of those that are known."""
    known = int(np.isfinite(flags).sum())
    count = int((flags == 1).sum())
    return str(count), f"{100 * count / known:.1f} %" if known else "–"
