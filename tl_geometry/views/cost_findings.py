"""What theory says of the costs of sinks and diagonals, and whether a run shows it."""

from __future__ import annotations

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
from tl_geometry.views.estimates import (
    REVERSED,
    SHOWN,
    Estimates,
    estimates,
    listed,
    require_evaluation,
    verdict,
)
from tl_geometry.views.findings import FAILS, HOLDS, OPEN, PARTLY, Finding
from tl_geometry.views.results import number

_HALF, _SLACK = 0.5, 0.1  # the predicted gap of the exponents, and what still counts as it


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
    shown = gap.shows()
    found = verdict([shown])
    if shown == SHOWN and not abs(float(gap.value) - _HALF) <= _SLACK:
        found = PARTLY
    claim = (
        "In the nuclear norm, the cost of the diagonal of T orthonormal tokens grows faster than that of a "
        "sink, by a factor of about T^(1/2)."
    )
    return Finding(found, claim, evidence)


def _faster(ds: xr.Dataset) -> Finding:
    gap, evidence = _growth(ds, "model")
    claim = "On the model's own tokens, too, the diagonal's cost grows faster (nuclear norm)."
    return Finding(verdict([gap.shows()]), claim, evidence)


def _cheaper(ds: xr.Dataset, norm: str) -> Finding:
    ratio = estimates(ds, "cost_ratio", tokens="model", norm=norm)
    by_length = list(enumerate(lengths(ds)))
    parts = [f"{ratio.text(k)} at T = {length}" for k, length in by_length]
    claim = (
        f"On the model's own tokens a sink costs less than the diagonal ({norm_name(norm)} norm)."
    )
    evidence = f"The diagonal costs {listed(parts)} times as much as the sink."
    missing = [
        f"the {words} of the samples at T = {length}"
        for k, length in by_length
        if (words := infeasible(ds, "model", norm, k))
    ]
    evidence += f" No W represents {'; '.join(missing)}." if missing else ""
    return Finding(verdict([_status(ds, norm, k) for k, _ in by_length]), claim, evidence)


def _status(ds: xr.Dataset, norm: str, place: int) -> str:
    """Whether the sink is the cheaper one at one length; what can't be represented is the dearer one."""
    at = {"tokens": "model", "norm": norm}
    sink, diagonal = (float(ds[f"{t}_infeasible"].sel(at)[place]) for t in TARGETS)
    if sink != diagonal:
        return REVERSED if sink > diagonal else SHOWN
    ratio = estimates(ds, "cost_ratio", **at)
    return Estimates(*(np.log(x) for x in (ratio.value, ratio.low, ratio.high))).shows(place)


def _stays(ds: xr.Dataset, norm: str) -> Finding:
    turns = {kind: float(ds["turns_round"].sel(tokens=kind, norm=norm)) for kind in KINDS}
    turned = [kind for kind, length in turns.items() if np.isfinite(length)]
    known = [kind for kind in KINDS if np.isfinite(costs(ds, "sink", kind, norm).value).any()]
    if not turned:
        found = HOLDS if len(known) == len(KINDS) else OPEN
    else:
        found = PARTLY if len(turned) < len(KINDS) else FAILS
    parts = [
        f"{KINDS[kind]} {f'from T = {number(turns[kind], 0)} on' if kind in turned else 'nowhere'}"
        for kind in KINDS
    ]
    span = f"from {lengths(ds)[0]} to {lengths(ds)[-1]} tokens"
    claim = f"The sink does not become the dearer one as tokens are added ({norm_name(norm)} norm)."
    return Finding(found, claim, f"Where it is dearer, {span}: {'; '.join(parts)}.")
