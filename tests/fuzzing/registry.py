"""Where random inputs meet each public name."""

from __future__ import annotations

from fuzzing.measures import MEASURES

OTHERS = (
    "token_similarity", "halfspace_margins", "sink_logit_margin", "representation_cost",
    "cost_scaling", "one_step_similarity", "inversion_bounds",
)  # fmt: skip
ABLATIONS = (
    "mask_entries", "mask_tokens", "mix_pattern", "remove_heads", "remove_sinks",
    "replace_sink_values", "rescale_sink_values", "zero_sink_values",
)  # fmt: skip
ACCUMULATORS = (
    "Contributions", "Costs", "Regimes", "Separability", "Sinks", "Smoothing", "Switches",
)  # fmt: skip
RUNS = (
    "Probe", "analyze", "compare", "doctor", "head_costs", "load", "prompt_contributions", "report",
    "save", "token_costs",
)  # fmt: skip
EVALUATIONS = (
    "faithfulness", "head_sensitivity", "pattern_mixing", "sink_interventions", "sparsify",
)  # fmt: skip

REGISTRY: dict[str, str] = {
    **dict.fromkeys(MEASURES, "test_measures.py"),
    **dict.fromkeys(OTHERS, "test_other_measures.py"),
    **dict.fromkeys(ABLATIONS, "test_ablations.py"),
    **dict.fromkeys((*ACCUMULATORS, *RUNS, *EVALUATIONS, "downstream"), "test_models.py"),
}
