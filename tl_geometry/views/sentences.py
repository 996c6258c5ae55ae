"""The findings of a run in plain English, every number taken from the result."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tl_geometry.views import averages, results
from tl_geometry.views.null_sinks import null_sentence
from tl_geometry.views.results import number, significant
from tl_geometry.views.sink_sentences import SINK_SENTENCES

CLOSE_CALL = 0.05


def summary_sentences(ds: xr.Dataset) -> list[str]:
    """What the run found, one finding a sentence or two; nothing about what was not measured.

    Example:
        >>> summary_sentences(ds)[0]  # doctest: +SKIP
        '21 of 270 heads (8 %) are retrievers, 180 (67 %) mixers and 69 (26 %) resets.'

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` has no layers or no heads.
    """
    results.check_result(ds)
    first = (_regimes, _sink_rate, null_sentence, _sink_metric, _sink_values, _sink_effect)
    parts = (*first, *SINK_SENTENCES, _distance, _f_score)
    return [sentence for part in parts if (sentence := part(ds))]


def _regimes(ds: xr.Dataset) -> str:
    if not results.measured(ds, "regime"):
        return ""
    labels = results.regimes(ds)
    counts = [int((labels == regime).sum()) for regime in results.REGIMES]
    known = sum(counts)
    if not known:
        return "No head could be given a regime."
    parts = [f"{n} ({_percent(n, known)})" for n in counts]
    text = (
        f"{counts[0]} of {_count(known)} ({_percent(counts[0], known)}) "
        f"{'is a retriever' if counts[0] == 1 else 'are retrievers'}, "
        f"{parts[1]} {_plural(counts[1], 'mixer')} and {parts[2]} {_plural(counts[2], 'reset')}."
    )
    if unknown := labels.size - known:
        text += f" The regime of {_count(unknown)} is not known."
    if results.measured(ds, "regime_margin"):
        close = (results.values(ds, "regime_margin") < CLOSE_CALL) & (labels != "")
        if close.any():
            text += (
                f" It is a close call in {_count(int(close.sum()))}: "
                f"the runner-up is less than {CLOSE_CALL} behind."
            )
    return text


def _sink_rate(ds: xr.Dataset) -> str:
    found = _finite(ds, "sink_rate")
    if found is None:
        return ""
    rates = results.values(ds, "sink_rate")
    i, j = results.strongest(rates, 1)[0]
    more = int((found > 0.5).sum())
    return (
        f"The median head gives {number(float(np.median(found)))} of its attention to the sink; "
        f"{_count(more)} of {found.size} {'gives' if more == 1 else 'give'} more than half. "
        f"The strongest sink is that of {results.head_names(ds)[i][j]} ({number(rates[i, j])})."
    )


def _sink_metric(ds: xr.Dataset) -> str:
    found = _finite(ds, "sink_metric")
    if found is None:
        return ""
    return (
        f"Gu et al.'s sink metric, the share of heads and documents whose sink receives more "
        f"than 0.3 of the attention within 64 tokens, is {number(100 * float(found.mean()), 1)} %."
    )


def _sink_values(ds: xr.Dataset) -> str:
    found = _finite(ds, "sink_norm_ratio")
    if found is None:
        return ""
    shorter = int((found < 1).sum())
    text = (
        f"The sink's value vector is shorter than the median of the other tokens' in "
        f"{shorter} of {_count(found.size)} (median ratio {significant(float(np.median(found)))})"
    )
    cosines = _finite(ds, "sink_cosine")
    if cosines is not None:
        against = int((cosines < 0).sum())
        text += f" and points away from them on average (negative cosine) in {against}"
        text += "" if cosines.size == found.size else f" of {cosines.size}"
    return f"{text}."


def _sink_effect(ds: xr.Dataset) -> str:
    if not results.measured(ds, "sink_rate", "contribution_sink"):
        return ""
    rates, shares = results.values(ds, "sink_rate"), results.values(ds, "contribution_sink")
    both = np.isfinite(rates) & np.isfinite(shares)
    if not both.any():
        return ""
    smaller = int((shares[both] < rates[both]).sum())
    negative = int((shares[both] < 0).sum())
    return (
        f"In {smaller} of {_count(int(both.sum()))} the sink contributes less to the head's "
        f"output than the attention it gets; in {negative} its mean contribution is negative."
    )


def _distance(ds: xr.Dataset) -> str:
    found = _finite(ds, "contribution_attention_distance")
    if found is None:
        return ""
    distances = results.values(ds, "contribution_attention_distance")
    i, j = results.strongest(distances, 1)[0]
    return (
        f"Contribution weights and attention differ by {number(float(np.median(found)))} in the "
        f"median head (half the summed absolute difference; 0 where they agree) and most in "
        f"{results.head_names(ds)[i][j]} ({number(distances[i, j])})."
    )


def _f_score(ds: xr.Dataset) -> str:
    names = ("f_score", "f_score_random")
    if not averages.separability_measured(ds, *names) or not averages.compared(ds):
        return ""
    place = averages.nearest_size(ds)
    usual, control = (averages.quantity(ds, name).value[:, :, place] for name in names)
    both = np.isfinite(usual) & np.isfinite(control)
    if not both.any():
        return ""
    more = int((usual[both] > control[both]).sum())
    return (
        f"The {averages.sizes(ds)[place]} most attended tokens form a cluster of their own with "
        f"F = {number(float(usual[both].mean()))} in the mean over heads (1 is perfect), as many "
        f"random tokens with {number(float(control[both].mean()))}; F is above that control in "
        f"{more} of {_count(int(both.sum()))}."
    )


def _finite(ds: xr.Dataset, name: str) -> results.Values | None:
    if not results.measured(ds, name):
        return None
    grid = results.values(ds, name)
    found = grid[np.isfinite(grid)]
    return found if found.size else None


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.0f} %"


def _count(heads: int) -> str:
    return f"{heads} {_plural(heads, 'head')}"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
