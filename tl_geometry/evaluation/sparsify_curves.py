"""Curves of the loss while heads are removed, and the areas under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.evaluation.variables import with_interval

__all__ = ["removal_curves", "removal_text"]

_TS = "Mudarisov et al., arXiv 2602.01893"


def removal_curves(
    boot: Bootstrap,
    runs: Mapping[tuple[str, int], Float64[NDArray[np.float64], "retention document"]],
    full: Float64[NDArray[np.float64], " document"],
    names: Sequence[str],
    grid: Float64[NDArray[np.float64], " retention"],
) -> dict[str, Any]:
    """NLL, perplexity and areas of every order, averaged over the repeats of the random one."""
    repeated = [np.array([run for (n, _), run in runs.items() if n == name]) for name in names]
    nll = np.array([of_order.mean(0) for of_order in repeated])
    weights = _trapezoid(grid)
    axes = ("order", "retention")
    variables = {
        **with_interval("nll", axes, boot.estimate(nll), long_name="NLL", source=_TS),
        **with_interval(
            "delta_nll",
            axes,
            boot.estimate(nll, baseline=full),
            long_name="NLL minus that of the whole model",
            source=_TS,
        ),
        **with_interval(
            "perplexity",
            axes,
            boot.estimate(nll, perplexity=True),
            long_name="exp(NLL)",
            units="1",
            source=_TS,
        ),
        # The area is a weighted sum over the curve, so it can be taken document by document.
        **with_interval(
            "auc",
            ("order",),
            boot.estimate(np.einsum("ord,r->od", nll - full, weights)),
            long_name="area under delta NLL over the share of heads removed",
            source=_TS,
        ),
    }
    if "random" in names:
        each = boot.value(repeated[names.index("random")])
        spread = np.full((len(names), len(grid)), np.nan)
        area_spread = np.full(len(names), np.nan)
        if len(each) > 1:
            spread[names.index("random")] = each.std(0, ddof=1)
            area_spread[names.index("random")] = (each @ weights).std(ddof=1)
        text = "standard deviation over the random orders of"
        variables |= {
            "random_nll": (("repeat", "retention"), each, removal_text("NLL of a random order")),
            "nll_spread": (axes, spread, removal_text(f"{text} NLL")),
            "auc_spread": (("order",), area_spread, removal_text(f"{text} the area")),
        }
    return variables


def _trapezoid(
    grid: Float64[NDArray[np.float64], " retention"],
) -> Float64[NDArray[np.float64], " retention"]:
    """Weights of the trapezoid rule for a curve that is zero at zero."""
    points = np.concatenate([[0.0], grid])
    widths = np.diff(points)
    return np.asarray((widths + np.append(widths[1:], 0.0)) / 2)


def removal_text(long_name: str, units: str = "nat/token") -> dict[str, str]:
    """Attributes of a variable that is no curve."""
    return {"long_name": long_name, "units": units, "source": _TS}
