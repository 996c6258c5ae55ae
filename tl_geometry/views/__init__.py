"""Seeing the results: notebook views, plotly figures, tables, sentences, the HTML report.

`regimes`, `separability` and `contributions` display themselves in a notebook and can be saved as
HTML.
The plotly figures are in `tl_geometry.views.figures` and `tl_geometry.views.curves`, the report is
in `tl_geometry.views.report`.
"""

from tl_geometry.views.findings import separability_findings
from tl_geometry.views.notebook import contributions, regimes, separability
from tl_geometry.views.page import View
from tl_geometry.views.sentences import summary_sentences
from tl_geometry.views.summary import Table, headline_tables

__all__ = [
    "Table",
    "View",
    "contributions",
    "headline_tables",
    "regimes",
    "separability",
    "separability_findings",
    "summary_sentences",
]
