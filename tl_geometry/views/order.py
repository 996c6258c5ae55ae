"""The order that the paper found among importances, and which steps of it a run shows.

Cunningham & Muca Cirone (arXiv 2606.07604): attention < value-weighted < normalised < contribution,
the last the most faithful. Comprehensiveness is better the higher it is, sufficiency the lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr

from tl_geometry.measures.importances import share_output
from tl_geometry.measures.selection import Scope
from tl_geometry.views.estimates import Estimates, estimates, listed, percent
from tl_geometry.views.findings import Finding
from tl_geometry.views.verdicts import (
    ALIKE,
    HOLDS,
    REVERSED,
    SHOWN,
    UNSETTLED,
    order_verdict,
    verdict,
)

PAPER = ("attention", "value_weighted", "value_weighted_normalized", "contribution")
DIRECTIONS: Mapping[str, Literal[-1, 1]] = {"comprehensiveness": 1, "sufficiency": -1}
"""With the sign of an improvement."""

WORDS = {
    "value_weighted": "value-weighted",
    "value_weighted_normalized": "normalised",
    "signed": "signed contributions",
    "absolute": "absolute contributions",
}
ALIKE_NOTE = (
    "Alike by construction: value-weighted and normalised importances differ by the length of an output. "
    "Where all entries that are ranked together share this output, both rank them alike, and the step "
    "between them can't be shown."
)


@dataclass(frozen=True)
class Ranking:
    """One way to rank entries: an importance, with mode and ranking where they matter to it."""

    importance: str
    mode: str = ""
    ranking: str = ""

    @property
    def name(self) -> str:
        """What tables and legends call it: `contribution, inter, absolute`."""
        return ", ".join(filter(None, (word(self.importance), self.mode, self.ranking)))


@dataclass(frozen=True)
class Step:
    """Two neighbours in the paper's order, under one mode and ranking where they matter."""

    lower: str
    upper: Ranking

    @property
    def name(self) -> str:
        """What tables call the difference: `normalised − value-weighted`."""
        return f"{word(self.upper.importance)} − {word(self.lower)}"


def word(name: str) -> str:
    """The word for an importance or a ranking."""
    return WORDS.get(name, name)


def rankings(ds: xr.Dataset) -> list[Ranking]:
    """All different rankings of a run, in the paper's order, then the user's own, then the random one."""
    names = [str(name) for name in ds["importance"].values]
    own = [name for name in names if name not in (*PAPER, "random")]
    ordered = [name for name in (*PAPER, *own, "random") if name in names]
    return [ranking for name in ordered for ranking in _rankings(ds, name)]


def steps(ds: xr.Dataset) -> list[Step]:
    """All different steps of the paper's order that the run can speak to."""
    held = paper_importances(ds)
    return [Step(low, upper) for low, name in pairwise(held) for upper in _rankings(ds, name)]


def paper_importances(ds: xr.Dataset) -> list[str]:
    """The paper's importances in the run, in its order; a user's function of the same name is none."""
    scorers = ds.attrs.get("settings", {}).get("importances", {})
    names = ds["importance"].values
    return [name for name in PAPER if name in names and scorers.get(name, name) == name]


def _rankings(ds: xr.Dataset, name: str) -> list[Ranking]:
    modes = ds["mode"].values if name in PAPER[2:] else [""]
    signs = ds["ranking"].values if name == "contribution" else [""]
    return [Ranking(name, str(mode), str(sign)) for mode in modes for sign in signs]


def places(ds: xr.Dataset) -> list[str]:
    """The names of what `level` and `difference` hold: the mean, then each fraction."""
    return ["mean", *(percent(float(share)) for share in ds["fraction"].values)]


def level(ds: xr.Dataset, ranking: Ranking, direction: str) -> Estimates:
    """The mean over the fractions, then the value at each of them."""
    return _along(ds, direction, ranking, importance=ranking.importance)


def difference(ds: xr.Dataset, upper: Ranking, lower: str, direction: str) -> Estimates:
    """An importance minus another on the same documents: of the means, then at each fraction."""
    return _along(ds, f"{direction}_difference", upper, importance=upper.importance, other=lower)


def _along(ds: xr.Dataset, name: str, ranking: Ranking, **where: str) -> Estimates:
    where |= {"mode": ranking.mode or ds["mode"].values[0]}
    where |= {"ranking": ranking.ranking or ds["ranking"].values[0]}
    mean, each = (estimates(ds, variable, **where) for variable in (f"aopc_{name}", name))
    parts = ("value", "low", "high")
    joined = (np.append(getattr(mean, part), getattr(each, part)) for part in parts)
    return Estimates(*joined)


def statuses(ds: xr.Dataset, step: Step, direction: str) -> list[str]:
    """What each interval of a step says, the mean's first."""
    if _alike(ds, step):
        return [ALIKE] * len(places(ds))
    found = difference(ds, step.upper, step.lower, direction)
    return [found.shows(place, sign=DIRECTIONS[direction]) for place in range(len(found.value))]


def _alike(ds: xr.Dataset, step: Step) -> bool:
    """Whether both rank alike because the length of the output is the same for what is ranked together."""
    scope: Any = ds.attrs.get("settings", {}).get("scope")
    mode: Any = step.upper.mode
    compared = (step.lower, step.upper.importance) == PAPER[1:3]
    return compared and scope in get_args(Scope) and share_output(scope, mode)


def chain(ds: xr.Dataset, mode: str, sign: str) -> list[Step]:
    """The steps of the paper's order under one mode and one ranking of the contributions."""
    return [
        step
        for step in steps(ds)
        if step.upper.mode in ("", mode) and step.upper.ranking in ("", sign)
    ]


def order_findings(ds: xr.Dataset) -> list[Finding]:
    """Whether the paper's order holds, by direction, mode and ranking, and who beats random removal.

    Example:
        >>> for finding in order_findings(faithfulness(model, texts)):  # doctest: +SKIP
        ...     print(finding)

    A step counts as shown only if the interval of its paired difference, in the mean over the
    fractions, excludes 0. One reversed step refutes the order; who beats random removal is judged as
    all other claims are (`tl_geometry.views.verdicts`).
    """
    found = []
    if len(paper_importances(ds)) > 1:
        for direction in DIRECTIONS:
            for mode, sign in settings_of(ds):
                found.append(_order_finding(ds, direction, mode, sign))
    return found + [finding for name in DIRECTIONS if (finding := _against_random(ds, name))]


def settings_of(ds: xr.Dataset) -> list[tuple[str, str]]:
    """Modes and rankings under which the order is judged, blank where they don't matter to it."""
    held = paper_importances(ds)
    modes = ds["mode"].values if set(held) & set(PAPER[2:]) else [""]
    signs = ds["ranking"].values if "contribution" in held else [""]
    return [(str(mode), str(sign)) for mode in modes for sign in signs]


def _order_finding(ds: xr.Dataset, direction: str, mode: str, sign: str) -> Finding:
    links = chain(ds, mode, sign)
    found = [statuses(ds, link, direction) for link in links]
    better = "higher" if DIRECTIONS[direction] > 0 else "lower"
    setting = "".join(f", {part}" for part in (mode and f"mode {mode}", word(sign)) if part)
    claim = f"By {direction} ({better} is better){setting}: {paper_order(ds)}."
    gaps = [difference(ds, link.upper, link.lower, direction) for link in links]
    steps_in_words = "; ".join(
        f"{link.name} {gap.text(0)}, {marks[0]}{' by construction' * (marks[0] == ALIKE)}"
        for link, gap, marks in zip(links, gaps, found, strict=True)
    )
    judged = order_verdict([marks[0] for marks in found])
    evidence = [
        f"In the mean over the fractions {steps_in_words}.",
        _by_fraction(ds, {link.name: marks for link, marks in zip(links, found, strict=True)}),
    ]
    if judged != HOLDS:
        evidence.append(_best_first(ds, links, direction))
    return Finding(judged, claim, " ".join(evidence))


def paper_order(ds: xr.Dataset) -> str:
    """The paper's order, as far as the run can speak to it."""
    return " < ".join(word(name) for name in paper_importances(ds))


def _by_fraction(ds: xr.Dataset, marks: Mapping[str, Sequence[str]]) -> str:
    """At which fractions a step is not what it is in the mean."""
    labels = [label.removesuffix(" %") for label in places(ds)]
    parts = []
    for name, (mean, *each) in marks.items():
        for status in (SHOWN, REVERSED, UNSETTLED):
            where = [label for label, mark in zip(labels[1:], each, strict=True) if mark == status]
            if where and status != mean:
                parts.append(f"{name} {status} at {listed(where)} %")
    if not parts:
        return "At every single fraction the same."
    return f"At single fractions the same but for {'; '.join(parts)}."


def _best_first(ds: xr.Dataset, links: list[Step], direction: str) -> str:
    upper = links[-1].upper
    held = [Ranking(name, upper.mode, upper.ranking) for name in paper_importances(ds)]
    found = {ranking.importance: level(ds, ranking, direction) for ranking in held}
    sign = DIRECTIONS[direction]
    ordered = sorted(found, key=lambda name: -sign * float(found[name].value[0]))
    return (
        "Best first: " + ", ".join(f"{word(name)} {found[name].text(0)}" for name in ordered) + "."
    )


def _against_random(ds: xr.Dataset, direction: str) -> Finding | None:
    """Whether every importance is better than the random ranking."""
    held = [ranking for ranking in rankings(ds) if ranking.importance != "random"]
    if not held or "random" not in ds["importance"].values:
        return None
    by_status: dict[str, list[str]] = {SHOWN: [], UNSETTLED: [], REVERSED: []}
    for ranking in held:
        gap = difference(ds, ranking, "random", direction)
        status = gap.shows(0, sign=DIRECTIONS[direction])
        by_status[status].append(f"{ranking.name} {gap.text(0)}")
    words = {
        "comprehensiveness": "Removing what an importance ranks highest costs more than removing as "
        "many random entries, for every importance.",
        "sufficiency": "Removing what an importance ranks lowest costs less than removing as many "
        "random entries, for every importance.",
    }
    parts = [
        f"{status.capitalize()}: {'; '.join(names)}" for status, names in by_status.items() if names
    ]
    evidence = f"Mean {direction} minus that of random. {'. '.join(parts)}."
    marks = [status for status, names in by_status.items() for _ in names]
    return Finding(verdict(marks), words[direction], evidence)
