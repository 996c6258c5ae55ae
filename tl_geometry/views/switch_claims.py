"""What Sukenik et al. (arXiv 2605.08453) found about sinks as switches, and whether a run shows it."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from tl_geometry.measures.ranks import spearman
from tl_geometry.views import results
from tl_geometry.views.averages import Quantity, estimate, held, settled
from tl_geometry.views.estimates import REVERSED, SHOWN, UNSETTLED, Estimates, verdict
from tl_geometry.views.findings import (
    HOLDS,
    PARTLY,
    Finding,
    counted,
    decided,
    no_interval,
    per_head,
    verdict_over,
)
from tl_geometry.views.results import Values, number, strongest
from tl_geometry.views.sink_claims import interval

MOST = 0.5
"""A head keeps to itself, or to its sink, that gives more than this share of its attention there."""
LITTLE = 0.1
"""A head whose mixing ratio is below this acts like an MLP."""
CHANCE = 0.05
"""A larger share of heads that show the opposite by their intervals is no chance: exceptions are real."""

_BY_FRACTION = ("layer", "head", "fraction")
_ENDS = ("value", "low", "high")
_FEWEST = 10


def switch_findings(ds: xr.Dataset) -> list[Finding]:
    """The paper's claims about switches that the run can speak to, each with its verdict.

    Example:
        >>> for finding in switch_findings(ds):  # doctest: +SKIP
        ...     print(finding)

    Intervals in brackets reach two standard errors over documents to each side, as wide as they can
    be (`tl_geometry.views.averages`), unless the evidence says otherwise. Claims about what was not
    measured are left out.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` has no layers or no heads.
    """
    results.check_result(ds)
    parts = (_off_rows, _off_heads, _diagonal)
    return [finding for part in parts if (finding := part(ds))]


def _off_rows(ds: xr.Dataset) -> Finding | None:
    names = ("sink_rate_off", "sink_rate_on")
    if not all(held(ds, name, *_BY_FRACTION) for name in names):
        return None
    off, on = (settled(estimate(ds, name, *_BY_FRACTION)) for name in names)
    difference = off - on
    mean = difference.mean()
    places = _ascending(ds, np.isfinite(mean.value))
    if not places:
        return None
    known, more, less = (
        x.sum((0, 1))
        for x in (np.isfinite(difference.value), difference.low > 0, difference.high < 0)
    )
    parts = ", ".join(
        f"{interval(mean).text(k)} at f = {ds['fraction'].values[k]:g} (more in {more[k]}, less in "
        f"{less[k]} of {counted(int(known[k]))})"
        for k in places
    )
    evidence = (
        "The rows of a head whose output is shorter than f times a typical value give the sink "
        f"more attention than its other rows, by {parts}; means over the heads that have both, "
        "counts by more than two standard errors."
    )
    if len(places) < mean.value.size:
        none = [f"{f:g}" for f in sorted(ds["fraction"].values[~np.isfinite(mean.value)])]
        evidence += f" Nothing to compare at f = {', '.join(none)}."
    judged = verdict_over(mean[places])
    if judged == HOLDS and (less > CHANCE * known)[places].any():
        judged = PARTLY
    claim = "A head that is off attends to its sink: short outputs go with attention to the sink."
    return Finding(judged, claim, evidence + no_interval(mean[places]))


def _off_heads(ds: xr.Dataset) -> Finding | None:
    if not held(ds, "off_rate", *_BY_FRACTION) or not results.measured(ds, "sink_rate"):
        return None
    rates = estimate(ds, "off_rate", *_BY_FRACTION).value
    sinks = results.values(ds, "sink_rate")
    found = [rank_correlation(rates[..., k], sinks) for k in range(rates.shape[-1])]
    ranked = Estimates(*(np.array([getattr(x, end) for x in found]) for end in _ENDS))
    places = _ascending(ds, np.isfinite(ranked.value))
    if not places:
        return None
    parts = ", ".join(f"{ranked.text(k)} at f = {ds['fraction'].values[k]:g}" for k in places)
    count = int((np.isfinite(rates).any(-1) & np.isfinite(sinks)).sum())
    evidence = (
        f"The rank correlation of sink rate and share of rows that are off is {parts}, over "
        f"{counted(count)}. These intervals reach two standard errors over heads, as if heads were "
        "independent; over documents there is none."
    )
    claim = "Heads that are off more often give their sink more attention."
    shown = ranked[places]
    return Finding(decided(shown.low > 0, shown.high < 0), claim, evidence)


def rank_correlation(x: Values, y: Values) -> Estimates:
    """Spearman's correlation over the entries that both have, with Fieller's interval; NaN where one is constant.

    Example:
        >>> rank_correlation(np.arange(12.0), np.arange(12.0) ** 2).text()
        '1.000 (1.000 to 1.000)'

    The interval reaches two standard errors to each side of the Fisher-transformed value, whose
    variance is 1.06 / (n - 3) (Fieller, Hartley & Pearson, Biometrika 1957); NaN below ten entries.
    """
    known = np.isfinite(x) & np.isfinite(y)
    count = int(known.sum())
    if count < 2:
        return Estimates(*(np.array(np.nan) for _ in _ENDS))
    first, second = (torch.from_numpy(values[known]) for values in (x, y))
    rho = float(spearman(first, (second,), torch.ones(count, dtype=torch.bool))[0])
    reach = 2 * np.sqrt(1.06 / (count - 3)) if count >= _FEWEST else np.nan
    z = np.arctanh(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    return Estimates(*(np.array(x) for x in (rho, np.tanh(z - reach), np.tanh(z + reach))))


def _diagonal(ds: xr.Dataset) -> Finding | None:
    own, sink = (per_head(ds, name) for name in ("diagonal_attention", "sink_rate"))
    if own is None or sink is None:
        return None
    kept, rested = _more_than_half(own), _more_than_half(sink)
    exist = SHOWN if kept[0] else UNSETTLED if kept[1] else REVERSED
    fewer = UNSETTLED
    if kept[1] < rested[0]:
        fewer = SHOWN
    elif kept[0] >= rested[1]:
        fewer = REVERSED
    values = results.values(ds, "diagonal_attention")
    i, j = strongest(values, 1)[0]
    evidence = (
        f"By more than two standard errors, more than half of the attention goes to the token itself "
        f"in {kept[0]} of {counted(own.value.size)}, to the sink in {rested[0]} of "
        f"{sink.value.size}. Most keeps {results.head_names(ds)[i][j]} ({number(float(values[i, j]))})."
    )
    mixing = per_head(ds, "mixing_ratio_no_sink")
    if mixing is not None:
        few = int((mixing.high < LITTLE).sum())
        evidence += (
            f" Like an MLP, with less than {LITTLE:g} of the output from other tokens than the sink, "
            f"act {few} of {counted(mixing.value.size)}."
        )
    claim = (
        "Heads that keep to themselves (diagonal attention) exist, and are fewer than sink heads."
    )
    return Finding(verdict([exist, fewer]), claim, evidence + no_interval(own))


def _more_than_half(found: Quantity) -> tuple[int, int]:
    """How many heads are above one half by their intervals, and how many may be."""
    return int((found.low > MOST).sum()), int((~(found.high <= MOST)).sum())


def _ascending(ds: xr.Dataset, known: Values) -> list[int]:
    """The known places on the axis `fraction`, by ascending fraction."""
    return [int(k) for k in np.argsort(ds["fraction"].values) if known[k]]
