from . import (
    analysis as analysis,
    data as data,
    hooks as hooks,
    measures as measures,
    models as models,
    views as views,
)
from .analysis import (
    Contributions as Contributions,
    Probe as Probe,
    Regimes as Regimes,
    Separability as Separability,
    Sinks as Sinks,
    analyze as analyze,
    compare as compare,
    load as load,
    prompt_contributions as prompt_contributions,
    save as save,
)
from .hooks import doctor as doctor
from .measures import (
    contribution_factors as contribution_factors,
    contribution_weights as contribution_weights,
    head_regimes as head_regimes,
    importance as importance,
    inversion_bounds as inversion_bounds,
    separability as separability,
    sink_aware_certificate as sink_aware_certificate,
    sink_geometry as sink_geometry,
    sink_metric as sink_metric,
    sink_rate as sink_rate,
    source_winners as source_winners,
    suppression as suppression,
    value_weighted_attention as value_weighted_attention,
)
from .views.report import report as report

__version__: str
