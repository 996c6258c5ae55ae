"""Several results on one page: which of them go together, and what each brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xarray as xr

from tl_geometry.views import provenance
from tl_geometry.views.estimates import EVALUATIONS, evaluation_of, listed
from tl_geometry.views.parts import Figure, Section


@dataclass(frozen=True)
class Contents:
    """What one result brings to a page.

    Args:
        ds: The result.
        name: What it is called beside others.
        title: Heading of a page of its own.
        sentences: Its findings in words.
        sections: Its parts of the page.
        conventions: How to read its numbers.
        missing: What was not measured.
        example: A text, head by head.
        example_tokens: The tokens of that text.
        choices: The heads shown, with the reasons.
    """

    ds: xr.Dataset
    name: str
    title: str
    sentences: Sequence[str]
    sections: Sequence[Section]
    conventions: str
    missing: Sequence[str] = ()
    example: Figure | None = None
    example_tokens: Sequence[str] = ()
    choices: Sequence[Any] = field(default=())


def together(ds: xr.Dataset | Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """The results for one page, that of `analyze` first.

    Example:
        >>> together([interventions, run])[0] is run  # doctest: +SKIP
        True

    Raises:
        TypeError: for anything but a Dataset, or a list or tuple of them.
        ValueError: no result, two of `analyze`, or results of several models.
    """
    runs: list[Any] = list(ds) if isinstance(ds, (list, tuple)) else [ds]
    for run in runs:
        if not isinstance(run, xr.Dataset):
            raise TypeError(
                f"ds must be an xarray.Dataset as analyze returns it, or a list of them, got {type(run)!r}"
            )
    if not runs:
        raise ValueError("ds is empty: a report needs one result at least")
    ordered = sorted(runs, key=lambda run: bool(evaluation_of(run)))
    analyses = [run for run in runs if not evaluation_of(run)]
    if len(analyses) > 1:
        raise ValueError(
            f"ds holds {len(analyses)} results of analyze: a report takes one of them, with any number of results "
            f"of {listed(EVALUATIONS)}; compare shows how far two results of analyze agree"
        )
    models = list(dict.fromkeys(model_of(run) for run in ordered))
    if len(models) > 1:
        raise ValueError(f"ds holds results of several models, but a report is of one: {models}")
    return ordered


def model_of(ds: xr.Dataset) -> str:
    """The model's name, or words for its absence."""
    return str(ds.attrs.get("model_name") or "an unnamed model")


def named(contents: Sequence[Contents]) -> list[Contents]:
    """The same with names that tell them apart; a second of one name is numbered."""
    used: set[str] = set()
    return [replace(part, name=_numbered(part.name, _number(part.name, used))) for part in contents]


def distinct(contents: Sequence[Contents]) -> list[Section]:
    """The sections of all results; what has the id of an earlier one is numbered."""
    used: set[str] = set()
    found = []
    for section in (section for part in contents for section in part.sections):
        number = _number(section.id, used)
        figures = [(figure, _number(figure.id, used)) for figure in section.figures]
        found.append(
            replace(
                section,
                id=section.id + _suffix(number),
                title=_numbered(section.title, number),
                figures=tuple(replace(f, id=f.id + _suffix(n)) for f, n in figures),
            )
        )
    return found


def _number(name: str, used: set[str]) -> int:
    number = 1
    while name + _suffix(number) in used:
        number += 1
    used.add(name + _suffix(number))
    return number


def _numbered(text: str, number: int) -> str:
    return text if number == 1 else f"{text} ({number})"


def _suffix(number: int) -> str:
    return "" if number == 1 else f"-{number}"


def sentences(contents: Sequence[Contents]) -> list[str]:
    """All findings in words; those of a further result begin with its name."""
    found: list[str] = []
    for k, part in enumerate(contents):
        first = [f"{part.name}: {sentence}" for sentence in part.sentences[:1]] if k else []
        found += [*first, *part.sentences[len(first) :]]
    return found


def warnings(contents: Sequence[Contents]) -> list[str]:
    """All warnings once; those that do not concern every result say which."""
    concerned: dict[str, list[str]] = {}
    for part in contents:
        for warning in dict.fromkeys(provenance.warnings(part.ds)):
            concerned.setdefault(warning, []).append(part.name)
    found = [
        text if len(names) == len(contents) else f"{listed(names)}: {text}"
        for text, names in concerned.items()
    ]
    return [*found, *_differences(contents)]


_SAME_MODEL = {
    "weight_processing": "weight processing",
    "model_class": "class of the model",
    "model_dtype": "number type of the weights",
}
"""What two results of one name must have in common to be of one model."""


def _differences(contents: Sequence[Contents]) -> list[str]:
    """Warnings where results go by one model's name, but were not measured on the same weights."""
    found = []
    for key, words in _SAME_MODEL.items():
        held = [(part.name, part.ds.attrs[key]) for part in contents if key in part.ds.attrs]
        others = [name for name, value in held if value != held[0][1]]
        if others:
            found.append(
                f"{listed(others)}: the {words} is not that of {held[0][0]}, so numbers that depend on values and "
                "weights can't be compared"
            )
    return found


def origins(contents: Sequence[Contents]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Every attribute of every result, in groups."""
    alone = len(contents) == 1
    return [
        (group if alone else f"{part.name}: {group}", rows)
        for part in contents
        for group, rows in provenance.groups(part.ds)
    ]
