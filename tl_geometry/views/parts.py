"""The parts that pages are made of: drawings with their words, sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tl_geometry.views.findings import Finding
from tl_geometry.views.summary import Table
from tl_geometry.views.verdicts import RULE


@dataclass(frozen=True)
class Choice:
    """Another state of a plotly drawing, which the reader can choose.

    Args:
        name: What the reader chooses.
        traces: For each trace of the drawing what changes in it; all else stays.
        label: The drawing in words in this state.
    """

    name: str
    traces: Sequence[Mapping[str, Any]]
    label: str


@dataclass(frozen=True)
class Figure:
    """One drawing of a page: what draws it, its data, and the words that go with it.

    Args:
        id: Unique within the page.
        kind: The function of `page.js` that draws it.
        data: JSON-able; NaN must be None.
        title: Heading above the drawing.
        label: The drawing in words, for readers who cannot see it.
        height: Reserved height in pixels.
        width: Greatest width in pixels, None for the whole column.
        least: Least width in pixels; a page that is narrower scrolls the drawing sideways.
        reading: How to read it, one or two sentences.
        source: The paper that defines what is drawn.
        notes: Remarks about this run: missing cells, capped colours.
        choices: States that the reader can choose, the first of them shown at first.
        choice_of: What the reader chooses, in a word or two.
    """

    id: str
    kind: Literal["plotly", "heads"]
    data: Mapping[str, Any]
    title: str
    label: str
    height: int
    width: int | None = None
    least: int = 0
    reading: str = ""
    source: str = ""
    notes: Sequence[str] = field(default=())
    choices: Sequence[Choice] = field(default=())
    choice_of: str = ""

    @property
    def choice_data(self) -> list[dict[str, Any]]:
        """Traces and words of the choices for `page.js`."""
        return [{"traces": choice.traces, "label": choice.label} for choice in self.choices]


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading of its own.

    Args:
        id: Anchor.
        title: Heading.
        introduction: A few sentences in front.
        figures: Drawings, side by side where there is room.
        tables: Tables after them.
        findings: Verdicts on published claims.
        findings_title: Heading of the findings.
        source: The paper that they are about.
        rule: How the verdicts follow, under the findings.
        notes: How to read the numbers, after the findings.
    """

    id: str
    title: str
    introduction: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    findings: tuple[Finding, ...] = ()
    findings_title: str = ""
    source: str = ""
    rule: str = RULE
    notes: tuple[str, ...] = ()
