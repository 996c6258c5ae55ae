"""Pure tensor mathematics: one file per question. Nothing here sees a model or changes its inputs."""

from tl_geometry.measures.certificate import Certificate, sink_aware_certificate
from tl_geometry.measures.clusters import SeparabilityScores
from tl_geometry.measures.cone import SemanticAlignment, semantic_alignment
from tl_geometry.measures.contributions import (
    ContributionFactors,
    contribution_factors,
    contribution_weights,
    importance,
    suppression,
    value_weighted_attention,
)
from tl_geometry.measures.cost import RepresentationCost, representation_cost
from tl_geometry.measures.cost_scaling import CostScaling, cost_scaling
from tl_geometry.measures.dormant import DormantHeads, dormant_heads
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.halfspace import HalfspaceMargins, halfspace_margins
from tl_geometry.measures.mixing import mixing_ratio
from tl_geometry.measures.one_step import one_step_similarity
from tl_geometry.measures.regimes import HeadRegimes, SourceWinners, head_regimes, source_winners
from tl_geometry.measures.separability import inversion_bounds, separability
from tl_geometry.measures.similarity import relative_residual, token_similarity
from tl_geometry.measures.sink_curve import (
    SinkCurveSummary,
    SinkNormCurve,
    sink_curve_summary,
    sink_norm_curve,
)
from tl_geometry.measures.sink_margin import sink_logit_margin
from tl_geometry.measures.sinks import (
    SinkGeometry,
    null_sink_rate,
    sink_geometry,
    sink_metric,
    sink_rate,
)
from tl_geometry.measures.switches import SwitchRates, switch_rates

__all__ = [
    "AttentionGeometry",
    "Certificate",
    "ContributionFactors",
    "CostScaling",
    "DormantHeads",
    "HalfspaceMargins",
    "HeadRegimes",
    "RepresentationCost",
    "SemanticAlignment",
    "SeparabilityScores",
    "SinkCurveSummary",
    "SinkGeometry",
    "SinkNormCurve",
    "SourceWinners",
    "SwitchRates",
    "contribution_factors",
    "contribution_weights",
    "cost_scaling",
    "dormant_heads",
    "halfspace_margins",
    "head_regimes",
    "importance",
    "inversion_bounds",
    "mixing_ratio",
    "null_sink_rate",
    "one_step_similarity",
    "relative_residual",
    "representation_cost",
    "semantic_alignment",
    "separability",
    "sink_aware_certificate",
    "sink_curve_summary",
    "sink_geometry",
    "sink_logit_margin",
    "sink_metric",
    "sink_norm_curve",
    "sink_rate",
    "source_winners",
    "suppression",
    "switch_rates",
    "token_similarity",
    "value_weighted_attention",
]
