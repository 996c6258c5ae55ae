"""Faithfulness of importances in tables and sentences: the judged order, every cell, differences."""

from __future__ import annotations

from typing import Literal

import xarray as xr

from tl_geometry.views import order
from tl_geometry.views.estimates import (
    Estimates,
    estimates,
    listed,
    over_documents,
    require_evaluation,
)
from tl_geometry.views.order import DIRECTIONS, Ranking, word
from tl_geometry.views.summary import Table
from tl_geometry.views.verdicts import SHOWN, order_verdict


def faithfulness_tables(ds: xr.Dataset) -> list[Table]:
    """The order's steps, every cell with its interval, neighbours' differences, differences to random.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `faithfulness`.
    """
    require_evaluation(ds, "faithfulness")
    tables = [_order_table(ds), _levels(ds), _differences(ds), _random(ds)]
    return [table for table in tables if table.rows]


def _order_table(ds: xr.Dataset) -> Table:
    """One row for each direction, mode and ranking: verdict and steps."""
    rows = []
    held = order.paper_importances(ds)
    headings: list[str] = []
    for direction in DIRECTIONS if len(held) > 1 else ():
        for mode, sign in order.settings_of(ds):
            links = order.chain(ds, mode, sign)
            headings = [link.name for link in links]
            marks = [order.statuses(ds, link, direction)[0] for link in links]
            rows.append((direction, mode or "any", sign or "any", order_verdict(marks), *marks))
    return Table(
        "order",
        f"The paper's order: {order.paper_order(ds)}",
        ("direction", "mode", "contributions", "verdict", *headings),
        tuple(rows),
        (False,) * (4 + len(headings)),
        "Steps in the mean over the fractions. Shown: the interval of the paired difference excludes 0 "
        "on the paper's side; reversed: on the other side, which refutes the order. Alike: both rank alike by "
        "construction.",
    )


def _levels(ds: xr.Dataset) -> Table:
    found = {
        ranking: [order.level(ds, ranking, direction) for direction in DIRECTIONS]
        for ranking in order.rankings(ds)
    }
    rows = [
        (label, *_labels(ranking), *(levels.text(place) for levels in both))
        for place, label in enumerate(order.places(ds))
        for ranking, both in found.items()
    ]
    return Table(
        "faithfulness",
        "NLL minus that of the full model, nats per token",
        ("removed", "importance", "mode", "ranking", *DIRECTIONS),
        tuple(rows),
        (True, False, False, False, True, True),
        "Mean: over the fractions (AOPC). Mode and ranking are blank where they do not matter to the "
        "importance.",
    )


def _differences(ds: xr.Dataset) -> Table:
    found = {
        step: [
            (
                order.difference(ds, step.upper, step.lower, direction),
                order.statuses(ds, step, direction),
            )
            for direction in DIRECTIONS
        ]
        for step in order.steps(ds)
    }
    rows = []
    for place, label in enumerate(order.places(ds)):
        for step, both in found.items():
            cells = [text for gap, marks in both for text in (gap.text(place), marks[place])]
            rows.append((label, step.name, step.upper.mode, step.upper.ranking, *cells))
    return Table(
        "differences",
        "Paired differences of neighbours in the paper's order, nats per token",
        (
            "removed",
            "difference",
            "mode",
            "ranking",
            "comprehensiveness",
            "step",
            "sufficiency",
            "step",
        ),
        tuple(rows),
        (True, False, False, False, True, False, True, False),
        "The paper's order asks for positive differences of comprehensiveness and negative ones of "
        "sufficiency, on the same documents.",
    )


def _random(ds: xr.Dataset) -> Table:
    rows = []
    for ranking in order.rankings(ds) if "random" in ds["importance"].values else ():
        if ranking.importance == "random":
            continue
        cells = []
        for direction, sign in DIRECTIONS.items():
            gap = order.difference(ds, ranking, "random", direction)
            cells += [gap.text(0), _better(gap, sign, order.places(ds))]
        rows.append((*_labels(ranking), *cells))
    return Table(
        "random",
        "Against random removal: paired differences of the means, nats per token",
        (
            "importance",
            "mode",
            "ranking",
            "comprehensiveness",
            "better at",
            "sufficiency",
            "better at",
        ),
        tuple(rows),
        (False, False, False, True, False, True, False),
        "Better at: fractions at which the interval of the difference excludes 0 on the better side.",
    )


def _better(gap: Estimates, sign: Literal[-1, 1], labels: list[str]) -> str:
    each = [
        label.removesuffix(" %")
        for place, label in enumerate(labels)
        if place and gap.shows(place, sign=sign) == SHOWN
    ]
    return f"{', '.join(each)} %" if each else "none"


def _labels(ranking: Ranking) -> tuple[str, str, str]:
    return word(ranking.importance), ranking.mode, ranking.ranking


def faithfulness_sentences(ds: xr.Dataset) -> list[str]:
    """What the run found."""
    full, perplexity = (estimates(ds, name).text() for name in ("nll_full", "perplexity_full"))
    found = [
        f"The full model has an NLL of {full} nats per token, a perplexity of {perplexity}"
        f"{over_documents(ds)}."
    ]
    judged = _order_table(ds).rows
    for direction, sign in DIRECTIONS.items():
        held = {ranking.name: order.level(ds, ranking, direction) for ranking in order.rankings(ds)}
        best = max(held, key=lambda name: sign * float(held[name].value[0]))
        end = "highest" if sign > 0 else "lowest"
        found.append(
            f"Mean {direction} is {end} for “{best}”: {held[best].text(0)} nats per token."
        )
        by_verdict: dict[str, list[str]] = {}
        for _, mode, ranking, result, *_ in (row for row in judged if row[0] == direction):
            setting = "/".join(name for name in (mode, ranking) if name != "any")
            by_verdict.setdefault(result.lower(), []).append(setting)
        if by_verdict:
            parts = (
                f"{result}{f' for {listed(where)} contributions' if all(where) else ''}"
                for result, where in by_verdict.items()
            )
            found.append(
                f"By {direction} the paper's order {order.paper_order(ds)} {'; '.join(parts)}."
            )
    return found
