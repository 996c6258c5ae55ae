"""From accumulators to one dataset with named axes and provenance."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

import tl_geometry
from tl_geometry.analysis.accumulator import Accumulator, Variable
from tl_geometry.hooks import AttentionSite

__all__ = ["assemble", "kept_heads", "model_provenance"]


def assemble(
    measures: Sequence[Accumulator],
    layers: Sequence[int | str],
    kept: Bool[Tensor, "layer head"],
    attrs: Mapping[str, Any],
) -> xr.Dataset:
    """Compute all accumulators and lay their variables out over ``layer`` and ``head``, or ``layer`` alone.

    Heads that were not asked for (or that a layer does not have) are NaN, or ``""`` for labels.

    Raises:
        ValueError: two accumulators define the same variable.
    """
    coords: dict[str, Any] = {"layer": list(layers), "head": np.arange(kept.shape[1])}
    data: dict[str, Any] = {}
    keep = kept.numpy()
    for measure in measures:
        found = {
            name: values.reshape(measure.shape_of(name))  # torchmetrics drops axes of one
            for name, values in measure.compute().items()
        }
        coords |= {dim: list(labels) for dim, labels in measure.coords.items()}
        described = _described(measure, found)
        twice = sorted(set(described) & set(data))
        if twice:
            raise ValueError(
                f"measures: {', '.join(twice)} would be written twice; give each accumulator once"
            )
        for name, (variable, values) in described.items():
            array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
            attributes = {
                "long_name": variable.long_name,
                "units": variable.units,
                "source": variable.source,
            }
            if variable.per == "layer":
                data[name] = (("layer", *variable.dims), array.astype(np.float64), attributes)
            else:
                data[name] = (("layer", "head", *variable.dims), _masked(array, keep), attributes)
    return xr.Dataset(data, coords=coords, attrs=dict(attrs))


def kept_heads(
    sites: Sequence[AttentionSite],
    heads: Sequence[tuple[int | str, int]] | None,
    skipped: Collection[int | str],
) -> Bool[Tensor, "layer head"]:
    """Which heads a result shows: those that exist and, if any are named, are named.

    Raises:
        ValueError: a head that does not exist.
    """
    kept = torch.zeros(len(sites), max(site.n_heads for site in sites), dtype=torch.bool)
    rows = {site.layer: row for row, site in enumerate(sites)}
    if heads is None:
        for site in sites:
            kept[rows[site.layer], : site.n_heads] = True
    for layer, head in heads or []:
        if layer in skipped:
            continue
        if layer not in rows or not 0 <= head < sites[rows[layer]].n_heads:
            raise ValueError(
                f"heads: there is no head {head} in layer {layer!r} among the layers {list(rows)}"
            )
        kept[rows[layer], head] = True
    return kept


def _described(
    measure: Accumulator, found: Mapping[str, Tensor]
) -> dict[str, tuple[Variable, Any]]:
    described: dict[str, tuple[Variable, Any]] = {}
    for name, values in found.items():
        base = name if name in measure.variables else name.removesuffix("_se")
        variable = measure.variables[base]
        if name != base:
            text = f"standard error over documents of: {variable.long_name}"
            variable = replace(variable, long_name=text)
        described[name] = (variable, values)
    return described | measure.derived(found)


def _masked(array: NDArray[Any], keep: NDArray[Any]) -> NDArray[Any]:
    keep = keep.reshape(*keep.shape, *(1,) * (array.ndim - 2))
    if array.dtype.kind in "US":
        return np.where(keep, array, "")
    return np.where(keep, array.astype(np.float64), np.nan)


def model_provenance(model: Any, processing: Mapping[str, Any]) -> dict[str, Any]:
    """What was run on what: versions, model, weight processing."""
    cfg = model.cfg
    parameter = next(model.parameters())
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tl_geometry": tl_geometry.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": _version("transformers"),
        "transformer_lens": _version("transformer-lens"),
        "model_name": str(getattr(cfg, "model_name", "")),
        "model_class": type(model).__name__,
        "model_dtype": str(parameter.dtype).removeprefix("torch."),
        "device": str(parameter.device),
        "weight_processing": dict(processing),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
