"""Separability as a part of a page: its figures with their words, its tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from tl_geometry.texts import visible
from tl_geometry.views import averages, curves, results
from tl_geometry.views.drawings import drawing, value_drawing
from tl_geometry.views.findings import separability_findings
from tl_geometry.views.maps import F_GAIN, F_SCORE, TS
from tl_geometry.views.notes import ties_note, tightness
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.profiles import choice
from tl_geometry.views.results import Values, number
from tl_geometry.views.summary import TOP, Table

INTRODUCTION = (
    "Take the N tokens that a query attends to most, and what each of them contributes (attention "
    "times value). F says whether these contributions are a cluster of their own: 1 when all of "
    "them lie nearer to their sum than any other token's contribution does, 0 when none does. The "
    "control takes N random tokens, the sink not excluded, around their own sum."
)
INTERVALS = (
    "Intervals (bands, and brackets) reach two standard errors over documents to each side. The "
    "errors of the heads in a mean are added as if all heads always erred together, those of a "
    "difference as if its two sides always erred apart, so that what heads share cannot make an "
    "interval too narrow. With few documents a standard error is itself uncertain."
)
_READING = (
    "The solid line against the dotted one shows what attention adds to chance, the dashed one "
    "what the sink does. The bounds are lower limits of F, one from the number of misplaced pairs, "
    "one from lengths and angles alone. N = 1 stands apart: a single token lies at its own sum, "
    "so F is 1 for any rule."
)
_LAYERS_READING = (
    "The same lines, mean over the heads of each layer, at one N: where in the model attention "
    "selects clusters, and where the sink breaks them."
)
_EFFECT_READING = (
    "How much higher F is when the sink is neither selected nor compared with, for the heads of "
    "each regime. Above 0 the sink stands in the way of separability."
)
_TABLE_NOTE = (
    "Heads by F above the random control at N = {n}, with the upper limit of its standard error. "
    "Separated rows: share of queries whose N most attended tokens are all nearer to their sum "
    "than every other token (F = 1)."
)


def section(ds: xr.Dataset) -> Section:
    """All about separability; `ds` must hold F."""
    figures: list[Figure] = []
    tables: list[Table] = []
    notes = [tightness(ds), INTERVALS, ties_note(ds)]
    if averages.compared(ds):
        figures, tables = _figures(ds), separability_tables(ds)
    else:
        notes.append("Only N = 1 was measured, where F is 1 for any rule: nothing to compare.")
    return Section(
        id="separability",
        title="Separability",
        introduction=INTRODUCTION,
        figures=tuple(figures),
        tables=tuple(tables),
        findings=tuple(separability_findings(ds)),
        findings_title="What the paper found, and whether this run shows it",
        source=TS,
        notes=tuple(note for note in notes if note),
    )


def _figures(ds: xr.Dataset) -> list[Figure]:
    figures = [_curves(ds)]
    if averages.separability_measured(ds, "f_score_no_sink"):
        figures.append(_effect(ds))
    if results.measured(ds, "regime"):
        labels = results.regimes(ds)
        figures += [_regime_curves(ds, r) for r in results.REGIMES if (labels == r).any()]
    figures.append(_layers(ds))
    place = averages.nearest_size(ds)
    n = averages.sizes(ds)[place]
    score = averages.quantity(ds, "f_score").value[:, :, place]
    figures.append(value_drawing(ds, curves.f_map(ds, n), F_SCORE.at(n), score))
    if averages.separability_measured(ds, "f_score_random"):
        gain = curves.gain(ds).value[:, :, place]
        figures.append(value_drawing(ds, curves.f_gain_map(ds, n), F_GAIN.at(n), gain))
    return figures


def _curves(ds: xr.Dataset) -> Figure:
    everything = curves.heads_of(ds)
    choices = [choice("all heads", curves.curve_traces(ds, everything), _words(ds, everything))]
    for label in results.layer_labels(ds) if ds.sizes["layer"] > 1 else []:
        heads = curves.heads_of(ds, layer=label)
        name = f"layer {visible(label)}"
        choices.append(choice(name, curves.curve_traces(ds, heads), _words(ds, heads)))
    return drawing(
        "separability-curves",
        curves.f_curves(ds),
        title="F against N",
        label=_words(ds, everything),
        reading=_READING,
        source=TS,
        choices=choices,
        choice_of="Mean over",
    )


def _regime_curves(ds: xr.Dataset, regime: str) -> Figure:
    heads = curves.heads_of(ds, regime=regime)
    count = int(heads.sum())
    figure = curves.f_curves(ds, regime=regime)
    figure.update_layout(width=280, height=320, showlegend=False)  # one of three, lines as above
    return drawing(
        f"separability-{regime}",
        figure,
        title=f"F against N: {regime} heads",
        label=_words(ds, heads),
        reading=f"{_mean_over(count, regime)}; lines as above.",
        source=TS,
    )


def _mean_over(count: int, regime: str) -> str:
    return f"The only {regime} head" if count == 1 else f"Mean over {count} {regime} heads"


def _effect(ds: xr.Dataset) -> Figure:
    effect = averages.quantity(ds, "f_score_no_sink") - averages.quantity(ds, "f_score")
    place = averages.nearest_size(ds)
    mean = effect.mean().text(place)
    n = averages.sizes(ds)[place]
    return drawing(
        "separability-sink",
        curves.sink_effect_curves(ds),
        title="What leaving out the sink does",
        label=f"Lines of F without the sink minus F against N; at N = {n} over all heads {mean}",
        reading=_EFFECT_READING,
        source=TS,
    )


def _layers(ds: xr.Dataset) -> Figure:
    first = averages.nearest_size(ds)
    rest = [place for place in averages.compared(ds) if place != first]
    choices = []
    for place in [first, *rest]:
        n = averages.sizes(ds)[place]
        means = averages.quantity(ds, "f_score").mean_by_layer().value[:, place]
        label = f"Lines of the mean F of each layer at N = {n}"
        if np.isfinite(means).any():
            low, high = number(float(np.nanmin(means))), number(float(np.nanmax(means)))
            label += f": the N most attended tokens between {low} and {high}"
        choices.append(choice(str(n), curves.layer_traces(ds, place), label))
    return drawing(
        "separability-layers",
        curves.layer_profile(ds),
        title="F by layer",
        label=choices[0].label,
        reading=_LAYERS_READING,
        source=TS,
        choices=choices,
        choice_of="N =",
    )


def _words(ds: xr.Dataset, heads: Values) -> str:
    """The curves at the preferred N in words."""
    place = averages.nearest_size(ds)
    parts = []
    for name, words in (
        ("f_score", "most attended"),
        ("f_score_random", "random"),
        ("f_score_no_sink", "without the sink"),
    ):
        if averages.separability_measured(ds, name):
            parts.append(f"{words} {averages.quantity(ds, name).mean(heads).text(place)}")
    n, count = averages.sizes(ds)[place], int(heads.sum())
    return f"Lines of F against N, mean over {count} heads; at N = {n}: {', '.join(parts)}"


def separability_tables(ds: xr.Dataset) -> list[Table]:
    """The ten heads whose F is farthest above the control, and the ten with the least of it.

    Example:
        >>> most, least = separability_tables(ds)  # doctest: +SKIP

    A run of ten heads or fewer gives one table.
    """
    if not averages.separability_measured(ds, "f_score", "f_score_random"):
        return []
    if not averages.compared(ds):
        return []
    place = averages.nearest_size(ds)
    gain = curves.gain(ds).value[:, :, place]
    order = results.strongest(gain, gain.size)
    tables = [_table(ds, "most_separable", "most separable heads", order[:TOP], place)]
    if least := order[TOP:][::-1][:TOP]:
        tables.append(_table(ds, "least_separable", "least separable heads", least, place))
    return [table for table in tables if table.rows]


def _table(ds: xr.Dataset, key: str, title: str, heads: list[tuple[int, int]], place: int) -> Table:
    gain = curves.gain(ds)[:, :, place]
    columns: list[tuple[str, Callable[[int, int], str]]] = [
        ("F − control", lambda i, j: _with_error(gain.value[i, j], gain.error[i, j]))
    ]
    for name, heading in (
        ("f_score", "F"),
        ("f_score_random", "control"),
        ("f_score_no_sink", "without the sink"),
        ("separable_share", "separated rows"),
    ):
        if averages.separability_measured(ds, name):
            columns.append((heading, _cell(averages.quantity(ds, name).value[:, :, place])))
    if results.measured(ds, "sink_rate"):
        columns.append(("sink rate", _cell(results.values(ds, "sink_rate"))))
    numeric = [True] * len(columns)
    if results.measured(ds, "regime"):
        labels = results.regimes(ds)
        columns.append(("regime", lambda i, j: str(labels[i, j]) or "unknown"))
        numeric.append(False)
    names = results.head_names(ds)
    return Table(
        key,
        f"Ten {title}" if len(heads) == TOP else title[0].upper() + title[1:],
        ("head", *(heading for heading, _ in columns)),
        tuple((names[i][j], *(cell(i, j) for _, cell in columns)) for i, j in heads),
        (False, *numeric),
        _TABLE_NOTE.format(n=averages.sizes(ds)[place]),
    )


def _cell(grid: Values) -> Callable[[int, int], str]:
    return lambda i, j: number(float(grid[i, j]))


def _with_error(x: float, error: float) -> str:
    return f"{number(x)} ± {error:.3f}" if np.isfinite(error) else number(x)
