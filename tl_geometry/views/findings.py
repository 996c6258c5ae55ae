"""What Mudarisov et al. (arXiv 2602.01893) found, and whether a run shows it: plain verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from tl_geometry.views import averages, results
from tl_geometry.views.averages import Quantity
from tl_geometry.views.results import number, significant

HOLDS, PARTLY = "Holds", "Holds in part"
FAILS, OPEN = "Does not hold here", "Is not settled here"
PAPER_FACTOR = (3.0, 10.0)
PAPER_RETRIEVERS = (5.8, 17.2)
_TIES = 0.99


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
    words = f"Over {_heads(int(mixers.sum()))}, F without the sink is higher"
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
    heads: results.Values | None,
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
    parts = ", ".join(f"{mean.text(k)} at N = {sizes[k]}" for k in places)
    evidence = f"{words} by {parts}."
    verdict = verdict_over(mean[places])
    if verdict == PARTLY:
        short = [str(sizes[k]) for k in places if not mean.low[k] > 0]
        evidence += f" It is not shown at N = {', '.join(short)}."
    return Finding(verdict, claim, evidence + _no_interval(mean[places]))


def verdict_over(difference: Quantity) -> str:
    """The verdict on "positive everywhere", from the intervals of several differences.

    `HOLDS` when all intervals lie above 0, `PARTLY` when some do, `FAILS` when none does and one
    at least does not reach above 0, else `OPEN`.
    """
    above = difference.low > 0
    if above.any():
        return HOLDS if above.all() else PARTLY
    return FAILS if (difference.high <= 0).any() else OPEN


def _sink_norm(ds: xr.Dataset) -> Finding | None:
    found = _grid(ds, "sink_norm_ratio")
    if found is None:
        return None
    count = found.value.size
    shorter, longer = int((found.high < 1).sum()), int((found.low > 1).sum())
    median = float(np.median(found.value))
    verdict = HOLDS if 2 * shorter > count else FAILS if 2 * longer >= count else OPEN
    factor = f"{significant(1 / median)} times shorter" if 0 < median < 1 else "not shorter"
    low, high = PAPER_FACTOR
    within = "within" if low * median <= 1 <= high * median else "outside"
    evidence = (
        f"In the median head it has {significant(median)} of the others' median length "
        f"({factor}, {within} the paper's range of {low:g} to {high:g} times). It is shorter by "
        f"more than two standard errors in {shorter} of {_heads(count)}, longer in {longer}."
    )
    claim = "In most heads the sink's value vector is shorter than the other tokens'."
    return Finding(verdict, claim, evidence + _no_interval(found))


def _sink_cosine(ds: xr.Dataset) -> Finding | None:
    found = _grid(ds, "sink_cosine")
    if found is None:
        return None
    mean = Quantity(found.value.mean(keepdims=True), found.error.mean(keepdims=True))
    against, along = int((found.high < 0).sum()), int((found.low > 0).sum())
    evidence = (
        f"The mean over heads is {mean.text(0)}; by more than two standard errors it is negative "
        f"in {against} of {_heads(found.value.size)}, positive in {along}."
    )
    claim = "The sink's value vector points away from the other tokens' (negative mean cosine)."
    negated = Quantity(-mean.value, mean.error)
    return Finding(verdict_over(negated), claim, evidence + _no_interval(mean))


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
        f"{counts['retriever']} of {_heads(known)} ({share:.1f} %) are retrievers, {rarest} of the "
        f"three regimes; {within} the paper's range of {low:g} to {high:g} %."
    )
    verdict = HOLDS if 2 * counts["retriever"] < known else FAILS
    return Finding(verdict, "Retrievers are a minority of the heads.", evidence)


def _grid(ds: xr.Dataset, name: str) -> Quantity | None:
    """The finite values of a variable per head, with their standard errors."""
    if not results.measured(ds, name):
        return None
    value = results.values(ds, name)
    error = np.full(value.shape, np.nan)
    if results.measured(ds, f"{name}_se"):
        error = results.values(ds, f"{name}_se")
    known = np.isfinite(value)
    return Quantity(value[known], error[known]) if known.any() else None


def _no_interval(found: Quantity) -> str:
    if np.isfinite(found.error).any():
        return ""
    return " Without standard errors (two documents at least) no interval can be given."


def _small(x: float) -> str:
    return "less than 0.01" if 0 < x < 0.01 else number(x)


def _heads(count: int) -> str:
    return f"{count} head" if count == 1 else f"{count} heads"
