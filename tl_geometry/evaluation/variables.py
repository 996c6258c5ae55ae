"""Estimates as variables of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tl_geometry.evaluation.statistics import Estimate

__all__ = ["with_interval"]


def with_interval(
    name: str,
    dims: tuple[str, ...],
    estimate: Estimate,
    *,
    long_name: str,
    units: str = "nat/token",
    source: str = "",
    lay_out: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.asarray,
) -> dict[str, Any]:
    """A variable and the ends of its interval, ``<name>_low`` and ``<name>_high``.

    >>> xr.Dataset(with_interval("nll", (), boot.estimate(nll), long_name="NLL"))

    ``lay_out`` brings each of the three arrays into the shape of ``dims``.
    """
    parts = (
        ("", "", estimate.value),
        ("_low", "lower end: ", estimate.low),
        ("_high", "upper end: ", estimate.high),
    )
    return {
        f"{name}{suffix}": (
            dims,
            lay_out(values),
            {"long_name": f"{words}{long_name}", "units": units, "source": source},
        )
        for suffix, words, values in parts
    }
