"""Seeing the results: notebook views, plotly figures, tables, sentences, the HTML report.

`regimes`, `separability` and `contributions` display themselves in a notebook and can be saved as
HTML. The plotly figures of a result are in `tl_geometry.views.figures` and
`tl_geometry.views.curves`, the report is in `tl_geometry.views.report`.
"""

from typing import TYPE_CHECKING, Any

from tl_geometry.views.findings import separability_findings
from tl_geometry.views.notebook import contributions, regimes, separability
from tl_geometry.views.page import View
from tl_geometry.views.sentences import summary_sentences
from tl_geometry.views.summary import Table, headline_tables

if TYPE_CHECKING:
    from tl_geometry.views.curves import certificate_envelope

__all__ = [
    "Table",
    "View",
    "certificate_envelope",
    "contributions",
    "headline_tables",
    "regimes",
    "separability",
    "separability_findings",
    "summary_sentences",
]


def __getattr__(name: str) -> Any:
    """Import what needs plotly when it is first used."""
    if name == "certificate_envelope":
        from tl_geometry.views.curves import certificate_envelope

        return certificate_envelope
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
