"""How sinks work in plain English; each sentence is empty where the run does not say."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tl_geometry.views import averages, results
from tl_geometry.views.findings import counted
from tl_geometry.views.results import number


def optimum(ds: xr.Dataset) -> str:
    """Where the optimum lies, and how many rows stay below it."""
    if not results.measured(ds, "sink_optimum", "sink_below_optimum"):
        return ""
    best, below = (
        float(averages.estimate(ds, name, "layer", "head").mean().value)
        for name in ("sink_optimum", "sink_below_optimum")
    )
    if not np.isfinite(best):
        return ""
    return (
        f"Outputs would be shortest with {number(best)} of the attention on the sink (mean over "
        f"heads of the optimum a*); {100 * below:.0f} % of the rows give it less."
    )


def off(ds: xr.Dataset) -> str:
    """How often heads are off, and what they attend to meanwhile."""
    axes = ("layer", "head", "fraction")
    if not averages.held(ds, "off_rate", *axes):
        return ""
    place = averages.nearest_fraction(ds)
    rates = averages.estimate(ds, "off_rate", *axes).value[..., place]
    found = rates[np.isfinite(rates)]
    if not found.size:
        return ""
    often = int((found > 0.5).sum())
    text = (
        f"The median head is off (output below {averages.fractions(ds)[place]:g} of a typical value) in "
        f"{100 * float(np.median(found)):.0f} % of its rows; {counted(often)} of {found.size} "
        f"{'is' if often == 1 else 'are'} off in more than half."
    )
    names = ("sink_rate_off", "sink_rate_on")
    if not all(averages.held(ds, name, *axes) for name in names):
        return text
    short, others = (averages.estimate(ds, name, *axes).value[..., place] for name in names)
    both = np.isfinite(short) & np.isfinite(others)
    if not both.any():
        return text
    return text + (
        f" Rows that are off give the sink {number(float(short[both].mean()))} of their attention, "
        f"the others {number(float(others[both].mean()))} (mean over {counted(int(both.sum()))})."
    )


def likeness(ds: xr.Dataset) -> str:
    """How alike the tokens become."""
    if not all(averages.held(ds, name, "layer") for name in ("similarity_in", "similarity_out")):
        return ""
    entering, leaving = (
        averages.estimate(ds, name, "layer").value for name in ("similarity_in", "similarity_out")
    )
    known = np.flatnonzero(np.isfinite(entering) & np.isfinite(leaving))
    if not known.size:
        return ""
    labels = results.layer_labels(ds)
    first, last = int(known[0]), int(known[-1])
    highest = int(np.nanargmax(np.where(np.isfinite(entering), leaving, np.nan)))
    return (
        f"The mean cosine between tokens goes from {number(float(entering[first]))} at the input "
        f"of layer {labels[first]} to {number(float(leaving[last]))} at the output of layer "
        f"{labels[last]}; it is highest behind layer {labels[highest]} "
        f"({number(float(leaving[highest]))})."
    )


def halfspaces(ds: xr.Dataset) -> str:
    """Whether the tokens can all be made to attend to the first one."""
    if not averages.held(ds, "halfspace_feasible", "layer"):
        return ""
    shares = averages.estimate(ds, "halfspace_feasible", "layer").value
    known = shares[np.isfinite(shares)]
    if not known.size:
        return ""
    return (
        f"The tokens could all be made to attend to the first one (half-space conditions) in every "
        f"document at {int((known == 1).sum())} of {counted(known.size, 'layer')}, in "
        f"{100 * float(known.mean()):.0f} % of documents and layers."
    )


SINK_SENTENCES = (optimum, off, likeness, halfspaces)
