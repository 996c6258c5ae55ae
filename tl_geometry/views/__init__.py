"""Seeing the results: notebook views, plotly figures, tables, sentences, the HTML report.

`regimes`, `separability` and `contributions` display themselves in a notebook and can be saved as
HTML. The plotly figures of a result are in `tl_geometry.views.figures` and
`tl_geometry.views.curves`, the report is in `tl_geometry.views.report`. An evaluation has figures
(`faithfulness_curves`, `sparsification_curves`, `sensitivity_map`, `sink_intervention_map`,
`downstream_accuracies`), tables (`evaluation_tables`) and verdicts (`evaluation_findings`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tl_geometry.views.findings import separability_findings
from tl_geometry.views.notebook import contributions, regimes, separability
from tl_geometry.views.page import View
from tl_geometry.views.sentences import summary_sentences
from tl_geometry.views.summary import Table, headline_tables

if TYPE_CHECKING:
    from tl_geometry.views.curves import certificate_envelope
    from tl_geometry.views.downstream_views import downstream_accuracies
    from tl_geometry.views.evaluations import evaluation_findings, evaluation_tables
    from tl_geometry.views.faithfulness_views import faithfulness_curves
    from tl_geometry.views.sensitivity_views import sensitivity_map
    from tl_geometry.views.sink_views import sink_intervention_map
    from tl_geometry.views.sparsify_views import sparsification_curves

__all__ = [
    "Table",
    "View",
    "certificate_envelope",
    "contributions",
    "downstream_accuracies",
    "evaluation_findings",
    "evaluation_tables",
    "faithfulness_curves",
    "headline_tables",
    "regimes",
    "sensitivity_map",
    "separability",
    "separability_findings",
    "sink_intervention_map",
    "sparsification_curves",
    "summary_sentences",
]

# What needs plotly, and where it is.
_LATER = {
    "certificate_envelope": "curves",
    "downstream_accuracies": "downstream_views",
    "evaluation_findings": "evaluations",
    "evaluation_tables": "evaluations",
    "faithfulness_curves": "faithfulness_views",
    "sensitivity_map": "sensitivity_views",
    "sink_intervention_map": "sink_views",
    "sparsification_curves": "sparsify_views",
}


def __getattr__(name: str) -> Any:
    """Import what needs plotly when it is first used."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
