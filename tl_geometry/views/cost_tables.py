"""Costs of a sink and of the diagonal in tables and words."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tl_geometry.views.estimates import (
    Estimates,
    estimates,
    listed,
    percent,
    require_evaluation,
)
from tl_geometry.views.head_cost_views import correlation_sentences, correlations
from tl_geometry.views.results import number
from tl_geometry.views.summary import Table

KINDS = {
    "orthonormal": "orthonormal tokens",
    "random": "random tokens",
    "model": "the model's own tokens",
}
TARGETS = {"sink": "sink", "diagonal": "diagonal"}


def norms(ds: xr.Dataset) -> list[str]:
    """Those of the run."""
    return [str(norm) for norm in ds["norm"].values]


def lengths(ds: xr.Dataset) -> list[int]:
    """Numbers of tokens."""
    return [int(length) for length in ds["length"].values]


def costs(ds: xr.Dataset, target: str, kind: str, norm: str) -> Estimates:
    """Geometric mean over the samples at each length, with the least and the greatest if there are several."""
    found = ds[f"{target}_cost"].sel(tokens=kind, norm=norm).transpose("sample", "length").values
    ends = np.full((3, found.shape[1]), np.nan)
    for place, column in enumerate(found.T):
        known = column[np.isfinite(column)]
        if known.size:
            ends[0, place] = np.exp(np.log(known).mean())
        if known.size > 1:
            ends[1:, place] = known.min(), known.max()
    return Estimates(*ends)


def exponent(ds: xr.Dataset, name: str, kind: str, norm: str) -> str:
    """An exponent with its interval in words."""
    found = estimates(ds, name, tokens=kind, norm=norm)
    value, low, high = (number(float(part)) for part in (found.value, found.low, found.high))
    return value if np.isnan(found.high - found.low) else f"{value} ({low} to {high})"


def token_costs_tables(ds: xr.Dataset) -> list[Table]:
    """Exponents, costs at each length, and what the heads pay where the run knows it.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when `ds` is no result of `token_costs`.
    """
    require_evaluation(ds, "token_costs")
    tables = [_exponents(ds), _costs(ds)]
    return [*tables, *correlations(ds)]


def _exponents(ds: xr.Dataset) -> Table:
    names = ("sink_exponent", "diagonal_exponent", "exponent_gap")
    rows = [
        (
            KINDS[kind],
            norm,
            *(exponent(ds, name, kind, norm) for name in names),
            _turn(ds, kind, norm),
        )
        for norm in norms(ds)
        for kind in KINDS
    ]
    return Table(
        "exponents",
        "How the costs grow with the number of tokens T",
        ("tokens", "norm", "sink", "diagonal", "gap", "turns round at"),
        tuple(rows),
        (False, False, True, True, True, True),
        "Exponents of T with 95 % intervals: over the samples, for orthonormal tokens of the fit. Turns round: "
        "from that T on the sink is the dearer one.",
    )


def _turn(ds: xr.Dataset, kind: str, norm: str) -> str:
    return number(float(ds["turns_round"].sel(tokens=kind, norm=norm)), 0)


def _costs(ds: xr.Dataset) -> Table:
    rows = []
    for norm in norms(ds):
        for kind in KINDS:
            found = [costs(ds, target, kind, norm) for target in TARGETS]
            ratio = estimates(ds, "cost_ratio", tokens=kind, norm=norm)
            rows += [
                (
                    KINDS[kind],
                    norm,
                    str(length),
                    *(cost.text(k) for cost in found),
                    ratio.text(k),
                    infeasible(ds, kind, norm, k) or "–",
                )
                for k, length in enumerate(lengths(ds))
            ]
    return Table(
        "costs",
        "The smallest W that attends to a sink, and to itself",
        ("tokens", "norm", "T", "sink", "diagonal", "diagonal / sink", "infeasible"),
        tuple(rows),
        (False, False, True, True, True, True, False),
        "Norm of the smallest W at margin 1, tokens of mean squared length 1: geometric mean over the samples, in "
        "brackets the least and the greatest. The ratio has a 95 % interval. Infeasible: share of the samples "
        "in which no W will do.",
    )


def infeasible(ds: xr.Dataset, kind: str, norm: str, place: int) -> str:
    """What has no W at one length, and in which share of the samples; empty where everything has one."""
    shares = {
        target: float(ds[f"{target}_infeasible"].sel(tokens=kind, norm=norm)[place])
        for target in TARGETS
    }
    return listed([f"{target} in {percent(s)}" for target, s in shares.items() if s > 0])


def sentences(ds: xr.Dataset) -> list[str]:
    """What the run found."""
    last = lengths(ds)[-1]
    parts = [
        f"{estimates(ds, 'cost_ratio', tokens='model', norm=norm).text(-1)} in the {norm_name(norm)} norm"
        for norm in norms(ds)
        if np.isfinite(ds["cost_ratio"].sel(tokens="model", norm=norm).values[-1])
    ]
    layer = ds.attrs.get("settings", {}).get("layer")
    tokens = (
        f"{number(ds.attrs['distinct_tokens'], 0)} distinct tokens that layer {layer} reads "
        f"({number(ds.attrs['repeated_tokens'], 0)} that repeat an earlier one were left out)"
    )
    found = [f"The model's own tokens are samples of {tokens}."]
    if parts:
        found.append(
            f"With {last} of them, the diagonal's cost over the sink's is {listed(parts)}."
        )
    return [*found, *_turned(ds), *_impossible(ds), *correlation_sentences(ds)]


def _turned(ds: xr.Dataset) -> list[str]:
    """Where the sink becomes the dearer one."""
    found = []
    for norm in norms(ds):
        turns = {kind: float(ds["turns_round"].sel(tokens=kind, norm=norm)) for kind in KINDS}
        at = [
            f"on {KINDS[kind]} from T = {number(length, 0)} on"
            for kind, length in turns.items()
            if np.isfinite(length)
        ]
        if at:
            found.append(f"In the {norm_name(norm)} norm the sink is the dearer one {listed(at)}.")
    return found


def _impossible(ds: xr.Dataset) -> list[str]:
    """Where no W represents a target."""
    found = []
    for target in TARGETS:
        shares = ds[f"{target}_infeasible"].isel(norm=0)  # whether a W exists is no matter of norms
        for kind, words in KINDS.items():
            at = [
                f"{percent(share)} of the samples at T = {length}"
                for length, share in zip(
                    lengths(ds), shares.sel(tokens=kind).values.tolist(), strict=True
                )
                if share > 0
            ]
            if at:
                found.append(f"On {words} no W represents the {target} in {listed(at)}.")
    return found


def norm_name(norm: str) -> str:
    """A norm within a sentence."""
    return "Frobenius" if norm == "frobenius" else norm
