"""The report: one HTML file with everything a run found, readable without a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from tl_geometry.views import attention, averages, provenance, results
from tl_geometry.views.estimates import evaluation_of
from tl_geometry.views.maps import MAPS
from tl_geometry.views.page import render, write_atomic
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.sentences import summary_sentences
from tl_geometry.views.summary import headline_tables

_MEANS = (
    "Means are over documents (windows of text); “±” is the standard error over documents. A blank "
    "cell or a dash means that there is no value, never zero."
)
_INTERVALS = "A blank cell or a dash means that there is no value, never zero."

# id, title, introduction, maps, table
_PLAN = (
    (
        "regimes",
        "Head regimes",
        "Three kinds of head, told apart by whose value wins: no threshold is involved.",
        ("regime",),
        "regimes",
    ),
    (
        "sinks",
        "Attention sinks",
        "How much attention goes to the sink, and how long its value vector is.",
        ("sink_rate", "sink_norm_ratio"),
        "sinks",
    ),
    (
        "contributions",
        "Contributions",
        "A contribution weight is the signed share of an output that a token supplies. It takes "
        "in how long the token's value is and where it points, which attention does not.",
        ("contribution_attention_distance", "contribution_sink", "contribution_inter"),
        "contributions",
    ),
)


def report(ds: xr.Dataset, path: str | Path, title: str | None = None) -> Path:
    """Write the report of a run or of an evaluation as one self-contained HTML file; return its path.

    What the run did not measure is left out and listed at the end. The file is written completely
    or not at all, and replaces an older one.

    Example:
        >>> report(load("run.nc"), "report.html")  # doctest: +SKIP

    Args:
        ds: A result of `analyze`, of one of the evaluations (`faithfulness`, `sparsify`,
            `head_sensitivity`, `sink_interventions`, `downstream`), or of `load`.
        path: The file to write; missing directories are made.
        title: Heading; by default it names the model.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` has no layers or no heads and is no evaluation.
        IsADirectoryError: when `path` is a directory.
    """
    return write_atomic(path, report_html(ds, title))


def report_html(ds: xr.Dataset, title: str | None = None) -> str:
    """The report as a string; see `report`."""
    if evaluation_of(ds):
        return _evaluation_html(ds, title)
    results.check_result(ds)
    sections = _sections(ds)
    choices = attention.chosen_heads(ds) if attention.has_examples(ds) else []
    example = attention.example_figure(ds, choices) if choices else None
    figures = [figure for section in sections for figure in section.figures]
    return render(
        "report.html.j2",
        [*figures, example] if example else figures,
        title=title or f"Geometry of attention in {_model(ds)}",
        facts=provenance.headline_facts(ds),
        warnings=provenance.warnings(ds),
        sentences=summary_sentences(ds),
        sections=sections,
        example=example,
        example_tokens=attention.example_matrices(ds)[0] if example else [],
        choices=choices,
        conventions=_MEANS,
        provenance=provenance.groups(ds),
        missing=_missing(ds, example is not None),
    )


def _evaluation_html(ds: xr.Dataset, title: str | None) -> str:
    from tl_geometry.views import evaluations

    sections = evaluations.evaluation_sections(ds)
    return render(
        "report.html.j2",
        [figure for section in sections for figure in section.figures],
        title=title or f"{evaluations.evaluation_title(ds)}: {_model(ds)}",
        facts=provenance.headline_facts(ds),
        warnings=provenance.warnings(ds),
        sentences=evaluations.evaluation_sentences(ds),
        sections=sections,
        example=None,
        example_tokens=[],
        choices=[],
        conventions=_INTERVALS,
        provenance=provenance.groups(ds),
        missing=[],
    )


def _model(ds: xr.Dataset) -> str:
    return str(ds.attrs.get("model_name") or "an unnamed model")


def _sections(ds: xr.Dataset) -> list[Section]:
    tables = {table.key: table for table in headline_tables(ds)}
    sections = []
    for section_id, title, introduction, maps, table in _PLAN:
        figures = tuple(_figure(ds, name) for name in maps if results.measured(ds, name))
        found = (tables[table],) if table in tables else ()
        if figures or found:
            sections.append(Section(section_id, title, introduction, figures, found))
    if averages.separability_measured(ds):
        from tl_geometry.views.separable import section

        sections.append(section(ds))
    return sections


def _figure(ds: xr.Dataset, variable: str) -> Figure:
    from tl_geometry.views.drawings import map_drawing, regime_drawing

    return regime_drawing(ds) if variable == "regime" else map_drawing(ds, variable)


def _missing(ds: xr.Dataset, has_example: bool) -> list[str]:
    titles: Mapping[str, Any] = {"regime": "Head regimes"} | {k: m.title for k, m in MAPS.items()}
    missing = [
        f"{title} ({name})" for name, title in titles.items() if not results.measured(ds, name)
    ]
    if not averages.separability_measured(ds):
        missing.append("Separability (f_score)")
    if not has_example:
        missing.append("An example text (analyze with keep_examples=1)")
    return missing
