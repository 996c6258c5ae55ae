"""What pretrained heads pay for their attention: the norms of their weights, against how they attend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tl_geometry.analysis.results import model_provenance
from tl_geometry.arguments import confidence_level, whole_number, whole_seed
from tl_geometry.hooks import AttentionSite, attention_sites, select_sites
from tl_geometry.hooks.processing import weight_processing
from tl_geometry.measures.ranks import spearman
from tl_geometry.measures.scaling import work_dtype

__all__ = ["head_costs", "value_output_norms"]

_SD = "Sukenik et al., arXiv 2605.08453"
_COSTS = {
    "qk_frobenius": "Frobenius norm of W_Q W_K^T",
    "qk_nuclear": "nuclear norm of W_Q W_K^T",
    "vo_frobenius": "Frobenius norm of W_V W_O",
    "vo_nuclear": "nuclear norm of W_V W_O",
}
_ATTENTION = ("sink_rate", "diagonal_attention")


def head_costs(
    model: Any,
    ds: xr.Dataset | None = None,
    *,
    layers: Iterable[int | str] | int | str | None = None,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> xr.Dataset:
    """Frobenius and nuclear norm of each head's W_Q W_K^T and W_V W_O, and how they go with sinks and diagonals.

    >>> costs = head_costs(model, analyze(model, texts))
    >>> costs.qk_nuclear.sel(layer=3).values
    >>> costs.spearman.sel(cost="qk_nuclear", attention="sink_rate").item()

    The weights are taken as they are: folded norms are part of them, the scale 1 / sqrt(d_head) of
    scores and biases are not. W_Q W_K^T is the form of scores without rotation: what a rotary head
    computes at distance 0 and, at others, with a rotation between the factors. Norms of queries and
    keys (Qwen 3, Gemma 3, OLMo 2) come in between as well. Source: Sukenik et al., arXiv 2605.08453.

    Args:
        model: a HookedTransformer or TransformerBridge.
        ds: a result of :func:`tl_geometry.analyze` for the model. Its `sink_rate` and
            `diagonal_attention`, whichever it has, are put beside the norms, with their rank
            correlations over heads.
        layers: labels of the layers, all by default.
        resamples: of the heads, for the intervals of the correlations.
        confidence: coverage of these intervals, which are percentiles.
        seed: of the resampling.

    Returns:
        Variables ``layer head``; with `ds` also `spearman`, `spearman_low`, `spearman_high` (``cost
        attention``) and the number of `heads` behind them (``attention``). Heads that a layer does
        not have are NaN.

    Raises:
        TypeError: `ds` is no Dataset.
        ValueError: a layer whose projections are no plain matrices (latent attention, gates) or hold
            NaN or infinite weights; a `ds` of other heads or without either variable; options out of
            range.
    """
    if ds is not None and not isinstance(ds, xr.Dataset):
        raise TypeError(f"ds must be an xarray.Dataset, got {type(ds).__name__}")
    resamples = whole_number("resamples", resamples, 1)
    seed = whole_seed(seed)
    confidence = confidence_level(confidence)
    every = attention_sites(model)
    sites = select_sites(every, layers)
    table = np.full((len(_COSTS), len(sites), max(site.n_heads for site in sites)), np.nan)
    for row, site in enumerate(sites):
        table[:, row, : site.n_heads] = _norms(site).double().cpu().numpy()
    data: dict[str, Any] = {
        name: (("layer", "head"), values, {"long_name": words, "units": "1", "source": _SD})
        for (name, words), values in zip(_COSTS.items(), table, strict=True)
    }
    coords = {"layer": [site.layer for site in sites], "head": np.arange(table.shape[2])}
    attrs = model_provenance(model, weight_processing(model, every))
    options = {"resamples": resamples, "confidence": confidence, "seed": seed}
    attrs["settings"] = {"evaluation": "head_costs", **(options if ds is not None else {})}
    found = xr.Dataset(data, coords=coords, attrs=attrs)
    if ds is None:
        return found
    attention = _attention_of(ds, found)
    ranks = _correlations(table, attention, resamples, confidence, seed)
    for name, variable in (attention | ranks).items():
        found[name] = variable
    return found


def value_output_norms(site: AttentionSite) -> Float[Tensor, " head"]:
    """Frobenius norm of W_V W_O of each head, at least float32.

    >>> value_output_norms(attention_sites(model)[3]).argmin()

    Raises:
        ValueError: the layer has no plain matrix of values, or weights that are not finite.
    """
    return _product_values(*_value_output(site)).square().sum(-1).sqrt()


def _norms(site: AttentionSite) -> Float[Tensor, "cost head"]:
    """The norms in the order of the table."""
    found = []
    for left, right in ((_finite(site, "W_Q"), _finite(site, "W_K")), _value_output(site)):
        values = _product_values(left, right)
        found += [values.square().sum(-1).sqrt(), values.sum(-1)]
    return torch.stack(found)


def _finite(site: AttentionSite, name: str) -> Float[Tensor, "head d_in d_out"]:
    """Weights of a site, refused if singular values can't be computed."""
    weights: Tensor = getattr(site, name)
    broken = (~torch.isfinite(weights).flatten(1).all(1)).nonzero().flatten().tolist()
    if broken:
        which = "kv head" if len(weights) < site.n_heads else "head"
        raise ValueError(
            f"layer {site.layer}, {which} {broken[0]}: {name} holds NaN or infinite weights, which have "
            "no singular values; leave the layer out with layers="
        )
    return weights


def _value_output(site: AttentionSite) -> tuple[Tensor, Tensor]:
    return _finite(site, "W_V"), _finite(site, "W_O").transpose(-1, -2)


def _product_values(
    left: Float[Tensor, "left_head d_left d_head"],
    right: Float[Tensor, "right_head d_right d_head"],
) -> Float[Tensor, "head rank"]:
    """Singular values of left @ right^T per query head, from the triangles of both thin factors."""
    dtype = work_dtype(left, right)
    triangles = [torch.linalg.qr(W.to(dtype), mode="r").R for W in (left, right)]
    heads = max(len(R) for R in triangles)
    first, second = (R.repeat_interleave(heads // len(R), dim=0) for R in triangles)
    values: Tensor = torch.linalg.svdvals(first @ second.transpose(-1, -2))
    return values


def _attention_of(ds: xr.Dataset, costs: xr.Dataset) -> dict[str, xr.DataArray]:
    """The variables of a result that say how heads attend, laid out like the costs."""
    present = [name for name in _ATTENTION if name in ds]
    if not present:
        raise ValueError(f"ds holds neither {' nor '.join(_ATTENTION)}, got {sorted(map(str, ds))}")
    missing = [label for label in costs["layer"].values.tolist() if label not in ds["layer"].values]
    heads, own = (x["head"].values.tolist() for x in (ds, costs))
    if missing or sorted(heads) != own:
        raise ValueError(
            f"ds is of another model, or of other layers or heads: its heads are {heads} (those of the "
            f"model {own}), and it lacks the layers {missing}"
        )
    return {
        name: ds[name].sel(layer=costs["layer"], head=costs["head"]).transpose("layer", "head")
        for name in present
    }


def _correlations(
    costs: NDArray[np.float64],
    attention: dict[str, xr.DataArray],
    resamples: int,
    confidence: float,
    seed: int,
) -> dict[str, Any]:
    """Rank correlations over heads with percentile intervals; all pairs share the resamples."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([0.5 - confidence / 2, 0.5 + confidence / 2], dtype=torch.float64)
    value = np.full((3, len(_COSTS), len(attention)), np.nan)
    counts = []
    for column, array in enumerate(attention.values()):
        y = torch.from_numpy(np.array(array.values, dtype=np.float64).ravel())
        x = torch.from_numpy(costs.reshape(len(costs), -1))
        known = ~(y.isnan() | x.isnan().any(0))
        x, y = x[:, known], y[known]
        counts.append(len(y))
        if len(y) < 2:
            continue
        draws = torch.randint(len(y), (resamples, len(y)), generator=generator)
        value[0, :, column] = _spearman(x, y.expand_as(x)).numpy()
        for row, cost in enumerate(x):
            again = _spearman(cost[draws], y[draws])
            value[1:, row, column] = again.nanquantile(shares).numpy()
    text = "rank correlation over heads of a norm with how the heads attend"
    dims = ("cost", "attention")
    return {
        "cost": list(_COSTS),
        "attention": list(attention),
        "spearman": (dims, value[0], {"long_name": text, "units": "1", "source": _SD}),
        **{
            f"spearman_{end}": (dims, part, {"long_name": f"{end} end of its interval"})
            for end, part in zip(("low", "high"), value[1:], strict=True)
        },
        "heads": ("attention", np.array(counts), {"long_name": "heads behind the correlation"}),
    }


def _spearman(x: Float[Tensor, "row head"], y: Float[Tensor, "row head"]) -> Float[Tensor, " row"]:
    return spearman(x, (y,), torch.ones_like(x, dtype=torch.bool))[0]
