"""What theory says of the costs of sinks and diagonals, and whether a run shows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tl_geometry.views.cost_tables import (
    KINDS,
    TARGETS,
    costs,
    exponent,
    infeasible,
    lengths,
    norm_name,
    norms,
)
from tl_geometry.views.estimates import Estimates, estimates, listed, require_evaluation
from tl_geometry.views.findings import Finding
from tl_geometry.views.results import number
from tl_geometry.views.verdicts import REVERSED, SHOWN, UNSETTLED, verdict

_HALF, _SLACK = 0.5, 0.1  # the predicted gap of the exponents, and what still counts as it
_MAJORITY = (
    "A length counts for the sink (against it) if the sink is the cheaper (dearer) one in more than half of the "
    "samples, what no W represents being the dearer one; and, where more than half of the samples have both "
    "costs, if the interval of the ratio agrees."
)


def token_costs_findings(ds: xr.Dataset) -> list[Finding]:
    """Whether the diagonal's cost grows faster, and whether the sink stays the cheaper one.

    Example:
        >>> for finding in token_costs_findings(token_costs(model, texts)):  # doctest: +SKIP
        ...     print(finding)

    Sukenik et al., arXiv 2605.08453. Orthonormal tokens are no sample: their intervals are those of a
    fit to a few lengths.
    """
    require_evaluation(ds, "token_costs")
    found = []
    if "nuclear" in norms(ds):
        found += [_half(ds), _faster(ds)]
    found += [_cheaper(ds, norm) for norm in norms(ds)]
    return [*found, _stays(ds, "nuclear" if "nuclear" in norms(ds) else norms(ds)[0])]


def _growth(ds: xr.Dataset, kind: str) -> tuple[Estimates, str]:
    """The gap of the exponents in the nuclear norm, and all three in words."""
    sink, diagonal, gap = (
        exponent(ds, name, kind, "nuclear")
        for name in ("sink_exponent", "diagonal_exponent", "exponent_gap")
    )
    words = f"The exponent of T is {diagonal} for the diagonal and {sink} for the sink; the gap is {gap}."
    return estimates(ds, "exponent_gap", tokens=kind, norm="nuclear"), words


def _half(ds: xr.Dataset) -> Finding:
    gap, evidence = _growth(ds, "orthonormal")
    least, most = _HALF - _SLACK, _HALF + _SLACK
    near = UNSETTLED
    if gap.low >= least and gap.high <= most:
        near = SHOWN
    elif gap.low > most or gap.high < least:
        near = REVERSED
    claim = (
        "In the nuclear norm, the cost of the diagonal of T orthonormal tokens grows faster than that of a "
        f"sink, by a factor of about T^(1/2) (a gap of the exponents of {least:g} to {most:g})."
    )
    evidence += (
        " Orthonormal tokens are no sample: these costs are exact numbers, and the intervals are those of the "
        f"residuals of a straight line through {len(lengths(ds))} lengths on logarithmic axes."
    )
    return Finding(verdict([gap.shows(), near]), claim, evidence)


def _faster(ds: xr.Dataset) -> Finding:
    gap, evidence = _growth(ds, "model")
    claim = "On the model's own tokens, too, the diagonal's cost grows faster (nuclear norm)."
    return Finding(verdict([gap.shows()]), claim, evidence)


def _cheaper(ds: xr.Dataset, norm: str) -> Finding:
    ratio = estimates(ds, "cost_ratio", tokens="model", norm=norm)
    by_length = list(enumerate(lengths(ds)))
    counts = [_compared(ds, norm, k) for k, _ in by_length]
    parts = [
        f"{ratio.text(k)} at T = {length} ({counts[k].cheaper}, {counts[k].dearer})"
        for k, length in by_length
    ]
    claim = f"On the model's own tokens a sink costs less than the diagonal, at every T ({norm_name(norm)} norm)."
    evidence = (
        f"The diagonal costs {listed(parts)} times as much as the sink; in parentheses in how many of the "
        f"{counts[0].samples} samples the sink is cheaper, and dearer. {_MAJORITY}"
    )
    missing = [
        f"the {words} of the samples at T = {length}"
        for k, length in by_length
        if (words := infeasible(ds, "model", norm, k))
    ]
    evidence += f" No W represents {'; '.join(missing)}." if missing else ""
    more = Estimates(ratio.value - 1, ratio.low - 1, ratio.high - 1)
    steps = [count.status(more.shows(k)) for k, count in enumerate(counts)]
    return Finding(verdict(steps), claim, evidence)


@dataclass(frozen=True)
class _Compared:
    """In how many samples the sink is the cheaper one, the dearer one, and how many hold both costs."""

    cheaper: int
    dearer: int
    both: int
    samples: int

    def status(self, ratio: str) -> str:
        """Whether it is the cheaper one in most samples, given what the interval of the ratio shows."""
        most = UNSETTLED
        if 2 * self.cheaper > self.samples:
            most = SHOWN
        elif 2 * self.dearer > self.samples:
            most = REVERSED
        return most if ratio == most or 2 * self.both <= self.samples else UNSETTLED


def _compared(ds: xr.Dataset, norm: str, place: int) -> _Compared:
    """The samples at one length; what no W represents is the dearer one."""
    at = {"tokens": "model", "norm": norm}
    found, missing = {}, {}
    for target in TARGETS:
        cost = ds[f"{target}_cost"].sel(at).isel(length=place).values
        found[target] = cost
        share = float(ds[f"{target}_infeasible"].sel(at)[place])
        missing[target] = np.isnan(cost) & (share > 0)
    sink, diagonal = (np.where(missing[t], np.inf, found[t]) for t in TARGETS)
    both = np.isfinite(sink) & np.isfinite(diagonal)
    return _Compared(
        int((sink < diagonal).sum()), int((sink > diagonal).sum()), int(both.sum()), sink.size
    )


def _stays(ds: xr.Dataset, norm: str) -> Finding:
    turns = {kind: float(ds["turns_round"].sel(tokens=kind, norm=norm)) for kind in KINDS}
    turned = [kind for kind, length in turns.items() if np.isfinite(length)]
    known = [kind for kind in KINDS if np.isfinite(costs(ds, "sink", kind, norm).value).any()]
    steps = [
        REVERSED if kind in turned else SHOWN if kind in known else UNSETTLED for kind in KINDS
    ]
    parts = [
        f"{KINDS[kind]} {f'from T = {number(turns[kind], 0)} on' if kind in turned else 'nowhere'}"
        for kind in KINDS
    ]
    span = f"from {lengths(ds)[0]} to {lengths(ds)[-1]} tokens"
    claim = (
        "The sink does not become the dearer one as tokens are added, for all three kinds of tokens "
        f"({norm_name(norm)} norm)."
    )
    evidence = f"Where it is dearer in more than half of the samples, {span}: {'; '.join(parts)}."
    return Finding(verdict(steps), claim, evidence)
