"""Pure tensor mathematics: one file per question. Nothing here sees a model or changes its inputs."""

from tl_geometry.measures.certificate import Certificate, sink_aware_certificate
from tl_geometry.measures.clusters import SeparabilityScores
from tl_geometry.measures.contributions import (
    ContributionFactors,
    contribution_factors,
    contribution_weights,
    importance,
    suppression,
    value_weighted_attention,
)
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.regimes import HeadRegimes, SourceWinners, head_regimes, source_winners
from tl_geometry.measures.separability import inversion_bounds, separability
from tl_geometry.measures.sinks import SinkGeometry, sink_geometry, sink_metric, sink_rate

__all__ = [
    "AttentionGeometry",
    "Certificate",
    "ContributionFactors",
    "HeadRegimes",
    "SeparabilityScores",
    "SinkGeometry",
    "SourceWinners",
    "contribution_factors",
    "contribution_weights",
    "head_regimes",
    "importance",
    "inversion_bounds",
    "separability",
    "sink_aware_certificate",
    "sink_geometry",
    "sink_metric",
    "sink_rate",
    "source_winners",
    "suppression",
    "value_weighted_attention",
]
