"""Means over heads, with intervals that hold whatever the heads have in common.

A result holds, for each head, a mean over documents and its standard error. The heads of a model
see the same documents, so their errors are not independent: the standard error of a mean over
heads is at most the mean of the heads' standard errors, and that of a difference at most the sum.
These upper limits are used throughout; an interval is the mean plus and minus two of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from tl_geometry.views.results import Values, number

PREFERRED_SIZE = 8
PREFERRED_FRACTION = 0.1
_AXES = ("layer", "head", "top_n")


@dataclass(frozen=True)
class Quantity:
    """Values with standard errors, NaN where there is none.

    Args:
        value: Layer, then head, then an axis such as top_n; or what is left of these.
        error: Standard error over documents, or an upper limit of it.
    """

    value: Values
    error: Values

    @property
    def low(self) -> Values:
        """Lower end of the interval."""
        return np.asarray(self.value - 2 * self.error)

    @property
    def high(self) -> Values:
        """Upper end of the interval."""
        return np.asarray(self.value + 2 * self.error)

    def __sub__(self, other: Quantity) -> Quantity:
        value, error = self.value - other.value, self.error + other.error
        return Quantity(np.asarray(value), np.asarray(error))

    def __getitem__(self, key: Any) -> Quantity:
        return Quantity(self.value[key], self.error[key])

    def text(self, place: int | tuple[int, ...] = ()) -> str:
        """One value with its interval: `0.41 (0.37 to 0.45)`."""
        shown = number(float(self.value[place]))
        low, high = float(self.low[place]), float(self.high[place])
        return f"{shown} ({number(low)} to {number(high)})" if np.isfinite(low) else shown

    def mean(self, heads: Values | None = None) -> Quantity:
        """Mean over the heads that are marked (layer by head) and have values; keeps a third axis."""
        marked = np.ones(self.value.shape[:2], bool) if heads is None else heads
        return _mean(self.value[marked], self.error[marked], axis=0)

    def mean_by_layer(self) -> Quantity:
        """Mean over the heads of each layer; keeps a third axis."""
        return _mean(self.value, self.error, axis=1)


def _mean(value: Values, error: Values, axis: int) -> Quantity:
    known = np.isfinite(value)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        mean = np.nanmean(np.where(known, value, np.nan), axis=axis)
    # A head without a standard error leaves the mean without one.
    total = np.where(known, error, 0.0).sum(axis=axis)
    count = known.sum(axis=axis)
    return Quantity(np.asarray(mean), np.where(count > 0, total / np.maximum(count, 1), np.nan))


def held(ds: xr.Dataset, name: str, *axes: str) -> bool:
    """Whether the run holds a variable over exactly these axes."""
    return name in ds and set(ds[name].dims) == set(axes)


def estimate(ds: xr.Dataset, name: str, *axes: str) -> Quantity:
    """A variable over these axes with its standard error, NaN where the run has none.

    Raises:
        ValueError: when `ds` holds no such variable.
    """
    if not held(ds, name, *axes):
        names = sorted(str(each) for each in ds.data_vars)
        over = " and ".join(filter(None, (", ".join(axes[:-1]), axes[-1])))
        raise ValueError(f"ds holds no {name!r} per {over}; it holds {names}")
    value = np.asarray(ds[name].transpose(*axes).values, dtype=np.float64)
    if not held(ds, f"{name}_se", *axes):
        return Quantity(value, np.full(value.shape, np.nan))
    return Quantity(value, np.asarray(ds[f"{name}_se"].transpose(*axes).values, dtype=np.float64))


def settled(found: Quantity) -> Quantity:
    """Without the values that have no standard error, which a single document defines, if others have one.

    Example:
        >>> settled(Quantity(np.array([1.0, 2.0]), np.array([0.1, np.nan]))).value
        array([ 1., nan])
    """
    known = np.isfinite(found.error)
    return Quantity(np.where(known, found.value, np.nan), found.error) if known.any() else found


def separability_measured(ds: xr.Dataset, *names: str) -> bool:
    """Whether the run holds these variables per layer, head and N; by default F."""
    return all(held(ds, name, *_AXES) for name in names or ("f_score",))


def quantity(ds: xr.Dataset, name: str) -> Quantity:
    """A variable per layer, head and N with its standard error."""
    return estimate(ds, name, *_AXES)


def sizes(ds: xr.Dataset) -> list[int]:
    """The sizes N of the run, in the order of the axis `top_n`."""
    return [int(n) for n in ds["top_n"].values]


def compared(ds: xr.Dataset) -> list[int]:
    """Places on the axis `top_n`, by ascending N, that tell something: F_1 is 1 for any rule."""
    numbers = sizes(ds)
    return sorted((k for k, n in enumerate(numbers) if n > 1), key=lambda k: numbers[k])


def nearest_size(ds: xr.Dataset, wanted: int = PREFERRED_SIZE) -> int:
    """Place of the N that is nearest to the wanted one on a logarithmic scale, never N = 1.

    Raises:
        ValueError: when the run holds no N above 1, or `wanted` is no size.
    """
    places = compared(ds)
    if not places:
        raise ValueError(f"ds holds top_n={sizes(ds)}; a comparison needs an N above 1")
    if wanted < 1:
        raise ValueError(f"top_n={wanted} must be at least 1")
    return min(places, key=lambda place: abs(np.log2(sizes(ds)[place] / wanted)))


def fractions(ds: xr.Dataset) -> list[float]:
    """The fractions f of a typical value below which a row is off, in the order of the axis."""
    return [float(f) for f in ds["fraction"].values]


def nearest_fraction(ds: xr.Dataset, wanted: int | float = PREFERRED_FRACTION) -> int:
    """Place of the fraction that is nearest to the wanted one on a logarithmic scale.

    Raises:
        ValueError: `wanted` is not positive.
    """
    if not wanted > 0:
        raise ValueError(f"fraction={wanted} must be above 0")
    held_ones = fractions(ds)
    return min(range(len(held_ones)), key=lambda place: abs(np.log(held_ones[place] / wanted)))
