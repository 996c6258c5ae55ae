"""Denser and sparser attention in tables and verdicts: the loss, and how alike the tokens become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import xarray as xr

from tl_geometry.views.estimates import estimates, require_evaluation
from tl_geometry.views.findings import Finding
from tl_geometry.views.summary import Table
from tl_geometry.views.verdicts import verdict

AS_IS = "as the model is"
_CLAIMS: tuple[tuple[str, Literal[-1, 1], str], ...] = (
    ("uniform", 1, "Denser attention (towards uniform) makes tokens more alike, at every t."),
    ("identity", -1, "Sparser attention (towards identity) makes tokens less alike, at every t."),
)


def targets(ds: xr.Dataset) -> list[str]:
    """The patterns that attention was moved to."""
    return [str(name) for name in ds["target"].values]


def shares(ds: xr.Dataset) -> list[float]:
    """Shares of the target that were run, without the model as it is."""
    return [float(t) for t in ds["t"].values if t > 0]


def mixing_tables(ds: xr.Dataset) -> list[Table]:
    """The loss, and the similarity of tokens averaged over layers, under every mixed pattern.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `pattern_mixing`.
    """
    require_evaluation(ds, "pattern_mixing")
    return [_loss(ds), _similarity(ds)]


def _runs(ds: xr.Dataset) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Names for a table, and where the numbers stand; the model as it is once."""
    yield AS_IS, "0", {"target": targets(ds)[0], "t": 0.0}
    for target in targets(ds):
        for t in shares(ds):
            yield target, f"{t:g}", {"target": target, "t": t}


def _loss(ds: xr.Dataset) -> Table:
    names = ("nll", "delta_nll", "perplexity", "delta_perplexity")
    rows = []
    for target, t, where in _runs(ds):
        changed = target != AS_IS
        cells = (
            estimates(ds, name, **where).text() if changed or k % 2 == 0 else "–"
            for k, name in enumerate(names)
        )
        rows.append((target, t, *cells))
    return Table(
        "loss",
        "Denser and sparser attention: loss",
        ("target", "t", "NLL", "delta NLL", "perplexity", "delta perplexity"),
        tuple(rows),
        (False, True, True, True, True, True),
        "Attention is (1 - t) attention + t target. NLL in nats per token; differences are to the model as "
        "it is, on the same documents.",
    )


def _similarity(ds: xr.Dataset) -> Table:
    rows = []
    for target, t, where in _runs(ds):
        level = estimates(ds, "similarity_mean", **where).text()
        residual = estimates(ds, "residual_mean", **where).text()
        if target == AS_IS:
            rows.append((target, t, level, "–", "–", "–", residual))
            continue
        change = estimates(ds, "delta_similarity_mean", **where).text()
        up, down = layers_moved(ds, target, float(t)) or ("–", "–")
        rows.append((target, t, level, change, str(up), str(down), residual))
    return Table(
        "similarity",
        "Denser and sparser attention: how alike the tokens are",
        ("target", "t", "similarity", "change", "layers up", "layers down", "relative residual"),
        tuple(rows),
        (False, True, True, True, True, True, True),
        "Similarity: mean cosine between two tokens of a document, bos apart, at a layer's output, mean over "
        "layers; change: minus that of the model as it is, on the same documents. Layers up, down: those whose own "
        f"change has an interval above, below 0 (of {ds.sizes['layer']}). Relative residual: share of the tokens "
        "that is not their mean.",
    )


def layers_moved(ds: xr.Dataset, target: str, t: float) -> tuple[int, int] | None:
    """In how many layers the tokens became more alike, and less, by the intervals; None without intervals."""
    found = estimates(ds, "delta_similarity_out", target=target, t=t)
    if not np.isfinite(found.low).any():
        return None
    return int((found.low > 0).sum()), int((found.high < 0).sum())


def mixing_findings(ds: xr.Dataset) -> list[Finding]:
    """Whether tokens become more alike towards uniform attention, and less towards attention to themselves.

    Example:
        >>> for finding in mixing_findings(pattern_mixing(model, texts)):  # doctest: +SKIP
        ...     print(finding)

    Sukenik et al., arXiv 2605.08453. Judged by the mean over layers and its paired intervals; each t is a
    part of the claim.
    """
    require_evaluation(ds, "pattern_mixing")
    return [
        _finding(ds, target, sign, claim)
        for target, sign, claim in _CLAIMS
        if target in targets(ds)
    ]


def _finding(ds: xr.Dataset, target: str, sign: Literal[-1, 1], claim: str) -> Finding:
    statuses, parts = [], []
    for t in shares(ds):
        change = estimates(ds, "delta_similarity_mean", target=target, t=t)
        statuses.append(change.shows(sign=sign))
        part = f"{change.text()} at t = {t:g}"
        if moved := layers_moved(ds, target, t):
            part += f" (up in {moved[0]} of {_layers(ds)}, down in {moved[1]})"
        parts.append(part)
    before = estimates(ds, "similarity_mean", target=target, t=0.0).text()
    evidence = (
        f"The mean cosine between tokens at a layer's output, averaged over layers, is {before} as the model "
        f"is; it changes by {'; '.join(parts)}."
    )
    return Finding(verdict(statuses), claim, evidence)


def _layers(ds: xr.Dataset) -> str:
    count = ds.sizes["layer"]
    return "1 layer" if count == 1 else f"{count} layers"
