"""What Cunningham & Muca Cirone (arXiv 2606.07604) found about sinks, and whether a run shows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from tl_geometry.views import parabolas, results
from tl_geometry.views.averages import Quantity, estimate, settled
from tl_geometry.views.estimates import Estimates
from tl_geometry.views.findings import (
    Finding,
    counted,
    lengths,
    most_below,
    no_interval,
    opposed,
    per_head,
    positive,
)
from tl_geometry.views.results import number, significant
from tl_geometry.views.verdicts import REVERSED, SHOWN, UNSETTLED, majority, verdict

SEVERAL = 2.0
"""A vector is several times shorter than another if it is shorter by this factor at least."""
HALF = 0.5
"""The share of convex parabolas among those fitted to noise."""

_FACTORS = {"attention": "attention", "relative_norm": "relative length", "cosine": "alignment"}


def suppression_findings(ds: xr.Dataset) -> list[Finding]:
    """The paper's claims about sinks that the run can speak to, each with its verdict.

    Example:
        >>> for finding in suppression_findings(ds):  # doctest: +SKIP
        ...     print(finding)

    Values are projected ones, v W_O. Intervals in brackets reach two standard errors over documents
    to each side, as wide as they can be (`tl_geometry.views.averages`). Claims about what was not
    measured are left out.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` has no layers or no heads.
    """
    results.check_result(ds)
    parts = (_short, _opposed, _shortens, _convex, _sink_follows, _tail_follows, _cone)
    return [finding for part in parts if (finding := part(ds))]


def interval(found: Quantity) -> Estimates:
    """A quantity with the ends of its interval."""
    return Estimates(found.value, found.low, found.high)


def _short(ds: xr.Dataset) -> Finding | None:
    found = per_head(ds, "sink_norm_ratio_model")
    if found is None:
        return None
    judged = verdict([most_below(found, 1), most_below(found, 1 / SEVERAL)])
    claim = (
        "In most heads the sink's projected value is shorter than the other tokens', and "
        f"several times so ({SEVERAL:g} times at least)."
    )
    count = int((found.high < 1 / SEVERAL).sum())
    more = f" By the same measure it is {SEVERAL:g} times shorter in {count}."
    return Finding(judged, claim, lengths(found) + more)


def _opposed(ds: xr.Dataset) -> Finding | None:
    name = "sink_cosine_model"
    claim = (
        "In most heads the sink's projected value is anti-aligned with the other tokens' "
        "(negative mean cosine)."
    )
    finding, found = opposed(ds, name, claim), per_head(ds, name)
    if finding is None or found is None:
        return None
    return replace(finding, verdict=verdict([most_below(found, 0)]))


def _shortens(ds: xr.Dataset) -> Finding | None:
    names = ("output_norm_with_sink", "output_norm_no_sink")
    if not results.measured(ds, *names):
        return None
    usual, without = (settled(estimate(ds, name, "layer", "head")) for name in names)
    change = usual - without
    known = np.isfinite(change.value) & (without.value > 0)
    if not known.any():
        return None
    change = change[known]
    shorter, longer = int((change.high < 0).sum()), int((change.low > 0).sum())
    ratio = significant(float(np.median(usual.value[known] / without.value[known])))
    evidence = (
        f"In the median head the output is {ratio} times as long as with the sink's value set to "
        f"zero. It is shorter by more than two standard errors in {shorter} of "
        f"{counted(change.value.size)}, longer in {longer}."
    )
    if results.measured(ds, "sink_negative_share"):
        share = interval(settled(estimate(ds, "sink_negative_share", "layer", "head")).mean())
        evidence += f" The sink's contribution weight is negative in {share.text()} of the rows."
    claim = "In most heads the sink's value shortens the output (destructive interference)."
    return Finding(verdict([most_below(change, 0)]), claim, evidence + no_interval(change))


def _convex(ds: xr.Dataset) -> Finding | None:
    if not results.measured(ds, "sink_fit_convex"):
        return None
    share = settled(estimate(ds, "sink_fit_convex", "layer", "head"))
    mean, share = share.mean(), share[np.isfinite(share.value)]
    if not share.value.size:
        return None
    more, fewer = share.low > HALF, share.high < HALF
    lowest, words = _lowest(ds)
    evidence = (
        "By more than two standard errors, a parabola fitted to |o|² over the sink rates of a document's "
        f"rows is convex in more than half of the documents (noise would do in half) in {int(more.sum())} of "
        f"{counted(share.value.size)}, in less than half in {int(fewer.sum())}; the mean over heads is "
        f"{interval(mean).text()} of the documents. {words}{_where_rows_lie(ds)}"
    )
    claim = "Output length is convex in the sink rate in most heads, and lowest at an intermediate rate."
    judged = verdict([majority(more, fewer), lowest])
    return Finding(judged, claim, evidence + no_interval(share))


def _lowest(ds: xr.Dataset) -> tuple[str, str]:
    """Whether the curve through the mean lengths is lowest between the lowest and the highest sink rate."""
    everything = np.ones((ds.sizes["layer"], ds.sizes["head"]), dtype=bool)
    curve = parabolas.fitted(ds, everything) if parabolas.measured(ds) else None
    if curve is None:
        return UNSETTLED, "No curve over sink rates was measured in three bins of rates."
    first, last = (interval(curve.slopes).text(k) for k in (0, 1))
    where = (
        f"lowest at a = {number(curve.lowest)}" if np.isfinite(curve.lowest) else "lowest at an end"
    )
    single = parabolas.head_parabolas(ds)
    inside = sum(bool(np.isfinite(parabola.lowest)) for parabola in single)
    marks = [parabola.inside for parabola in single]
    median = float(np.median([parabola.curvature for parabola in single])) if single else np.nan
    return curve.inside, (
        "The parabola through the squared mean |o| of all heads in bins of the sink rate, from "
        f"{number(curve.low)} to {number(curve.high)}, has the curvature {number(curve.curvature)} (in squares of "
        f"a head's mean length; {number(median)} in the median head) and is {where}: its slope is {first} in "
        f"the first bin, where it should be negative, and {last} in the last, where it should be positive "
        f"({curve.inside}). That of a single head is lowest strictly inside in {inside} of {counted(len(single))}, in "
        f"{marks.count(SHOWN)} of them by more than two standard errors of both slopes, at an end by as much in "
        f"{marks.count(REVERSED)}."
    )


def _where_rows_lie(ds: xr.Dataset) -> str:
    names = ("sink_optimum_inside", "sink_below_optimum", "sink_optimum_gap")
    if not results.measured(ds, *names):
        return ""
    inside, below, gap = (
        interval(settled(estimate(ds, name, "layer", "head")).mean()).text() for name in names
    )
    return (
        " The curve of a single row, convex by construction, is lowest strictly inside 0 < a* < 1 in "
        f"{inside} of the rows. The sink gets less attention than a* in {below} of the rows; a − a* is "
        f"{gap} in the mean."
    )


def _sink_follows(ds: xr.Dataset) -> Finding | None:
    claim = "The sink's contribution follows the geometry of its value more than its attention."
    pairs = (("relative_norm", "attention"), ("cosine", "attention"))
    return _follows(ds, "sink", pairs, claim)


def _tail_follows(ds: xr.Dataset) -> Finding | None:
    claim = "The contributions of all other tokens follow attention and alignment more than length."
    pairs = (("attention", "relative_norm"), ("cosine", "relative_norm"))
    return _follows(ds, "tail", pairs, claim)


def _follows(
    ds: xr.Dataset, token: str, pairs: tuple[tuple[str, str], ...], claim: str
) -> Finding | None:
    """Whether rank correlations with some factors are larger in size than with others."""
    names = {factor: f"{token}_spearman_{factor}" for factor in _FACTORS}
    if not results.measured(ds, *names.values()):
        return None
    found = {factor: settled(estimate(ds, name, "layer", "head")) for factor, name in names.items()}
    known = np.all([np.isfinite(each.value) for each in found.values()], axis=0)
    if not known.any():
        return None
    # | |x| - |y| | <= |x - y|: the size errs no more than the correlation itself.
    sizes = {f: Quantity(np.abs(each.value[known]), each.error[known]) for f, each in found.items()}
    differences = [(sizes[upper] - sizes[lower]).mean() for upper, lower in pairs]
    words = ", ".join(
        f"{interval(each.mean()).text()} with {_FACTORS[factor]}" for factor, each in sizes.items()
    )
    steps = ", ".join(
        f"{_FACTORS[upper]} exceeds {_FACTORS[lower]} by {interval(difference).text()}"
        for (upper, lower), difference in zip(pairs, differences, strict=True)
    )
    evidence = (
        f"The rank correlation of contribution and factor has a size of {words}, mean over "
        f"{counted(int(known.sum()))}: {steps}."
    )
    both = Quantity(
        np.array([each.value for each in differences]),
        np.array([each.error for each in differences]),
    )
    return Finding(verdict(positive(both)), claim, evidence + no_interval(both))


def _cone(ds: xr.Dataset) -> Finding | None:
    names = ("cone_alignment", "cone_alignment_no_sink")
    if not results.measured(ds, "low_norm", *names):
        return None
    usual, without = (settled(estimate(ds, name, "layer", "head")) for name in names)
    low = results.values(ds, "low_norm")
    known = np.isfinite((without - usual).value)
    few, others = known & (low == 1), known & (low == 0)
    if not few.any():
        return None
    change = interval((without - usual).mean(few))
    judged = verdict([change.shows()])
    evidence = (
        f"The mean cosine of their outputs with the mean direction of the other values is "
        f"{interval(usual.mean(few)).text()}, and {interval(without.mean(few)).text()} with the "
        f"sink's value set to zero, all else as it is: higher by {change.text()}, mean over "
        f"{counted(int(few.sum()))}."
    )
    if others.any():
        rest = (interval(each.mean(others)).text() for each in (usual, without))
        evidence += " In the other heads it goes from {} to {}.".format(*rest)
    claim = (
        "Without the sink's value, the outputs of heads of low norm turn into the semantic cone."
    )
    return Finding(judged, claim, evidence + no_interval((without - usual)[few]))
