"""Norms and directions of head outputs under interventions, read behind the edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from tl_geometry.analysis import Accumulator, Probe
from tl_geometry.analysis.accumulator import Measured
from tl_geometry.analysis.results import kept_heads
from tl_geometry.evaluation.documents import Documents
from tl_geometry.evaluation.prefix import forward_logits
from tl_geometry.evaluation.runs import Factory, on_device
from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.evaluation.variables import with_interval
from tl_geometry.hooks.entries import FwdHook, hook_entries
from tl_geometry.hooks.sites import AttentionSite
from tl_geometry.measures.cone import alignments, axis_length, cone_axis, lowest_quartile
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.masks import SinkRule, resolve_sinks
from tl_geometry.measures.scaling import scale
from tl_geometry.measures.sink_split import split_outputs
from tl_geometry.measures.sinks import masked_mean

__all__ = ["under_interventions"]

_CW = "Cunningham & Muca Cirone, arXiv 2606.07604"
_MINUS = ", minus that of the model as it is"


class _PerDocument(Accumulator):
    """Keeps a few numbers per document, layer and head.

    An edit of values may be made at the pattern, so the attention that the model gives is read in
    front of it, and so are the sinks where it is the attention that tells them.
    """

    def __init__(self, sink: SinkRule, *, removes_attention: bool) -> None:
        super().__init__()
        self.sink, self.removes_attention = sink, removes_attention
        self.given: dict[int, Tensor] = {}
        self.kept: dict[str, dict[int, list[Tensor]]] = {}

    def hooks(self, model: Any, sites: Sequence[AttentionSite]) -> list[FwdHook]:
        """Forward hooks that read the attention in front of the edits."""
        return hook_entries(model, {s.pattern_hook: partial(self._give, s.index) for s in sites})

    def _give(self, layer: int, pattern: Tensor, hook: Any) -> None:  # noqa: ARG002
        self.given[layer] = pattern.detach()

    def update(self, layer: int, geometry: AttentionGeometry) -> None:
        """Take in one layer of one batch."""
        pattern = self.given.pop(layer).to(geometry.dtype).masked_fill(~geometry.available, 0)
        if isinstance(self.sink, str) and self.sink == "auto":
            geometry = _with_sinks(geometry, resolve_sinks("auto", geometry.available, pattern))
        found = dict(self.measure(geometry))
        if not self.removes_attention:
            rate = geometry.sink_columns(pattern).sum(-1)
            found["sink_rate"] = masked_mean(rate, geometry.sink_rows)
            rest = (1 - pattern.sum(-1)) * geometry.null_sinks
            found["null_sink_rate"] = masked_mean(rest, geometry.sink_rows)
        for name, values in found.items():
            self.kept.setdefault(name, {}).setdefault(layer, []).append(values.double().cpu())

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """Means over the later queries of each document."""
        split = split_outputs(geometry)
        axis = cone_axis(geometry)
        aligned, _ = alignments(geometry, split, axis)
        return {
            "output_norm": scale(masked_mean(split.norm, split.rows), geometry.frame.exponent),
            "cone_alignment": masked_mean(aligned, ~aligned.isnan()),
            "cone_tightness": axis_length(axis),
            "sink_rate": masked_mean(geometry.sink_attention, geometry.sink_rows),
            "null_sink_rate": masked_mean(geometry.null_attention, geometry.sink_rows),
        }


def _with_sinks(
    geometry: AttentionGeometry, sinks: Bool[Tensor, "batch head key"]
) -> AttentionGeometry:
    return AttentionGeometry(
        geometry.pattern,
        geometry.v,
        geometry.W_O,
        available=geometry.available,
        sink=sinks,
        cross=geometry.cross,
        causal=geometry.causal,
        frame=geometry.frame,
        masked=True,
        null_sinks=geometry.null_sinks,
        layer=geometry.layer,
        documents=geometry.documents,
    )


_WORDS = {
    "output_norm": ("length of the head's output, mean over later queries", "residual stream"),
    "cone_alignment": (
        "cosine of the head's output with the mean direction of the other values",
        "1",
    ),
    "cone_tightness": ("length of the mean direction of the other values", "1"),
    "sink_rate": ("attention given to the sinks, mean over later queries", "1"),
    "null_sink_rate": (
        "attention given to no token (a learned null sink), mean over later queries",
        "1",
    ),
}


def under_interventions(
    model: Any,
    documents: Documents,
    factories: Mapping[str, Factory],
    sink: SinkRule,
    *,
    resamples: int,
    seed: int,
    progress: bool,
) -> xr.Dataset:
    """Norm and cone alignment of every head behind each intervention; the first one is the model as it is.

    Heads of low norm are those in the lowest quartile of their layer, as the model is.
    """
    probe, kept = _read(model, documents, factories, sink, progress=progress)
    exists = kept_heads(probe.sites, None, ()).numpy()
    norms, _ = _mean(kept["output_norm"][0], 0)
    low = lowest_quartile(torch.from_numpy(norms)).numpy()
    flag = {
        "long_name": "whether the output norm is in its layer's lowest quartile",
        "units": "",
        "source": _CW,
    }
    data = _per_head(kept) | _per_group(kept, low, exists, resamples, seed)
    data["low_norm"] = (("layer", "head"), np.where(exists, low, np.nan), flag)
    coords = {
        "intervention": list(factories),
        "layer": [site.layer for site in probe.sites],
        "head": np.arange(exists.shape[1]),
        "group": ["low norm", "other"],
    }
    return xr.Dataset(data, coords=coords)


def _read(
    model: Any,
    documents: Documents,
    factories: Mapping[str, Factory],
    sink: SinkRule,
    *,
    progress: bool,
) -> tuple[Probe, dict[str, NDArray[np.float64]]]:
    """Numbers per intervention, document, layer and head, read behind the edits."""
    by_name: dict[str, list[NDArray[np.float64]]] = {}
    total = len(factories) * len(documents.batches)
    with torch.no_grad(), tqdm(total=total, unit=" runs", disable=not progress) as bar:
        for name, make in factories.items():
            keeper = _PerDocument(sink, removes_attention=name == "renormalize")
            probe = Probe(model, [keeper], sink=sink)
            before, device = keeper.hooks(model, probe.sites), probe.sites[0].device
            for batch in documents.batches:
                on = on_device(batch, device)
                hooks = probe.hooks(attention_mask=on.attention_mask, documents=on.documents)
                forward_logits(model, on, [*before, *make(on), *hooks])
                bar.update()
            probe.check()
            order = np.argsort(np.concatenate([batch.documents for batch in documents.batches]))
            n_heads = max(site.n_heads for site in probe.sites)
            for variable, layers in keeper.kept.items():
                stacked = [_padded(torch.cat(layers[i]).numpy(), n_heads) for i in sorted(layers)]
                by_name.setdefault(variable, []).append(np.stack(stacked, 1)[order])
    return probe, {name: np.stack(found) for name, found in by_name.items()}


def _padded(values: NDArray[np.float64], n_heads: int) -> NDArray[np.float64]:
    missing = n_heads - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=np.nan)


def _per_head(kept: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in kept.items():
        text, units = _WORDS[name]
        mean, error = _mean(values, 1)
        dims = ("intervention", "layer", "head")
        for suffix, array, prefix in (
            ("", mean, ""),
            (
                "_se",
                error,
                "standard error over documents of: ",
            ),
        ):
            described = {"long_name": prefix + text, "units": units, "source": _CW}
            found[name + suffix] = (dims, array, described)
    return found


def _per_group(
    kept: dict[str, NDArray[np.float64]],
    low: NDArray[np.bool_],
    exists: NDArray[np.bool_],
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Means over the heads of low norm and over the others, with intervals over documents.

    The change of the alignment is resampled as differences on the same documents.
    """
    found: dict[str, Any] = {}
    relative = kept["output_norm"] / kept["output_norm"][:1]
    rows = {
        "group_output_norm": (
            relative,
            "output norm over that of the model as it is, mean over heads",
        ),
        "group_cone_alignment": (kept["cone_alignment"], "cone alignment, mean over heads"),
    }
    n_documents = relative.shape[1]
    boot = Bootstrap(np.ones(n_documents, dtype=np.int64), resamples=resamples, seed=seed)
    for name, (values, text) in rows.items():
        groups = [
            _mean(np.where(chosen & exists, values, np.nan), (2, 3))[0] for chosen in (low, ~low)
        ]
        variables = {name: (np.stack(groups, 1), text)}
        if name == "group_cone_alignment":
            base = variables[name][0][:1]
            variables[f"delta_{name}"] = (variables[name][0] - base, f"{text}{_MINUS}")
        for variable, (numbers, words) in variables.items():
            dims, estimate = ("intervention", "group"), boot.estimate(numbers)
            found |= with_interval(variable, dims, estimate, long_name=words, units="1", source=_CW)
    return found


def _mean(
    values: NDArray[np.float64], axis: int | tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of the known numbers and its standard error; NaN where there are none, or one."""
    known = ~np.isnan(values)
    count = known.sum(axis, keepdims=True).astype(np.float64)
    count[count == 0] = np.nan
    mean = np.where(known, values, 0).sum(axis, keepdims=True) / count
    square = np.where(known, values - mean, 0) ** 2
    spread = square.sum(axis, keepdims=True) / np.where(count > 1, count - 1, np.nan)
    error = np.sqrt(spread / count)
    return mean.squeeze(axis), error.squeeze(axis)
