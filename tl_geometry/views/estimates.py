"""Results of the evaluations for display: which one it is, estimates with their intervals, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from tl_geometry.views.results import Values, number, significant
from tl_geometry.views.verdicts import status

EVALUATIONS = (
    "faithfulness",
    "sparsify",
    "head_sensitivity",
    "sink_interventions",
    "pattern_mixing",
    "token_costs",
    "head_costs",
    "downstream",
)

ONE_DOCUMENT = "A single document gives no intervals, so nothing is settled."
BOOTSTRAP = (
    "Intervals in brackets, and the bands of the figures, hold {confidence:g} % of a bootstrap over "
    "the documents; each stands for itself, without a correction for their number. With few "
    "documents they come out too narrow."
)


@dataclass(frozen=True)
class Estimates:
    """Values with the ends of their intervals, NaN where there are none.

    Args:
        value: Of any shape.
        low: Lower ends.
        high: Upper ends.
    """

    value: Values
    low: Values
    high: Values

    def __getitem__(self, key: Any) -> Estimates:
        return Estimates(self.value[key], self.low[key], self.high[key])

    def text(self, place: int | tuple[int, ...] = ()) -> str:
        """One value with its interval, as exact as the interval bears: `0.41 (0.37 to 0.45)`."""
        value, low, high = (float(part[place]) for part in (self.value, self.low, self.high))
        if not np.isfinite(high - low):
            return significant(value)
        size = max(abs(value), abs(low), abs(high))
        if size == 0:
            return "0 (0 to 0)"
        digits = 3 - np.floor(np.log10(size))
        if high > low:
            digits = min(digits, 1 - np.floor(np.log10(high - low)))
        digits = int(np.clip(digits, 0, 8))
        return f"{number(value, digits)} ({number(low, digits)} to {number(high, digits)})"

    def shows(self, place: int | tuple[int, ...] = (), *, sign: Literal[-1, 1] = 1) -> str:
        """What an estimated difference says; see `tl_geometry.views.verdicts.status`.

        Args:
            place: Which of the estimates.
            sign: 1 where it should be positive, -1 where negative.
        """
        return status(self.low[place], self.high[place], sign=sign)


def estimates(ds: xr.Dataset, name: str, **where: Any) -> Estimates:
    """A variable with its interval, at some labels."""
    value = np.asarray(ds[name].sel(where).values, dtype=np.float64)
    unknown = np.full(value.shape, np.nan)
    ends = [
        np.asarray(ds[f"{name}_{end}"].sel(where).values, dtype=np.float64)
        if f"{name}_{end}" in ds
        else unknown
        for end in ("low", "high")
    ]
    return Estimates(value, *ends)


def evaluation_of(ds: object) -> str:
    """Which of the `EVALUATIONS` a dataset is from; empty for anything else."""
    settings = ds.attrs.get("settings") if isinstance(ds, xr.Dataset) else None
    name = settings.get("evaluation") if isinstance(settings, Mapping) else None
    return name if name in EVALUATIONS else ""


def require_evaluation(ds: object, name: str) -> None:
    """Refuse what is not the result of one evaluation.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when it is another result.
    """
    if not isinstance(ds, xr.Dataset):
        raise TypeError(f"ds must be an xarray.Dataset as {name} returns it, got {type(ds)!r}")
    if (found := evaluation_of(ds)) != name:
        what = f"of {found}" if found else "of no evaluation"
        raise ValueError(f"ds is a result {what}, but this view needs one of {name}")


def bootstrap_note(ds: xr.Dataset) -> str:
    """How to read the intervals of a bootstrap over documents."""
    if ds.attrs.get("documents") == 1:
        return ONE_DOCUMENT
    return BOOTSTRAP.format(confidence=100 * float(ds.attrs.get("confidence", 0.95)))


def over_documents(ds: xr.Dataset) -> str:
    """On what an evaluation ran: ` over 8 documents (2,041 tokens)`; empty when not recorded."""
    documents, tokens = (ds.attrs.get(name) for name in ("documents", "tokens"))
    if not isinstance(documents, int):
        return ""
    noun = "document" if documents == 1 else "documents"
    size = f" ({number(tokens, 0)} tokens)" if isinstance(tokens, int) else ""
    return f" over {number(documents, 0)} {noun}{size}"


def percent(share: float | int) -> str:
    """A share for a reader.

    Example:
        >>> percent(0.05), percent(0.125)
        ('5 %', '12.5 %')
    """
    return f"{100 * share:.6g} %"


def listed(parts: Sequence[str]) -> str:
    """Words as a list.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
