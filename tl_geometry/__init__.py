"""The geometry of attention, for TransformerLens.

>>> import tl_geometry as tlg
>>> probe = tlg.Probe(model)
>>> model.run_with_hooks(tokens, fwd_hooks=probe.hooks())
>>> probe.result()
"""

from tl_geometry import views
from tl_geometry.analysis import (
    Contributions,
    Probe,
    Regimes,
    Separability,
    Sinks,
    analyze,
    load,
    prompt_contributions,
    save,
)
from tl_geometry.hooks import doctor
from tl_geometry.measures import (
    contribution_factors,
    contribution_weights,
    head_regimes,
    importance,
    inversion_bounds,
    separability,
    sink_aware_certificate,
    sink_geometry,
    sink_metric,
    sink_rate,
    source_winners,
    suppression,
    value_weighted_attention,
)
from tl_geometry.views.report import report

__version__ = "0.1.0"

__all__ = [
    "Contributions",
    "Probe",
    "Regimes",
    "Separability",
    "Sinks",
    "analyze",
    "contribution_factors",
    "contribution_weights",
    "doctor",
    "head_regimes",
    "importance",
    "inversion_bounds",
    "load",
    "prompt_contributions",
    "report",
    "save",
    "separability",
    "sink_aware_certificate",
    "sink_geometry",
    "sink_metric",
    "sink_rate",
    "source_winners",
    "suppression",
    "value_weighted_attention",
    "views",
]
