"""The report: one HTML file with everything a run found, readable without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from tl_geometry.views import attention, averages, null_sinks, provenance, results, together
from tl_geometry.views.estimates import evaluation_of
from tl_geometry.views.maps import MAPS
from tl_geometry.views.page import render, write_atomic
from tl_geometry.views.parts import Figure, Section
from tl_geometry.views.sentences import summary_sentences
from tl_geometry.views.summary import headline_tables
from tl_geometry.views.together import Contents, model_of

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
        ("sink_rate", null_sinks.RATE, "sink_norm_ratio"),
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

# What the maps do not show; in words, by the variable that tells, with its axes.
_PARTS = (
    ("How sinks act on outputs (sink_optimum)", "sink_optimum", ("layer", "head")),
    ("Attention switches (off_rate)", "off_rate", ("layer", "head", "fraction")),
    ("Oversmoothing (similarity_out)", "similarity_out", ("layer",)),
    (
        "Half-space conditions (halfspace_feasible: analyze with the measure “halfspace”)",
        "halfspace_feasible",
        ("layer",),
    ),
)


def report(
    ds: xr.Dataset | Sequence[xr.Dataset], path: str | Path, title: str | None = None
) -> Path:
    """Write the report of a run, of an evaluation or of several as one self-contained HTML file; return its path.

    What the run did not measure is left out and listed at the end. The file is written completely
    or not at all, and replaces an older one.

    Example:
        >>> report(load("run.nc"), "report.html")  # doctest: +SKIP
        >>> report([load("run.nc"), load("sinks.nc"), load("mixing.nc")], "all.html")  # doctest: +SKIP

    Args:
        ds: A result of `analyze`, of one of the evaluations (`faithfulness`, `sparsify`,
            `head_sensitivity`, `sink_interventions`, `pattern_mixing`, `token_costs`,
            `downstream`), or of `load`. Or a list of them, of one model, with one result of
            `analyze` at most.
        path: The file to write; missing directories are made.
        title: Heading; by default it names the model.

    Raises:
        TypeError: when `ds` is no Dataset and no list of them.
        ValueError: when a result has no layers or no heads and is no evaluation, or when the
            results do not go together.
        IsADirectoryError: when `path` is a directory.
    """
    return write_atomic(path, report_html(ds, title))


def report_html(ds: xr.Dataset | Sequence[xr.Dataset], title: str | None = None) -> str:
    """The report as a string; see `report`."""
    runs = together.together(ds)
    parts = together.named([(_of_evaluation if evaluation_of(r) else _of_run)(r) for r in runs])
    first, alone = parts[0], len(parts) == 1
    sections = together.distinct(parts)
    figures = [figure for section in sections for figure in section.figures]
    return render(
        "report.html.j2",
        [*figures, first.example] if first.example else figures,
        title=title or (first.title if alone else _title(first.ds)),
        facts=provenance.headline_facts(first.ds) if alone else [part.name for part in parts],
        warnings=together.warnings(parts),
        sentences=together.sentences(parts),
        sections=sections,
        example=first.example,
        example_tokens=first.example_tokens,
        choices=first.choices,
        conventions=first.conventions,
        provenance=together.origins(parts),
        missing=first.missing,
    )


def _of_run(ds: xr.Dataset) -> Contents:
    results.check_result(ds)
    choices = attention.chosen_heads(ds) if attention.has_examples(ds) else []
    example = attention.example_figure(ds, choices) if choices else None
    return Contents(
        ds=ds,
        name="Analysis",
        title=_title(ds),
        sentences=summary_sentences(ds),
        sections=_sections(ds),
        conventions=_MEANS,
        missing=_missing(ds, example is not None),
        example=example,
        example_tokens=attention.example_matrices(ds)[0] if example else [],
        choices=choices,
    )


def _of_evaluation(ds: xr.Dataset) -> Contents:
    from tl_geometry.views import evaluations

    name = evaluations.evaluation_title(ds)
    return Contents(
        ds=ds,
        name=name,
        title=f"{name}: {model_of(ds)}",
        sentences=evaluations.evaluation_sentences(ds),
        sections=evaluations.evaluation_sections(ds),
        conventions=_INTERVALS,
    )


def _title(ds: xr.Dataset) -> str:
    return f"Geometry of attention in {model_of(ds)}"


def _sections(ds: xr.Dataset) -> list[Section]:
    from tl_geometry.views import separable, sink_section, switch_section

    regimes, sinks, contributions = _planned(ds)
    sections = [
        regimes,
        sink_section.extended(sinks, ds),
        switch_section.switch_section(ds),
        switch_section.smoothing_section(ds),
        contributions,
    ]
    filled = [s for s in sections if s.figures or s.tables or s.findings]
    return [*filled, separable.section(ds)] if averages.separability_measured(ds) else filled


def _planned(ds: xr.Dataset) -> list[Section]:
    """The sections of single variables, with what the run holds of each."""
    tables = {table.key: table for table in headline_tables(ds)}
    sections = []
    for section_id, title, introduction, maps, table in _PLAN:
        figures = tuple(_figure(ds, name) for name in maps if null_sinks.shown(ds, name))
        found = (tables[table],) if table in tables else ()
        sections.append(Section(section_id, title, introduction, figures, found))
    return sections


def _figure(ds: xr.Dataset, variable: str) -> Figure:
    from tl_geometry.views.drawings import map_drawing, regime_drawing

    return regime_drawing(ds) if variable == "regime" else map_drawing(ds, variable)


def _missing(ds: xr.Dataset, has_example: bool) -> list[str]:
    titles: Mapping[str, Any] = {"regime": "Head regimes"} | {k: m.title for k, m in MAPS.items()}
    missing = [
        f"{title} ({name})"
        for name, title in titles.items()
        if name != null_sinks.RATE and not results.measured(ds, name)
    ]
    missing += [words for words, name, axes in _PARTS if not averages.held(ds, name, *axes)]
    if not averages.separability_measured(ds):
        missing.append("Separability (f_score)")
    if not has_example:
        missing.append("An example text (analyze with keep_examples=1)")
    return missing
