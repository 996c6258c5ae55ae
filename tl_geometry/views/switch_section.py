"""Switches and oversmoothing as parts of a page: their figures with their words, their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.views import angles, results, smoothing_curves, switch_curves
from tl_geometry.views.averages import estimate, fractions, held, nearest_fraction
from tl_geometry.views.drawings import drawing, map_drawing
from tl_geometry.views.maps import SD
from tl_geometry.views.null_sinks import switch_note
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.profiles import choice
from tl_geometry.views.results import Values, number
from tl_geometry.views.separable import INTERVALS
from tl_geometry.views.sink_claims import interval
from tl_geometry.views.sink_section import FINDINGS_TITLE
from tl_geometry.views.smoothing_claims import smoothing_findings
from tl_geometry.views.smoothing_curves import COST
from tl_geometry.views.switch_claims import switch_findings
from tl_geometry.views.switch_curves import by_fraction

MANY = 2000
"""A page with more heads than this shows one fraction only, to stay small."""

_MARGIN = "halfspace_origin_margin"
_SWITCHES = (
    "A head that has nothing to say about a token can be off (hard switch): the row attends to the "
    "sink, whose value is short. Or it can keep to itself (soft switch): the row attends to its own "
    "token. A row counts as off when its output is shorter than a fraction f of a typical value, "
    "the document's median |v W_O| over the tokens that are no sink."
)
_SMOOTHING = (
    "Where attention mixes tokens they become alike, layer after layer (oversmoothing). Here are "
    "the token vectors of the residual stream around each layer; the first token, the sink, apart."
)
_LAYER_INTERVALS = (
    "Intervals (bands, and brackets) reach two standard errors over documents to each side; the "
    "errors of the layers in a mean are added as if all layers always erred together."
)
_OFF_READING = (
    "Each mark is a head, the darker the deeper its layer. Heads on the right rest on their sink; "
    "high ones are often off."
)
_ON_READING = (
    "Each mark is a head that has both kinds of rows. Above the dashed line its rows that are off "
    "give the sink more attention than its others."
)
_SIMILARITY_READING = (
    "Blue: mean cosine between two tokens, 1 when all point the same way. Brown: what is left of "
    "the tokens without their mean, 0 when all are the same."
)
_BOS_READING = (
    "Where even the largest cosine is below 0, every token can be made to attend to the first. The "
    "paper finds no positive mean in middle layers."
)
_HALFSPACE_READING = (
    "(a) distance of the origin from the convex hull of the tokens, (b) of the first token from the "
    "hull of the others, over the longest token; 0 where the condition fails. If both are above 0, "
    "some (non-rotary) attention lets every token attend to the first. Dotted: the same for as many "
    "random vectors; up to as many as dimensions are always parted, so compare."
)

_COST_READING = (
    "The smallest (non-rotary) bilinear form that lets every token attend to the first, or to itself, on "
    "up to a few dozen tokens of a document, scaled to length 1. Solid: the nuclear norm, which is what weight "
    "decay on both factors charges. In theory the sink is the cheaper one there."
)


def switch_section(ds: xr.Dataset) -> Section:
    """All about attention switches; empty where the run has measured none."""
    figures = []
    if held(ds, "off_rate", "layer", "head", "fraction") and results.measured(ds, "sink_rate"):
        figures.append(_off(ds))
    if all(held(ds, f"sink_rate_{x}", "layer", "head", "fraction") for x in ("off", "on")):
        figures.append(_on(ds))
    maps = [n for n in ("diagonal_attention", "mixing_ratio_no_sink") if results.measured(ds, n)]
    return Section(
        id="switches",
        title="Attention switches",
        introduction=_SWITCHES,
        figures=(*figures, *(map_drawing(ds, name) for name in maps)),
        findings=tuple(switch_findings(ds)),
        findings_title=FINDINGS_TITLE,
        source=SD,
        notes=(INTERVALS, *filter(None, (switch_note(ds),))),
    )


def smoothing_section(ds: xr.Dataset) -> Section:
    """All about oversmoothing and the half-space conditions; empty where the run has measured neither."""
    drawn = (("similarity_in", _similarity), ("bos_cosine", _bos), (_MARGIN, _halfspace))
    costs = [_costs(ds)] if held(ds, COST, "layer", "target", "norm") else []
    return Section(
        id="smoothing",
        title="Oversmoothing",
        introduction=_SMOOTHING,
        figures=(*(draw(ds) for name, draw in drawn if held(ds, name, "layer")), *costs),
        findings=tuple(smoothing_findings(ds)),
        findings_title=FINDINGS_TITLE,
        source=SD,
        notes=(_LAYER_INTERVALS,),
    )


def _off(ds: xr.Dataset) -> Figure:
    return _over_heads(
        ds, "switches-off", "Heads that are off", "off_rate", switch_curves.off_traces,
        switch_curves.off_rates, "share of rows that are off", _OFF_READING,
    )  # fmt: skip


def _on(ds: xr.Dataset) -> Figure:
    return _over_heads(
        ds, "switches-attention", "The sink in rows that are off", "sink_rate_off",
        switch_curves.on_traces, switch_curves.off_and_on, "sink rate of rows that are off",
        _ON_READING,
    )  # fmt: skip


def _over_heads(
    ds: xr.Dataset,
    figure_id: str,
    title: str,
    variable: str,
    traces: Callable[[xr.Dataset, int], Sequence[go.Scatter]],
    figure: Callable[[xr.Dataset, int | float], go.Figure],
    words: str,
    reading: str,
) -> Figure:
    """One mark for each head, at a fraction that the reader chooses; with many heads at the preferred one."""
    first = nearest_fraction(ds)
    held_fractions = fractions(ds)
    few = ds.sizes["layer"] * ds.sizes["head"] <= MANY
    rest = [k for k in np.argsort(held_fractions).tolist() if k != first and few]
    choices = []
    for place in [first, *rest]:
        f = f"{held_fractions[place]:g}"
        label = f"{title}, f = {f}{_spread(by_fraction(ds, variable).value[:, :, place], words)}"
        choices.append(choice(f, traces(ds, place), label))
    return drawing(
        figure_id,
        figure(ds, held_fractions[first]),
        title=title,
        label=choices[0].label,
        reading=reading,
        source=SD,
        choices=choices,
        choice_of="f =",
    )


def _spread(grid: Values, words: str) -> str:
    finite = grid[np.isfinite(grid)]
    if not finite.size:
        return ": no head"
    low, middle, high = (number(float(x)) for x in np.percentile(finite, [0, 50, 100]))
    return f", {finite.size} heads: {words} from {low} to {high}, median {middle}"


def _similarity(ds: xr.Dataset) -> Figure:
    return _profile(
        ds, "smoothing-similarity", "Likeness of the tokens", "similarity_in",
        smoothing_curves.token_similarity_profile(ds), _SIMILARITY_READING,
    )  # fmt: skip


def _bos(ds: xr.Dataset) -> Figure:
    return _profile(
        ds, "smoothing-first", "Cosine of the first token with the others", "bos_cosine",
        angles.bos_cosines(ds), _BOS_READING,
    )  # fmt: skip


def _halfspace(ds: xr.Dataset) -> Figure:
    return _profile(
        ds, "smoothing-halfspaces", "Margins of the half-space conditions", _MARGIN,
        smoothing_curves.halfspace_profile(ds), _HALFSPACE_READING,
    )  # fmt: skip


def _costs(ds: xr.Dataset) -> Figure:
    figure, title = (
        smoothing_curves.representation_cost_profile(ds),
        "Cost of a sink and of the diagonal",
    )
    both = ds[COST].reindex(target=["sink", "diagonal"]).transpose("target", "layer", "norm").values
    label = f"Lines over the layers: {title.lower()}"
    ratio = both[1] / both[0]
    if np.isfinite(ratio).any():
        label += (
            f"; diagonal over sink from {number(np.nanmin(ratio))} to {number(np.nanmax(ratio))}"
        )
    return drawing(
        "smoothing-costs", figure, title=title, label=label, reading=_COST_READING, source=SD
    )


def _profile(
    ds: xr.Dataset, figure_id: str, title: str, variable: str, figure: go.Figure, reading: str
) -> Figure:
    found = estimate(ds, variable, "layer")
    label = f"Lines over the layers: {title.lower()}"
    known = np.flatnonzero(np.isfinite(found.value)).tolist()
    if known:
        first, last = (interval(found).text(k) for k in (known[0], known[-1]))
        names = results.layer_labels(ds)
        label += f"; {first} in layer {names[known[0]]}, {last} in layer {names[known[-1]]}"
    return drawing(figure_id, figure, title=title, label=label, reading=reading, source=SD)
