"""The parabola through the binned output lengths, and whether it is lowest at an intermediate sink rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tl_geometry.views.averages import Quantity, estimate, held, settled
from tl_geometry.views.results import Values
from tl_geometry.views.verdicts import REVERSED, SHOWN, UNSETTLED, status

NORM, RATE_BIN = "norm_by_sink_rate", "sink_rate_bin"
_FEWEST = 3


@dataclass(frozen=True)
class Parabola:
    """c_0 + c_1 a + c_2 a^2 fitted to the squared mean |o| in bins of the sink rate a, from `low` to `high`.

    Args:
        coefficients: c_0, c_1, c_2.
        low: The lowest bin it was fitted to.
        high: The highest.
        slopes: Its slope at both, with an upper limit of the standard error.
    """

    coefficients: Values
    low: float
    high: float
    slopes: Quantity

    def length(self, a: Values) -> Values:
        """The fitted |o|; NaN where the parabola is negative."""
        square = np.polynomial.polynomial.polyval(a, self.coefficients)
        length: Values = np.sqrt(np.where(square >= 0, square, np.nan))
        return length

    @property
    def lowest(self) -> float:
        """Where it is smallest, strictly inside the bins it was fitted to; NaN where nowhere."""
        _, slope, bend = self.coefficients
        place = -slope / (2 * bend) if bend > 0 else np.nan
        return float(place) if self.low < place < self.high else np.nan

    @property
    def curvature(self) -> float:
        """Its second derivative, in squared mean lengths."""
        return float(2 * self.coefficients[2])

    @property
    def inside(self) -> str:
        """Whether it is lowest strictly inside its bins: falling at the first and rising at the last of them."""
        low, high = self.slopes.low, self.slopes.high
        falls, rises = status(low[0], high[0], sign=-1), status(low[1], high[1])
        if falls == rises == SHOWN:
            return SHOWN
        return REVERSED if REVERSED in (falls, rises) else UNSETTLED


def norms_by_rate(ds: xr.Dataset) -> Quantity:
    """Mean |o| per layer, head and bin of the sink rate, in units of the head's mean."""
    return settled(estimate(ds, NORM, "layer", "head", RATE_BIN))


def fitted(ds: xr.Dataset, heads: Values) -> Parabola | None:
    """The least-squares parabola through the bins of the marked heads; None with fewer than three bins.

    A bin weighs as much as it has heads, those that have rows there in two documents at least
    where the run has several. The bins' standard errors are added as if all always erred together.
    """
    norms = norms_by_rate(ds)
    mean, weight = norms.mean(heads), np.isfinite(norms.value[heads]).sum(0)
    used = weight > 0
    if used.sum() < _FEWEST:
        return None
    a = np.asarray(ds[RATE_BIN].values, dtype=np.float64)[used]
    root = np.sqrt(weight[used])
    solver = np.linalg.pinv(np.vander(a, 3, increasing=True) * root[:, None]) * root
    lengths = mean.value[used]
    slope_of = np.array([[0, 1, 2 * end] for end in (a.min(), a.max())]) @ solver
    # The standard error of a square m^2 is 2 m that of m.
    errors = np.abs(slope_of) @ (2 * lengths * mean.error[used])
    slopes = Quantity(slope_of @ lengths**2, errors)
    return Parabola(solver @ lengths**2, float(a.min()), float(a.max()), slopes)


def head_parabolas(ds: xr.Dataset) -> list[Parabola]:
    """The parabolas of the single heads that have three bins at least."""
    shape = ds.sizes["layer"], ds.sizes["head"]
    found = []
    for place in np.ndindex(shape):
        marked = np.zeros(shape, dtype=bool)
        marked[place] = True
        found.append(fitted(ds, marked))
    return [parabola for parabola in found if parabola is not None]


def measured(ds: xr.Dataset) -> bool:
    """Whether the run holds the binned lengths."""
    return held(ds, NORM, "layer", "head", RATE_BIN)
