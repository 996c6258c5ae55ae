"""What Sukenik et al. (arXiv 2605.08453) found about sinks as switches, and whether a run shows it."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from tl_geometry.measures.ranks import spearman
from tl_geometry.views import results
from tl_geometry.views.averages import Quantity, estimate, held, settled
from tl_geometry.views.estimates import Estimates, percent
from tl_geometry.views.findings import Finding, counted, no_interval, per_head, positive
from tl_geometry.views.results import Values, number, strongest
from tl_geometry.views.sink_claims import interval
from tl_geometry.views.verdicts import REVERSED, SHOWN, UNSETTLED, majority, statuses, verdict

MOST = 0.5
"""A head keeps to itself, or to its sink, that gives more than this share of its attention there."""
LITTLE = 0.1
"""A head whose mixing ratio is below this acts like an MLP."""
CHANCE = 0.05
"""A larger share of heads that show the opposite by their intervals is no chance: exceptions are real."""

_BY_FRACTION = ("layer", "head", "fraction")
_BY_HEAD = ("layer", "head")
_VALUES = tuple(f"value_halfspace_{name}" for name in ("feasible", "margin", "margin_random"))
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
    parts = (_off_rows, _off_heads, _diagonal, _values)
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
    both = np.isfinite(difference.value)
    known, more, less = (x.sum((0, 1)) for x in (both, difference.low > 0, difference.high < 0))
    levels = [[interval(x[..., k].mean(both[..., k])).text() for x in (off, on)] for k in places]
    parts = "; ".join(
        f"{short} and {rest} at f = {ds['fraction'].values[k]:g}, a difference of {interval(mean).text(k)} "
        f"(more in {more[k]}, less in {less[k]} of {counted(int(known[k]))})"
        for k, (short, rest) in zip(places, levels, strict=True)
    )
    evidence = (
        "Attention to the sink of a head's rows whose output is shorter than f times a typical value, and of its "
        f"other rows: {parts}. Means over the heads that have both, counts by more than two "
        f"standard errors. {_exceptions(ds, places, less, known)}"
    )
    if len(places) < mean.value.size:
        none = [f"{f:g}" for f in sorted(ds["fraction"].values[~np.isfinite(mean.value)])]
        evidence += f" Nothing to compare at f = {', '.join(none)}."
    steps = positive(mean[places])
    if (less > CHANCE * known)[places].any():
        steps.append(REVERSED)
    claim = (
        "A head that is off attends to its sink, at every f: rows with short outputs give the sink more "
        "attention."
    )
    return Finding(verdict(steps), claim, evidence + no_interval(mean[places]))


def _exceptions(ds: xr.Dataset, places: list[int], less: Values, known: Values) -> str:
    """The heads that do the opposite: how many may be put down to chance, and where there are more."""
    many = [f"{ds['fraction'].values[k]:g}" for k in places if less[k] > CHANCE * known[k]]
    found = f"here at f = {', '.join(many)}" if many else "here nowhere"
    return (
        f"Where more than {percent(CHANCE)} of the heads do the opposite, they are no chance and count as a "
        f"reversed part of the claim: {found}."
    )


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
        "independent; over documents there is none. This is the converse over heads: it says which "
        "heads are off, not which of their rows."
    )
    claim = "Conversely, heads that give their sink more attention are off more often, at every f."
    shown = ranked[places]
    return Finding(verdict(statuses(shown.low, shown.high)), claim, evidence)


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
    fewer = UNSETTLED  # none would be fewer, too, which tells nothing
    if exist == SHOWN and kept[1] < rested[0]:
        fewer = SHOWN
    elif exist == SHOWN and kept[0] >= rested[1]:
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


def _values(ds: xr.Dataset) -> Finding | None:
    if not all(held(ds, name, *_BY_HEAD) for name in _VALUES):
        return None
    found = [estimate(ds, name, *_BY_HEAD) for name in _VALUES]
    known = np.all([np.isfinite(each.value) for each in found], axis=0)
    if not known.any():
        return None
    share, margin, random = (each[known] for each in found)
    gain = margin - random
    parts = [
        majority(share.low > MOST, share.high < MOST),
        majority(gain.low > 0, gain.high < 0),
    ]
    heads = counted(share.value.size)
    evidence = (
        f"So it is in {interval(share.mean()).text()} of the documents, mean over {heads}, and in more than half of "
        f"them in {int((share.low > MOST).sum())}. The shortest output that any attention could give is "
        f"{interval(margin.mean()).text()} of the longest value, among random values "
        f"{interval(random.mean()).text()} (longer in {int((gain.low > 0).sum())} of {heads}, shorter in "
        f"{int((gain.high < 0).sum())})."
    )
    claim = (
        "In most heads the projected values, the sink's included, lie strictly to one side of the origin, farther "
        "from it than random ones: no attention cancels them, and only short values silence the head."
    )
    return Finding(verdict(parts), claim, evidence + no_interval(share))
