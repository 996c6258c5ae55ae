"""What Sukenik et al. (arXiv 2605.08453) found about the tokens that attention reads, against a run."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tl_geometry.views import results
from tl_geometry.views.averages import estimate, held
from tl_geometry.views.findings import Finding, counted, no_interval
from tl_geometry.views.results import number
from tl_geometry.views.sink_claims import interval
from tl_geometry.views.verdicts import majority, verdict

MOST = 0.5
"""The conditions hold at a layer that has them in more than this share of the documents."""

_HALFSPACE = (
    "halfspace_feasible",
    "halfspace_origin_margin",
    "halfspace_origin_margin_random",
    "halfspace_sink_margin",
    "halfspace_sink_margin_random",
)


def smoothing_findings(ds: xr.Dataset) -> list[Finding]:
    """The paper's claims about token vectors that the run can speak to, each with its verdict.

    Example:
        >>> for finding in smoothing_findings(ds):  # doctest: +SKIP
        ...     print(finding)

    Intervals in brackets reach two standard errors over documents to each side, as wide as they can
    be (`tl_geometry.views.averages`). Claims about what was not measured are left out.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` has no layers or no heads.
    """
    results.check_result(ds)
    parts = (_first_token, _halfspaces)
    return [finding for part in parts if (finding := part(ds))]


def _first_token(ds: xr.Dataset) -> Finding | None:
    middle = results.middle_layers(ds)
    if middle is None or not held(ds, "bos_cosine", "layer"):
        return None
    found = estimate(ds, "bos_cosine", "layer")
    known = np.isfinite(found.value)
    inner, outer = known & middle, known & ~middle
    if not inner.any():
        return None
    labels = np.array(results.layer_labels(ds))[middle]
    at = f"layers {labels[0]} to {labels[-1]}" if len(labels) > 1 else f"layer {labels[0]}"
    shown = found[inner]
    below, over = int((shown.high <= 0).sum()), int((shown.low > 0).sum())
    evidence = (
        f"In {at} the mean cosine of the first token with the others, as attention reads them, is "
        f"{interval(shown.mean()).text()}; by the intervals it is not positive in {below} of "
        f"{counted(shown.value.size, 'layer')}, positive in {over}."
    )
    if held(ds, "bos_cosine_max", "layer"):
        largest = estimate(ds, "bos_cosine_max", "layer").mean(inner)
        evidence += f" The largest with any token is {interval(largest).text()}."
    if outer.any():
        evidence += f" In the other layers the mean is {interval(found.mean(outer)).text()}."
    claim = "In most layers of the middle third the first token's cosine with the others is not positive."
    judged = majority(shown.high <= 0, shown.low > 0)
    return Finding(verdict([judged]), claim, evidence + no_interval(shown))


def _halfspaces(ds: xr.Dataset) -> Finding | None:
    if not all(held(ds, name, "layer") for name in _HALFSPACE):
        return None
    found = {name: estimate(ds, name, "layer") for name in _HALFSPACE}
    known = np.all([np.isfinite(each.value) for each in found.values()], axis=0)
    if not known.any():
        return None
    share, origin, origin_random, sink, sink_random = (each[known] for each in found.values())
    gains = (origin - origin_random, sink - sink_random)
    parts = [
        majority(share.low > MOST, share.high < MOST),
        *(majority(gain.low > 0, gain.high < 0) for gain in gains),
    ]
    wider = [int((gain.low > 0).sum()) for gain in gains]
    narrower = [int((gain.high < 0).sum()) for gain in gains]
    layers = counted(share.value.size, "layer")
    o, o_random, s, s_random = (
        interval(each.mean()).text() for each in (origin, origin_random, sink, sink_random)
    )
    evidence = (
        f"Both hold in {interval(share.mean()).text()} of the documents, in more than half of them in "
        f"{int((share.low > MOST).sum())} of {layers}. The tokens' hull "
        f"is {o} of the longest token away from the origin, that of random vectors {o_random} "
        f"(nearer in {wider[0]} of {layers}, farther in {narrower[0]}); the first token is {s} away from the "
        f"others' hull, a random one {s_random} (nearer in {wider[1]}, farther in {narrower[1]}).{_room(ds)}"
    )
    claim = (
        "In most layers both half-space conditions of a sink hold, and each of them by a wider margin than "
        "for random vectors."
    )
    return Finding(verdict(parts), claim, evidence + no_interval(share))


def _room(ds: xr.Dataset) -> str:
    names = ("halfspace_tokens", "halfspace_rank")
    if not all(held(ds, name, "layer") for name in names):
        return ""
    tokens, rank = (float(estimate(ds, name, "layer").mean().value) for name in names)
    return (
        f" {number(tokens, 0)} tokens a document were looked at; without the first they span "
        f"{number(rank, 0)} dimensions."
    )
