"""From the NLL of masked runs to a dataset with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from tl_geometry.evaluation.statistics import Bootstrap, Estimate
from tl_geometry.evaluation.variables import with_interval

__all__ = ["Scored", "tabulate"]

_SOURCE = "Cunningham & Muca Cirone, arXiv 2606.07604; DeYoung et al., arXiv 1911.03429"
_CELLS = ("importance", "mode", "ranking", "fraction")
_WORDS = {
    "comprehensiveness": "with the most important entries removed",
    "sufficiency": "with the least important entries removed",
}


@dataclass(frozen=True)
class Scored:
    """Summed NLL of every document.

    Attributes:
        full: without a mask.
        masked: by direction, ``importance mode ranking fraction document``.
        targets: how many tokens were predicted.
        coords: labels of the four axes.
    """

    full: NDArray[np.float64]
    masked: Mapping[str, NDArray[np.float64]]
    targets: NDArray[np.int64]
    coords: Mapping[str, Sequence[Any]]


def tabulate(scored: Scored, boot: Bootstrap) -> xr.Dataset:
    """All figures of a faithfulness experiment; every interval and difference uses the same resamples."""
    data: dict[str, Any] = {}
    for name, perplexity in (("nll_full", False), ("perplexity_full", True)):
        text = f"{name.removesuffix('_full')} of the full model"
        found = boot.estimate(scored.full, perplexity=perplexity)
        data |= _described(name, (), found, text, "1" if perplexity else "nat/token")
    for direction, nll in scored.masked.items():
        words = _WORDS[direction]
        for name, perplexity in ((direction, False), (f"{direction}_perplexity", True)):
            what, units = ("perplexity", "1") if perplexity else ("NLL", "nat/token")
            change = boot.estimate(nll, baseline=scored.full, perplexity=perplexity)
            text = f"{what} {words} minus that of the full model"
            data |= _described(name, _CELLS, change, text, units)
        value = boot.value(nll) - boot.value(scored.full)
        samples = boot.samples(nll) - boot.samples(scored.full)[:, None, None, None, None]
        data |= _pairs(direction, _CELLS, value, samples, boot)
        mean, means = value.mean(-1), samples.mean(-1)
        aopc = Estimate(mean, *boot.interval(means))
        text = f"mean of {direction} over the fractions"
        data |= _described(f"aopc_{direction}", _CELLS[:3], aopc, text)
        data |= _pairs(f"aopc_{direction}", _CELLS[:3], mean, means, boot)
    kept = (
        (
            "nll",
            ("direction", *_CELLS, "document"),
            np.stack(list(scored.masked.values())),
            "summed NLL of the masked document",
            "nat",
        ),
        ("nll_document", ("document",), scored.full, "summed NLL of the document", "nat"),
        ("targets", ("document",), scored.targets, "predicted tokens", "tokens"),
    )
    for name, dims, values, text, units in kept:
        data[name] = (dims, values, {"long_name": text, "units": units, "source": _SOURCE})
    coords = {
        **scored.coords,
        "other": list(scored.coords["importance"]),
        "direction": list(scored.masked),
        "document": np.arange(len(scored.targets)),
    }
    return xr.Dataset(data, coords=coords)


def _described(
    name: str, dims: tuple[str, ...], estimate: Estimate, text: str, units: str = "nat/token"
) -> dict[str, Any]:
    return with_interval(name, dims, estimate, long_name=text, units=units, source=_SOURCE)


def _pairs(
    name: str,
    dims: tuple[str, ...],
    value: NDArray[np.float64],
    samples: NDArray[np.float64],
    boot: Bootstrap,
) -> dict[str, Any]:
    """Differences between every two importances on the same documents."""
    differences = np.expand_dims(value, 1) - np.expand_dims(value, 0)
    resampled = np.expand_dims(samples, 2) - np.expand_dims(samples, 1)
    estimate = Estimate(differences, *boot.interval(resampled))
    text = f"{name} of importance minus that of other, on the same documents"
    return _described(f"{name}_difference", ("importance", "other", *dims[1:]), estimate, text)
