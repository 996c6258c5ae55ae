"""What Mudarisov et al. (arXiv 2602.01893) found, and whether a run shows it: plain verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from tl_geometry.views import averages, results
from tl_geometry.views.averages import Quantity
from tl_geometry.views.results import Values, number, significant
from tl_geometry.views.verdicts import FAILS, HOLDS, SHOWN, majority, statuses, verdict

PAPER_FACTOR = (3.0, 10.0)
PAPER_RETRIEVERS = (5.8, 17.2)


@dataclass(frozen=True)
class Finding:
    """One claim of the paper against the numbers of a run.

    Args:
        verdict: `HOLDS`, `PARTLY`, `FAILS` or `OPEN` (the intervals do not decide).
        claim: The claim, one sentence.
        evidence: What the run measured.
    """

    verdict: str
    claim: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.claim} {self.evidence}"


def separability_findings(ds: xr.Dataset) -> list[Finding]:
    """The paper's claims that the run can speak to, each with its verdict.

    Example:
        >>> for finding in separability_findings(ds):  # doctest: +SKIP
        ...     print(finding)

    Intervals in brackets reach two standard errors over documents to each side, as wide as they
    can be (`tl_geometry.views.averages`). Claims about what was not measured are left out.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` has no layers or no heads.
    """
    results.check_result(ds)
    parts = (_above_random, _without_sink, _sink_norm, _sink_cosine, _retrievers)
    return [finding for part in parts if (finding := part(ds))]


def _above_random(ds: xr.Dataset) -> Finding | None:
    claim = "The most attended tokens are more separable than random ones, at every N."
    return _at_every_n(ds, "f_score", "f_score_random", None, claim, "F is higher than the control")


def _without_sink(ds: xr.Dataset) -> Finding | None:
    claim = "In mixer heads F is higher when the sink is left out."
    if not results.measured(ds, "regime"):
        return None
    mixers = results.regimes(ds) == "mixer"
    if not mixers.any():
        return None
    words = f"Over {counted(int(mixers.sum()))}, F without the sink is higher"
    found = _at_every_n(ds, "f_score_no_sink", "f_score", mixers, claim, words)
    if found is None:
        return None
    place = averages.nearest_size(ds)
    without, usual = (
        float(averages.quantity(ds, name).mean(mixers).value[place])
        for name in ("f_score_no_sink", "f_score")
    )
    if not (np.isfinite(without) and usual > 0):
        return found
    factor = (
        f" At N = {averages.sizes(ds)[place]} it is {number(without / usual)} times as large (the "
        "paper: often about twice)."
    )
    return replace(found, evidence=found.evidence + factor)


def _at_every_n(
    ds: xr.Dataset,
    upper: str,
    lower: str,
    heads: Values | None,
    claim: str,
    words: str,
) -> Finding | None:
    """Whether one variable lies above another at each N, by the intervals of the difference."""
    if not averages.separability_measured(ds, upper, lower):
        return None
    both = (averages.quantity(ds, upper), averages.quantity(ds, lower))
    mean = (both[0] - both[1]).mean(heads)
    places = [k for k in averages.compared(ds) if np.isfinite(mean.value[k])]
    if not places:
        return None
    sizes = averages.sizes(ds)
    by_size = ", ".join(f"{mean.text(k)} at N = {sizes[k]}" for k in places)
    evidence = f"{words} by {by_size}."
    parts = positive(mean[places])
    if SHOWN in parts:
        short = [str(sizes[k]) for k, part in zip(places, parts, strict=True) if part != SHOWN]
        evidence += f" It is not shown at N = {', '.join(short)}." if short else ""
    return Finding(verdict(parts), claim, evidence + no_interval(mean[places]))


def positive(differences: Quantity) -> list[str]:
    """Whether each of several differences is positive, by its interval."""
    return statuses(differences.low, differences.high)


def most_below(found: Quantity, limit: int | float) -> str:
    """Whether "below a limit in most heads" is shown, counting the heads whose intervals decide it."""
    return majority(found.high < limit, found.low > limit)


def _sink_norm(ds: xr.Dataset) -> Finding | None:
    found = per_head(ds, "sink_norm_ratio")
    if found is None:
        return None
    median = float(np.median(found.value))
    low, high = PAPER_FACTOR
    within = "within" if low * median <= 1 <= high * median else "outside"
    evidence = lengths(found, f", {within} the paper's range of {low:g} to {high:g} times")
    claim = "In most heads the sink's value vector is shorter than the other tokens'."
    return Finding(verdict([most_below(found, 1)]), claim, evidence)


def lengths(found: Quantity, more: str = "") -> str:
    """How long the sink's vector is, from its length over the others' median in each head."""
    median = float(np.median(found.value))
    factor = f"{significant(1 / median)} times shorter" if 0 < median < 1 else "not shorter"
    shorter, longer = int((found.high < 1).sum()), int((found.low > 1).sum())
    return (
        f"In the median head it has {significant(median)} of the others' median length "
        f"({factor}{more}). It is shorter by more than two standard errors in {shorter} of "
        f"{counted(found.value.size)}, longer in {longer}.{no_interval(found)}"
    )


def _sink_cosine(ds: xr.Dataset) -> Finding | None:
    claim = "The sink's value vector points away from the other tokens' (negative mean cosine)."
    return opposed(ds, "sink_cosine", claim)


def opposed(ds: xr.Dataset, name: str, claim: str) -> Finding | None:
    """Whether a cosine is negative in the mean over heads."""
    found = per_head(ds, name)
    if found is None:
        return None
    mean = Quantity(found.value.mean(keepdims=True), found.error.mean(keepdims=True))
    against, along = int((found.high < 0).sum()), int((found.low > 0).sum())
    evidence = (
        f"The mean over heads is {mean.text(0)}; by more than two standard errors it is negative "
        f"in {against} of {counted(found.value.size)}, positive in {along}."
    )
    negated = Quantity(-mean.value, mean.error)
    return Finding(verdict(positive(negated)), claim, evidence + no_interval(mean))


def _retrievers(ds: xr.Dataset) -> Finding | None:
    if not results.measured(ds, "regime"):
        return None
    labels = results.regimes(ds)
    counts = {regime: int((labels == regime).sum()) for regime in results.REGIMES}
    known = sum(counts.values())
    if not known:
        return None
    share = 100 * counts["retriever"] / known
    rarest = "the rarest" if counts["retriever"] == min(counts.values()) else "not the rarest"
    low, high = PAPER_RETRIEVERS
    within = "within" if low <= share <= high else "outside"
    evidence = (
        f"{counts['retriever']} of {counted(known)} ({share:.1f} %) are retrievers, {rarest} of the "
        f"three regimes; {within} the paper's range of {low:g} to {high:g} %."
    )
    judged = HOLDS if 2 * counts["retriever"] < known else FAILS
    return Finding(judged, "Retrievers are a minority of the heads.", evidence)


def per_head(ds: xr.Dataset, name: str) -> Quantity | None:
    """The finite values of a variable per head, with their standard errors; None where there are none."""
    if not results.measured(ds, name):
        return None
    found = averages.estimate(ds, name, "layer", "head")
    known = np.isfinite(found.value)
    return found[known] if known.any() else None


def no_interval(found: Quantity) -> str:
    """A remark for evidence without any standard error; empty where there is one."""
    if np.isfinite(found.error).any():
        return ""
    return " Without standard errors (two documents at least) no interval can be given."


def counted(count: int, noun: str = "head") -> str:
    """A number of things: `1 head`, `3 heads`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
