"""What pages say where attention goes to no token: learned null sinks, whose value is 0 (gpt-oss)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tl_geometry.views import averages, results
from tl_geometry.views.results import Values, number

RATE = "null_sink_rate"
NOTICED = 0.01
"""Mean attention to no token above which it is no rounding of half precision."""

_MEANING = "a learned null sink, which is no token and has value 0"


def has_null_sink(ds: xr.Dataset) -> bool:
    """Whether some head gives attention to no token.

    Example:
        >>> has_null_sink(ds)  # doctest: +SKIP
        False
    """
    return results.measured(ds, RATE) and bool((results.values(ds, RATE) > NOTICED).any())


def shown(ds: xr.Dataset, name: str) -> bool:
    """Whether a variable has a place on the page: null sinks only where there are any."""
    return results.measured(ds, name) and (name != RATE or has_null_sink(ds))


def null_sentence(ds: xr.Dataset) -> str:
    """How much attention goes to null sinks; empty where there are none."""
    if not has_null_sink(ds):
        return ""
    rates = results.values(ds, RATE)
    i, j = results.strongest(rates, 1)[0]
    return (
        f"The median head gives {number(float(np.nanmedian(rates)))} of its attention to {_MEANING}, most in "
        f"{results.head_names(ds)[i][j]} ({number(rates[i, j])}): rows of attention sum to less than 1, and "
        "nothing is renormalised."
    )


def switch_note(ds: xr.Dataset) -> str:
    """What rows that are off, and the others, give to null sinks; empty where there are none."""
    axes = ("layer", "head", "fraction")
    names = (f"{RATE}_off", f"{RATE}_on")
    if not has_null_sink(ds) or not all(averages.held(ds, name, *axes) for name in names):
        return ""
    place = averages.nearest_fraction(ds)
    off, on = (averages.estimate(ds, name, *axes).value[..., place] for name in names)
    both = np.isfinite(off) & np.isfinite(on)
    if not both.any():
        return ""
    return (
        f"Besides, rows that are off at f = {averages.fractions(ds)[place]:g} give "
        f"{number(float(off[both].mean()))} of their attention to {_MEANING}, the others "
        f"{number(float(on[both].mean()))} (mean over the heads that have both)."
    )


def matrix_note(attention: Values, names: Sequence[str]) -> str:
    """What no column of some heads' matrices (head query key) shows; empty where rows sum to 1."""
    rows = np.isfinite(attention).any(-1)
    rest = np.where(rows, 1 - np.nansum(attention, axis=-1), np.nan)
    known = rows.any(-1)
    means = np.full(len(names), np.nan)
    means[known] = np.nanmean(rest[known], axis=-1)
    if not (means > NOTICED).any():
        return ""
    parts = ", ".join(
        f"{name} {number(mean)}" for name, mean in zip(names, means, strict=True) if mean == mean
    )
    return f"Rows of attention sum to less than 1: no column shows {_MEANING}. It takes on average: {parts}."
