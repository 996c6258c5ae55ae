"""Reading a result of `analyze` for display: names of heads, values of variables, rankings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from tl_geometry.measures.regimes import REGIMES as REGIMES

Values = npt.NDArray[Any]


def check_result(ds: xr.Dataset) -> None:
    """Refuse what is not a result with one value per layer and head.

    Raises:
        TypeError: when `ds` is no Dataset.
        ValueError: when an axis is missing or empty.
    """
    if not isinstance(ds, xr.Dataset):
        raise TypeError(f"ds must be an xarray.Dataset as analyze returns it, got {type(ds)!r}")
    for axis in ("layer", "head"):
        if not ds.sizes.get(axis):
            raise ValueError(
                f"ds has no values along {axis!r} (its axes: {dict(ds.sizes)}); "
                "give a Dataset as analyze or load returns it"
            )


def measured(ds: xr.Dataset, *names: str) -> bool:
    """Whether the run holds all these variables, one value per layer and head."""
    return all(name in ds and set(ds[name].dims) == {"layer", "head"} for name in names)


def values(ds: xr.Dataset, name: str) -> Values:
    """A variable as a float array, layer by head."""
    return np.asarray(ds[name].transpose("layer", "head").values, dtype=np.float64)


def regimes(ds: xr.Dataset) -> Values:
    """The labels of the heads as strings, layer by head; empty where unknown."""
    labels = ds["regime"].transpose("layer", "head").values.astype(str)
    return np.where(np.isin(labels, REGIMES), labels, "")


def layer_labels(ds: xr.Dataset) -> list[str]:
    """Labels of the layer axis; the positions if it has no coordinate."""
    return [str(x) for x in ds["layer"].values.tolist()]


def middle_layers(ds: xr.Dataset) -> Values | None:
    """Which layers are the middle third of those in the run; None with fewer than three, or with names.

    Names, as of an encoder's and a decoder's layers, have no common middle.
    """
    labels = layer_labels(ds)
    if len(labels) < 3 or not all(label.isdigit() for label in labels):
        return None
    third = len(labels) // 3
    place = np.arange(len(labels))
    middle: Values = (place >= third) & (place < len(labels) - third)
    return middle


def head_labels(ds: xr.Dataset) -> list[str]:
    """Labels of the head axis; the positions if it has no coordinate."""
    return [str(x) for x in ds["head"].values.tolist()]


def head_name(layer: object, head: object) -> str:
    """The name of a head, short where layers are numbered.

    Example:
        >>> head_name(5, 3), head_name("decoder.0.cross_attn", 3)
        ('L5H3', 'decoder.0.cross_attn H3')
    """
    label = str(layer)
    return f"L{label}H{head}" if label.isdigit() else f"{label} H{head}"


def head_names(ds: xr.Dataset) -> list[list[str]]:
    """Names of all heads, layer by head."""
    return [[head_name(i, j) for j in head_labels(ds)] for i in layer_labels(ds)]


def strongest(grid: Values, count: int) -> list[tuple[int, int]]:
    """Positions (layer, head) of the largest finite values, ties in reading order."""
    flat = grid.ravel()
    order = np.argsort(-flat, kind="stable")
    chosen = [int(i) for i in order if np.isfinite(flat[i])][:count]
    return [divmod(i, grid.shape[1]) for i in chosen]


def number(x: int | float, digits: int = 2) -> str:
    """A number for a reader; a dash where there is none, never a negative zero.

    Example:
        >>> number(0.12345), number(-0.001), number(float("nan")), number(12345.6, 0)
        ('0.12', '0.00', '–', '12,346')
    """
    if not np.isfinite(x):
        return "–"
    text = f"{x:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text


def significant(x: int | float) -> str:
    """A positive quantity of any size, with three significant digits.

    Example:
        >>> significant(0.01234), significant(1234.5)
        ('0.0123', '1,230')
    """
    if not np.isfinite(x):
        return "–"
    if x == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(x)))))
    if digits > 8 or abs(x) >= 1e9:
        return f"{x:.2e}"
    return f"{float(f'{x:.3g}'):,.{digits}f}"
