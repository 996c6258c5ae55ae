"""Seeing the results: notebook views, plotly figures, tables, sentences, the HTML report.

`regimes`, `separability` and `contributions` display themselves in a notebook and can be saved as
HTML. The plotly figures of a result are in `tl_geometry.views.figures` and
`tl_geometry.views.curves`, the report is in `tl_geometry.views.report`. How sinks work is shown by
`norm_against_sink_rate`, `optimum_gaps`, `sink_cosines`, `off_rates`, `off_and_on`, `bos_cosines`,
`token_similarity_profile`, `halfspace_profile` and `representation_cost_profile`, and judged by `suppression_findings`,
`switch_findings` and `smoothing_findings`. An evaluation has figures (`faithfulness_curves`,
`sparsification_curves`, `sensitivity_map`, `sink_intervention_map`, `mixing_curves`, `cost_curves`,
`head_cost_scatter`, `downstream_accuracies`), tables (`evaluation_tables`) and verdicts
(`evaluation_findings`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tl_geometry.views.findings import separability_findings
from tl_geometry.views.notebook import contributions, regimes, separability
from tl_geometry.views.page import View
from tl_geometry.views.sentences import summary_sentences
from tl_geometry.views.sink_claims import suppression_findings
from tl_geometry.views.smoothing_claims import smoothing_findings
from tl_geometry.views.summary import Table, headline_tables
from tl_geometry.views.switch_claims import switch_findings

if TYPE_CHECKING:
    from tl_geometry.views.angles import bos_cosines, sink_cosines
    from tl_geometry.views.cost_views import cost_curves
    from tl_geometry.views.curves import certificate_envelope
    from tl_geometry.views.downstream_views import downstream_accuracies
    from tl_geometry.views.evaluations import evaluation_findings, evaluation_tables
    from tl_geometry.views.faithfulness_views import faithfulness_curves
    from tl_geometry.views.head_cost_views import head_cost_scatter
    from tl_geometry.views.mixing_views import mixing_curves
    from tl_geometry.views.sensitivity_views import sensitivity_map
    from tl_geometry.views.sink_curves import norm_against_sink_rate, optimum_gaps
    from tl_geometry.views.sink_views import sink_intervention_map
    from tl_geometry.views.smoothing_curves import (
        halfspace_profile,
        representation_cost_profile,
        token_similarity_profile,
    )
    from tl_geometry.views.sparsify_views import sparsification_curves
    from tl_geometry.views.switch_curves import off_and_on, off_rates

__all__ = [
    "Table",
    "View",
    "bos_cosines",
    "certificate_envelope",
    "contributions",
    "cost_curves",
    "downstream_accuracies",
    "evaluation_findings",
    "evaluation_tables",
    "faithfulness_curves",
    "halfspace_profile",
    "head_cost_scatter",
    "headline_tables",
    "mixing_curves",
    "norm_against_sink_rate",
    "off_and_on",
    "off_rates",
    "optimum_gaps",
    "regimes",
    "representation_cost_profile",
    "sensitivity_map",
    "separability",
    "separability_findings",
    "sink_cosines",
    "sink_intervention_map",
    "smoothing_findings",
    "sparsification_curves",
    "summary_sentences",
    "suppression_findings",
    "switch_findings",
    "token_similarity_profile",
]

# What needs plotly, and where it is.
_LATER = {
    "bos_cosines": "angles",
    "certificate_envelope": "curves",
    "cost_curves": "cost_views",
    "downstream_accuracies": "downstream_views",
    "evaluation_findings": "evaluations",
    "evaluation_tables": "evaluations",
    "faithfulness_curves": "faithfulness_views",
    "halfspace_profile": "smoothing_curves",
    "head_cost_scatter": "head_cost_views",
    "mixing_curves": "mixing_views",
    "norm_against_sink_rate": "sink_curves",
    "off_and_on": "switch_curves",
    "off_rates": "switch_curves",
    "optimum_gaps": "sink_curves",
    "representation_cost_profile": "smoothing_curves",
    "sensitivity_map": "sensitivity_views",
    "sink_cosines": "angles",
    "sink_intervention_map": "sink_views",
    "sparsification_curves": "sparsify_views",
    "token_similarity_profile": "smoothing_curves",
}


def __getattr__(name: str) -> Any:
    """Import what needs plotly when it is first used."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
