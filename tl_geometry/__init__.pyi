from . import (
    ablations as ablations,
    analysis as analysis,
    data as data,
    evaluation as evaluation,
    hooks as hooks,
    measures as measures,
    models as models,
    views as views,
)
from .ablations import (
    mask_entries as mask_entries,
    mask_tokens as mask_tokens,
    mix_pattern as mix_pattern,
    remove_heads as remove_heads,
    remove_sinks as remove_sinks,
    replace_sink_values as replace_sink_values,
    rescale_sink_values as rescale_sink_values,
    zero_sink_values as zero_sink_values,
)
from .analysis import (
    Contributions as Contributions,
    Probe as Probe,
    Regimes as Regimes,
    Separability as Separability,
    Sinks as Sinks,
    Smoothing as Smoothing,
    Switches as Switches,
    analyze as analyze,
    compare as compare,
    head_costs as head_costs,
    load as load,
    prompt_contributions as prompt_contributions,
    save as save,
    token_costs as token_costs,
)
from .evaluation import (
    downstream as downstream,
    faithfulness as faithfulness,
    head_sensitivity as head_sensitivity,
    pattern_mixing as pattern_mixing,
    sink_interventions as sink_interventions,
    sparsify as sparsify,
)
from .hooks import doctor as doctor
from .measures import (
    contribution_factors as contribution_factors,
    contribution_weights as contribution_weights,
    cost_scaling as cost_scaling,
    dormant_heads as dormant_heads,
    halfspace_margins as halfspace_margins,
    head_regimes as head_regimes,
    importance as importance,
    inversion_bounds as inversion_bounds,
    mixing_ratio as mixing_ratio,
    one_step_similarity as one_step_similarity,
    representation_cost as representation_cost,
    semantic_alignment as semantic_alignment,
    separability as separability,
    sink_aware_certificate as sink_aware_certificate,
    sink_geometry as sink_geometry,
    sink_logit_margin as sink_logit_margin,
    sink_metric as sink_metric,
    sink_norm_curve as sink_norm_curve,
    sink_rate as sink_rate,
    source_winners as source_winners,
    suppression as suppression,
    switch_rates as switch_rates,
    token_similarity as token_similarity,
    value_weighted_attention as value_weighted_attention,
)
from .views.report import report as report

__version__: str
