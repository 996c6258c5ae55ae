"""The results of the evaluations for terminal and page: which functions show which of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import xarray as xr

from tl_geometry.views import (
    cost_findings,
    cost_tables,
    cost_views,
    downstream_views,
    faithfulness_tables,
    faithfulness_views,
    head_cost_views,
    mixing_tables,
    mixing_views,
    order,
    sensitivity_views,
    sink_tables,
    sink_views,
    sparsify_views,
)
from tl_geometry.views.estimates import EVALUATIONS, evaluation_of
from tl_geometry.views.findings import Finding
from tl_geometry.views.parts import Section
from tl_geometry.views.summary import Table


@dataclass(frozen=True)
class _Shown:
    """How one evaluation is shown.

    Args:
        title: Heading of its page, before the name of the model.
        tables: For terminal and page.
        sentences: The findings in words.
        section: The part of the page.
        findings: Verdicts on published claims.
    """

    title: str
    tables: Callable[[xr.Dataset], list[Table]]
    sentences: Callable[[xr.Dataset], list[str]]
    section: Callable[[xr.Dataset], Section]
    findings: Callable[[xr.Dataset], list[Finding]] | None = None


_SHOWN = {
    "faithfulness": _Shown(
        "Faithfulness of importances",
        faithfulness_tables.faithfulness_tables,
        faithfulness_tables.faithfulness_sentences,
        faithfulness_views.section,
        order.order_findings,
    ),
    "sparsify": _Shown(
        "Structured removal of heads",
        sparsify_views.sparsify_tables,
        sparsify_views.sentences,
        sparsify_views.section,
    ),
    "head_sensitivity": _Shown(
        "Sensitivity to single heads",
        sensitivity_views.sensitivity_tables,
        sensitivity_views.sentences,
        sensitivity_views.section,
    ),
    "sink_interventions": _Shown(
        "Interventions on attention sinks",
        sink_tables.sink_tables,
        sink_views.sentences,
        sink_views.section,
        sink_tables.sink_findings,
    ),
    "pattern_mixing": _Shown(
        "Mixed attention patterns",
        mixing_tables.mixing_tables,
        mixing_views.sentences,
        mixing_views.section,
        mixing_tables.mixing_findings,
    ),
    "token_costs": _Shown(
        "Costs of a sink and of the diagonal",
        cost_tables.token_costs_tables,
        cost_tables.sentences,
        cost_views.section,
        cost_findings.token_costs_findings,
    ),
    "head_costs": _Shown(
        "Costs of the heads' weights",
        head_cost_views.head_costs_tables,
        head_cost_views.sentences,
        head_cost_views.section,
    ),
    "downstream": _Shown(
        "Downstream accuracy",
        downstream_views.downstream_tables,
        downstream_views.sentences,
        downstream_views.section,
    ),
}


def evaluation_tables(ds: xr.Dataset) -> list[Table]:
    """The tables of an evaluation, as the command line prints them and the report shows them.

    Example:
        >>> for table in evaluation_tables(faithfulness(model, texts)):  # doctest: +SKIP
        ...     print(table.title, *table.rows, sep="\\n")

    Args:
        ds: A result of `faithfulness`, `sparsify`, `head_sensitivity`, `sink_interventions`,
            `pattern_mixing`, `token_costs`, `head_costs` or `downstream`.

    Raises:
        ValueError: when `ds` is no result of an evaluation.
    """
    return _shown(ds).tables(ds)


def evaluation_findings(ds: xr.Dataset) -> list[Finding]:
    """The published claims that an evaluation can speak to, each with its verdict.

    Example:
        >>> for finding in evaluation_findings(faithfulness(model, texts)):  # doctest: +SKIP
        ...     print(finding)

    Raises:
        ValueError: when `ds` is no result of an evaluation.
    """
    findings = _shown(ds).findings
    return findings(ds) if findings else []


def evaluation_sentences(ds: xr.Dataset) -> list[str]:
    """What an evaluation found, every number taken from the result."""
    return _shown(ds).sentences(ds)


def evaluation_sections(ds: xr.Dataset) -> list[Section]:
    """The parts of the page of an evaluation."""
    return [_shown(ds).section(ds)]


def evaluation_title(ds: xr.Dataset) -> str:
    """The heading of its page, without the model."""
    return _shown(ds).title


def _shown(ds: xr.Dataset) -> _Shown:
    name = evaluation_of(ds)
    if not name:
        raise ValueError(
            f"ds is no result of an evaluation: its settings name none of {', '.join(EVALUATIONS)}"
        )
    return _SHOWN[name]
