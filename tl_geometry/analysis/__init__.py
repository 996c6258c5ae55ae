"""Measures over a corpus: accumulators, the probe that feeds them, and results with names and provenance."""

from tl_geometry.analysis.accumulator import Accumulator, Variable
from tl_geometry.analysis.analyze import analyze
from tl_geometry.analysis.compare import Comparison, compare
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.costs import Costs
from tl_geometry.analysis.head_costs import head_costs
from tl_geometry.analysis.probe import Probe
from tl_geometry.analysis.prompt import prompt_contributions
from tl_geometry.analysis.regimes import Regimes
from tl_geometry.analysis.separability import Separability
from tl_geometry.analysis.sinks import Sinks
from tl_geometry.analysis.smoothing import Smoothing
from tl_geometry.analysis.store import load, save
from tl_geometry.analysis.switches import Switches
from tl_geometry.analysis.token_costs import token_costs

__all__ = [
    "Accumulator",
    "Comparison",
    "Contributions",
    "Costs",
    "Probe",
    "Regimes",
    "Separability",
    "Sinks",
    "Smoothing",
    "Switches",
    "Variable",
    "analyze",
    "compare",
    "head_costs",
    "load",
    "prompt_contributions",
    "save",
    "token_costs",
]
