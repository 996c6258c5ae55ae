"""Accuracy on downstream tasks, of the model and of what was taken from it."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tl_geometry.texts import visible
from tl_geometry.views import style
from tl_geometry.views.drawings import drawing
from tl_geometry.views.estimates import percent, require_evaluation
from tl_geometry.views.maps import CW
from tl_geometry.views.order import word
from tl_geometry.views.page import rounded
from tl_geometry.views.parts import Choice, Figure, Section
from tl_geometry.views.results import Values, number
from tl_geometry.views.summary import Table
from tl_geometry.views.traces import unit_axis

_MARKS = {"top": ("#a9640a", "triangle-down"), "bottom": ("#1d7a6c", "triangle-up")}
_PLAIN = ("#123f80", "circle")
_INTRODUCTION = (
    "Share of questions that are answered rightly: by the model as it is (full), and with {fraction} of "
    "the attention entries removed while it reads, those that an importance ranks highest (top) or lowest "
    "(bottom)."
)
_PLAIN_INTRODUCTION = (
    "Share of questions that are answered rightly, with and without the given hooks."
)
_ERRORS = (
    "Bars, and “±” in the table, are one standard error over the questions of a task. The variants answer "
    "the same questions, so their errors are not independent."
)
_READING = (
    "A good importance loses much accuracy at the top and little at the bottom. The dashed line is the "
    "model as it is."
)
_SOURCE = f"{CW}; tasks of EleutherAI’s evaluation harness"
_NAMED = 5


def downstream_accuracies(ds: xr.Dataset, task: str | None = None) -> go.Figure:
    """Accuracy of every variant on a task, with a standard error to each side.

    Example:
        >>> downstream_accuracies(downstream(model, ["boolq"]), "boolq").show()  # doctest: +SKIP

    Args:
        ds: A result of `downstream`.
        task: Which task; by default the first of the run.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no such result, or has no such task.
    """
    require_evaluation(ds, "downstream")
    tasks = [str(name) for name in ds["task"].values]
    chosen = tasks[0] if task is None else task
    if chosen not in tasks:
        raise ValueError(f"task={task!r} is not among the tasks of ds: {tasks}")
    variants = _variants(ds)
    accuracy, error = _grids(ds.sel(task=chosen))
    full = float(accuracy[variants.index("full")]) if "full" in variants else np.nan
    marks = [_MARKS.get(name.rpartition(" ")[2], _PLAIN) for name in variants]
    places = list(range(len(variants)))
    level = rounded(np.array([full, full]))
    figure = go.Figure(
        [
            go.Scatter(
                x=[-0.5, len(variants) - 0.5],
                y=level,
                mode="lines",
                line={"color": "#6b727c", "dash": "dash", "width": 1},
                hoverinfo="skip",
            ),
            go.Scatter(
                x=places,
                y=rounded(accuracy),
                mode="markers",
                marker={
                    "color": [colour for colour, _ in marks],
                    "symbol": [symbol for _, symbol in marks],
                    "size": 11,
                },
                error_y={"array": rounded(error), "thickness": 1.5, "width": 5, "color": style.INK},
                hovertext=[
                    f"{style.text(_name(name))}: {_cell(accuracy[k], error[k])}"
                    for k, name in enumerate(variants)
                ],
                hoverinfo="text",
            ),
        ]
    )
    width = 150 + max(220, 62 * len(variants))
    figure.update_layout(style.layout(f"Accuracy on {visible(chosen)}", width=width, height=460))
    axis = style.axis("", places, [_name(name) for name in variants])
    figure.update_layout(
        showlegend=False,
        xaxis=axis | {"range": [-0.5, len(variants) - 0.5], "tickangle": -40},
        yaxis=unit_axis("accuracy"),
    )
    return figure


def _variants(ds: xr.Dataset) -> list[str]:
    return [str(name) for name in ds["variant"].values]


def _name(variant: str) -> str:
    """A variant in words: `normalised, top`."""
    name, _, side = variant.rpartition(" ")
    return f"{word(name)}, {side}" if name and side in _MARKS else variant


def _grids(ds: xr.Dataset) -> tuple[Values, Values]:
    value = np.asarray(ds["accuracy"].values, dtype=np.float64)
    return value, np.asarray(ds["accuracy_se"].values, dtype=np.float64)


def _cell(value: float, error: float) -> str:
    return f"{number(value, 3)} ± {number(error, 3)}" if np.isfinite(error) else number(value, 3)


def downstream_tables(ds: xr.Dataset) -> list[Table]:
    """Accuracy of every variant on every task.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `downstream`.
    """
    require_evaluation(ds, "downstream")
    accuracy, error = _grids(ds.transpose("task", "variant", ...))
    variants = _variants(ds)
    rows = []
    for i, task in enumerate(ds["task"].values):
        for j, variant in enumerate(variants):
            change = "–"
            if "full" in variants and variant != "full":
                change = number(float(accuracy[i, j] - accuracy[i, variants.index("full")]), 3)
            questions = number(int(ds["questions"].values[i]), 0)
            cell = _cell(float(accuracy[i, j]), float(error[i, j]))
            rows.append((str(task), _name(variant), cell, change, questions))
    note = "±: standard error over questions. Change: accuracy minus that of the model as it is (full)."
    return [
        Table(
            "downstream",
            "Accuracy on downstream tasks",
            ("task", "variant", "accuracy", "change", "questions"),
            tuple(rows),
            (False, False, True, True, True),
            note,
        )
    ]


def sentences(ds: xr.Dataset) -> list[str]:
    """What the run found; of many tasks the first ones."""
    found = []
    variants = _variants(ds)
    for task in ds["task"].values[:_NAMED]:
        accuracy, error = _grids(ds.sel(task=task))
        if "full" not in variants or not np.isfinite(accuracy).any():
            continue
        k = variants.index("full")
        questions = number(int(ds["questions"].sel(task=task)), 0)
        text = (
            f"{task}: the model gets {_cell(accuracy[k], error[k])} of {questions} questions right"
        )
        others = [j for j in range(len(variants)) if j != k]
        if others:
            low, high = (
                others[int(pick(accuracy[others]))] for pick in (np.nanargmin, np.nanargmax)
            )
            text += (
                f"; the lowest accuracy under an edit is {number(accuracy[low], 3)} "
                f"({_name(variants[low])}), the highest {number(accuracy[high], 3)} ({_name(variants[high])})"
            )
        found.append(f"{text}.")
    return found


def section(ds: xr.Dataset) -> Section:
    """All about downstream accuracy."""
    settings = ds.attrs.get("settings", {})
    introduction = _PLAIN_INTRODUCTION
    if settings.get("importances"):
        introduction = _INTRODUCTION.format(fraction=percent(float(settings["fraction"])))
    return Section(
        id="downstream",
        title="Accuracy on downstream tasks",
        introduction=introduction,
        figures=(_drawing(ds),),
        tables=tuple(downstream_tables(ds)),
        notes=(_ERRORS,),
    )


def _drawing(ds: xr.Dataset) -> Figure:
    choices = []
    for task in map(str, ds["task"].values):
        traces = json.loads(str(downstream_accuracies(ds, task).to_json()))["data"]
        changing = ("x", "y", "hovertext", "error_y")
        states = [{key: trace[key] for key in changing if key in trace} for trace in traces]
        accuracy, error = _grids(ds.sel(task=task))
        words = [f"{_name(v)} {_cell(accuracy[k], error[k])}" for k, v in enumerate(_variants(ds))]
        choices.append(Choice(visible(task), states, f"Accuracy on {task}: {', '.join(words)}"))
    return drawing(
        "downstream-accuracies",
        downstream_accuracies(ds),
        title="Accuracy of every variant",
        label=choices[0].label,
        reading=_READING,
        source=_SOURCE,
        choices=choices,
        choice_of="Task",
        least=min(560, 120 + 40 * ds.sizes["variant"]),
    )
