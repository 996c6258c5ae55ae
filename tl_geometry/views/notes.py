"""Remarks on separability that are no claims of the paper: ties in the control, tightness of bounds."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tl_geometry.views import averages
from tl_geometry.views.results import number

_TIES = 0.99


def ties_note(ds: xr.Dataset) -> str:
    """A remark on the control at small N when precision lowers it; empty when it does not."""
    if not averages.separability_measured(ds, "f_score_random") or 1 not in averages.sizes(ds):
        return ""
    place = averages.sizes(ds).index(1)
    single = float(averages.quantity(ds, "f_score_random").mean().value[place])
    if not single < _TIES:
        return ""
    return (
        f"At N = 1 the control has F = {number(single)}, not 1: contributions too small to be told "
        "apart at this numerical precision count as ties. This lowers the control at other small "
        "N too."
    )


def tightness(ds: xr.Dataset) -> str:
    """How far the lower bounds are from the measured F; empty when the run has no certificate.

    Example:
        >>> tightness(ds)  # doctest: +SKIP
        'How tight the bounds are: at N = 8, F is 0.41; the inversions guarantee 0.22, ...'

    Not a claim of the paper, whose bounds are for selections that are further idealised.
    """
    names = ("f_score", "certificate", "inversion_bound")
    if not averages.separability_measured(ds, *names[:2]):
        return ""
    held = [name for name in names if averages.separability_measured(ds, name)]
    means = {name: averages.quantity(ds, name).mean().value for name in held}
    places = [k for k in averages.compared(ds) if np.isfinite(means["certificate"][k])]
    if not places:
        return ""
    sizes = averages.sizes(ds)
    k = min(places, key=lambda k: abs(np.log2(sizes[k] / averages.PREFERRED_SIZE)))
    text = f"How tight the bounds are: at N = {sizes[k]}, F is {number(means['f_score'][k])}; "
    if "inversion_bound" in means:
        text += f"the inversions guarantee {number(means['inversion_bound'][k])}, "
    text += f"the certificate, from lengths and angles alone, {_small(means['certificate'][k])}. "
    tight = [str(sizes[k]) for k in places if 2 * means["certificate"][k] >= means["f_score"][k]]
    where = "every N" if len(tight) == len(places) else f"N = {', '.join(tight)}"
    text += f"It is at least half of F at {where if tight else 'no N'}. "
    best = {name: sizes[max(places, key=lambda k: means[name][k])] for name in names[:2]}
    text += f"F is largest at N = {best['f_score']}"
    if any(means["certificate"][k] > 0 for k in places):
        text += f", the certificate at N = {best['certificate']}"
    return f"{text} (N = 1 left out)."


def _small(x: float) -> str:
    return "less than 0.01" if 0 < x < 0.01 else number(x)
