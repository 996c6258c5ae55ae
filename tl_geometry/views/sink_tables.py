"""Interventions on sinks in tables and verdicts: loss, norms and alignment before and after."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tl_geometry.views import results
from tl_geometry.views.estimates import Estimates, estimates, require_evaluation
from tl_geometry.views.findings import Finding
from tl_geometry.views.results import Values, number, significant
from tl_geometry.views.summary import TOP, Table
from tl_geometry.views.verdicts import UNSETTLED, status, verdict

_PAIRED = "delta_group_cone_alignment"

WORDS = {
    "none": "as the model is",
    "zero_value": "value set to zero",
    "renormalize": "column removed, rows renormalised",
    "rescale": "value times {factor:g}",
    "mean": "value set to the running mean",
}
GROUPS = {"low norm": "heads of low norm", "other": "other heads"}


def interventions(ds: xr.Dataset) -> list[str]:
    """Those of the run, without the model as it is."""
    return [str(name) for name in ds["intervention"].values if name != "none"]


def in_words(ds: xr.Dataset, intervention: str) -> str:
    """What an intervention does to the sink."""
    factor = float(ds.attrs.get("settings", {}).get("factor", np.nan))
    return WORDS.get(intervention, intervention).format(factor=factor)


def head_values(ds: xr.Dataset, name: str, intervention: str) -> Values:
    """A variable under one intervention, layer by head."""
    return results.values(ds.sel(intervention=intervention), name)


def sink_tables(ds: xr.Dataset) -> list[Table]:
    """The loss, the groups of heads, and the heads that an intervention turns most.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `sink_interventions`.
    """
    require_evaluation(ds, "sink_interventions")
    first = interventions(ds)[0]
    tables = [_loss(ds), _groups(ds), *(_heads(ds, first, group) for group in GROUPS)]
    return [table for table in tables if table.rows]


def _loss(ds: xr.Dataset) -> Table:
    names = ("nll", "delta_nll", "perplexity", "delta_perplexity")
    rows = []
    for intervention in ("none", *interventions(ds)):
        found = [estimates(ds, name, intervention=intervention).text() for name in names]
        if intervention == "none":
            found = [text if k % 2 == 0 else "–" for k, text in enumerate(found)]
        rows.append((intervention, *found))
    held = "; ".join(f"{name}: {in_words(ds, name)}" for name in interventions(ds))
    return Table(
        "loss",
        "Interventions on the sink: loss",
        ("intervention", "NLL", "delta NLL", "perplexity", "delta perplexity"),
        tuple(rows),
        (False, True, True, True, True),
        f"The sink's {held}. NLL in nats per token; differences are to the model as it is (none), on the "
        "same documents.",
    )


def _groups(ds: xr.Dataset) -> Table:
    rows = []
    for intervention in ("none", *interventions(ds)):
        for group in GROUPS:
            where = {"intervention": intervention, "group": group}
            norm = estimates(ds, "group_output_norm", **where)
            alignment = estimates(ds, "group_cone_alignment", **where)
            shown = "1" if intervention == "none" else norm.text()
            rows.append((intervention, GROUPS[group], shown, alignment.text()))
    return Table(
        "groups",
        "Interventions on the sink: heads",
        ("intervention", "heads", "output norm, relative", "cone alignment"),
        tuple(rows),
        (False, False, True, True),
        "Means over the heads of a group. Output norm: over that of the model as it is. Alignment: cosine "
        "of the output with the mean direction of the other values.",
    )


def _heads(ds: xr.Dataset, intervention: str, group: str) -> Table:
    norm, aligned = (
        [head_values(ds, name, which) for which in ("none", intervention)]
        for name in ("output_norm", "cone_alignment")
    )
    chosen = results.values(ds, "low_norm") == (1 if group == "low norm" else 0)
    turned = np.where(chosen, np.abs(aligned[1] - aligned[0]), np.nan)
    names = results.head_names(ds)
    rows = [
        (
            names[i][j],
            *(significant(float(grid[i, j])) for grid in norm),
            *(number(float(grid[i, j])) for grid in aligned),
            number(float(aligned[1][i, j] - aligned[0][i, j])),
        )
        for i, j in results.strongest(turned, TOP)
    ]
    return Table(
        f"heads_{group.replace(' ', '_')}",
        f"{GROUPS[group][0].upper()}{GROUPS[group][1:]} that {intervention} turns most",
        ("head", "norm before", "norm after", "alignment before", "alignment after", "change"),
        tuple(rows),
        (False, True, True, True, True, True),
        f"Before: as the model is; after: with the sink's {in_words(ds, intervention)}. Means over documents.",
    )


def sink_findings(ds: xr.Dataset) -> list[Finding]:
    """Whether removing the sink's value moves low-norm heads into the cone, and costs perplexity.

    Example:
        >>> for finding in sink_findings(sink_interventions(model, texts)):  # doctest: +SKIP
        ...     print(finding)

    Cunningham & Muca Cirone, arXiv 2606.07604. A change of alignment is judged by the paired differences
    over documents, in results that hold none by whether the intervals before and after overlap;
    nothing without the intervention ``zero_value``.
    """
    require_evaluation(ds, "sink_interventions")
    if "zero_value" not in interventions(ds):
        return []
    return [finding for finding in (_into_the_cone(ds), _perplexity(ds)) if finding]


def _into_the_cone(ds: xr.Dataset) -> Finding | None:
    ends = {
        (group, which): estimates(ds, "group_cone_alignment", group=group, intervention=which)
        for group in GROUPS
        for which in ("none", "zero_value")
    }
    before, after = ends["low norm", "none"], ends["low norm", "zero_value"]
    if not np.isfinite(after.value - before.value):
        return None
    found, words = _turned(ds, before, after)
    norm = estimates(ds, "group_output_norm", group="low norm", intervention="zero_value")
    evidence = (
        f"Their mean alignment with the cone's axis is {before.text()} as the model is and {after.text()} "
        f"without the sink's value (1: on the axis); {words}. Their output norm becomes "
        f"{norm.text()} times as large. In the other heads alignment goes from "
        f"{ends['other', 'none'].text()} to {ends['other', 'zero_value'].text()}."
    )
    claim = "Without the sink's value, heads of low norm turn into the semantic cone."
    return Finding(verdict([found]), claim, evidence)


def _turned(ds: xr.Dataset, before: Estimates, after: Estimates) -> tuple[str, str]:
    """Whether alignment rises: by the paired differences, without them by whether the intervals overlap."""
    if _PAIRED in ds:
        change = estimates(ds, _PAIRED, group="low norm", intervention="zero_value")
        return change.shows(), f"on the same documents it changes by {change.text()}"
    apart = status(after.low - before.high, after.high - before.low)
    overlap = "overlap" if apart == UNSETTLED else "do not overlap"
    return apart, (
        f"the intervals {overlap} (this result holds no differences by document, which would tell more)"
    )


def _perplexity(ds: xr.Dataset) -> Finding:
    change = estimates(ds, "delta_perplexity", intervention="zero_value")
    before = estimates(ds, "perplexity", intervention="none")
    evidence = f"From {before.text()} it changes by {change.text()}."
    claim = "Without the sink's value, perplexity rises."
    return Finding(verdict([change.shows()]), claim, evidence)
