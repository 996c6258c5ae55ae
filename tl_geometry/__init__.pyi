from . import (
    analysis as analysis,
)
from . import (
    data as data,
)
from . import (
    hooks as hooks,
)
from . import (
    measures as measures,
)
from . import (
    models as models,
)
from . import (
    views as views,
)
from .analysis import (
    Contributions as Contributions,
)
from .analysis import (
    Probe as Probe,
)
from .analysis import (
    Regimes as Regimes,
)
from .analysis import (
    Separability as Separability,
)
from .analysis import (
    Sinks as Sinks,
)
from .analysis import (
    analyze as analyze,
)
from .analysis import (
    load as load,
)
from .analysis import (
    prompt_contributions as prompt_contributions,
)
from .analysis import (
    save as save,
)
from .hooks import doctor as doctor
from .measures import (
    contribution_factors as contribution_factors,
)
from .measures import (
    contribution_weights as contribution_weights,
)
from .measures import (
    head_regimes as head_regimes,
)
from .measures import (
    importance as importance,
)
from .measures import (
    inversion_bounds as inversion_bounds,
)
from .measures import (
    separability as separability,
)
from .measures import (
    sink_aware_certificate as sink_aware_certificate,
)
from .measures import (
    sink_geometry as sink_geometry,
)
from .measures import (
    sink_metric as sink_metric,
)
from .measures import (
    sink_rate as sink_rate,
)
from .measures import (
    source_winners as source_winners,
)
from .measures import (
    suppression as suppression,
)
from .measures import (
    value_weighted_attention as value_weighted_attention,
)
from .views.report import report as report

__version__: str
