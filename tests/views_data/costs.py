"""Synthetic results of `token_costs`: made-up costs, laid out by the analysis' own function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from views_data.evaluations import _attributes

from tl_geometry.analysis.token_costs import KINDS, _dataset
from tl_geometry.measures.cost_scaling import CostScaling, _exponents, _start_of_tail

LENGTHS = (8, 16, 32, 64)
EXPONENTS = {"orthonormal": (0.5, 1.0), "random": (0.7, 1.1), "model": (0.6, 1.2)}


def make_token_costs(
    exponents: Mapping[str, tuple[float, float]] | None = None,
    factor: Mapping[str, float] | None = None,
    *,
    infeasible: Mapping[tuple[str, str], Sequence[float]] | None = None,
    norms: Sequence[str] = ("frobenius", "nuclear"),
    lengths: Sequence[int] = LENGTHS,
    samples: int = 4,
    noise: float = 0.01,
    heads: bool = False,
    layers: Sequence[object] = (0, 1, 2),
    seed: int = 0,
) -> xr.Dataset:
    """Costs T^exponent of sink and diagonal by kind, the diagonal's times `factor`, the same in all norms.

    `infeasible` holds shares of the samples by (target, kind), one for each length.
    """
    rng = np.random.default_rng(seed)
    T = np.array(lengths, dtype=np.float64)
    scalings = {}
    for kind in KINDS:
        powers = (EXPONENTS | dict(exponents or {}))[kind]
        scale = (1.0, (factor or {}).get(kind, 2.0))
        count = 1 if kind == "orthonormal" else samples
        held, shares = {}, {}
        for target, power, c in zip(("sink", "diagonal"), powers, scale, strict=True):
            share = np.array((infeasible or {}).get((target, kind), [0.0] * len(T)))
            found = c * T**power * np.exp(rng.normal(0, noise, (count, len(T))))
            missing = np.arange(count)[:, None] < np.round(share * count)
            held[target] = torch.from_numpy(np.where(missing, np.nan, found))
            shares[target] = torch.from_numpy(missing.mean(0))
        sink, diagonal, gap = _exponents(tuple(lengths), held, 0.95)
        dearer = (held["sink"] > held["diagonal"]) | (
            held["sink"].isnan() & ~held["diagonal"].isnan()
        )
        turn = _start_of_tail(tuple(lengths), (dearer.double().mean(0) > 0.5).tolist())
        for norm in norms:
            scalings[kind, norm] = CostScaling(
                tuple(lengths), held["sink"], held["diagonal"], shares["sink"], shares["diagonal"],
                sink, diagonal, gap, turn,
            )  # fmt: skip
    ds = _dataset(scalings, list(norms), list(range(samples)), list(lengths))
    ds.attrs = _attributes(
        "token_costs", 6, drawn_from="data", layer=0, lengths=list(lengths), norms=list(norms),
        samples=samples, causal=True, seed=0,
    )  # fmt: skip
    ds.attrs |= {
        "distinct_tokens": 181,
        "repeated_tokens": 103,
        "token_length": 5.5,
        "confidence": 0.95,
    }
    return ds.merge(_heads(rng, layers)) if heads else ds


def make_head_costs(
    *, attention: bool = True, layers: Sequence[object] = (0, 1, 2), seed: int = 0
) -> xr.Dataset:
    """Norms of three heads in each layer, with or without how they attend."""
    ds = _heads(np.random.default_rng(seed), layers)
    if not attention:
        ds = ds[["qk_frobenius", "qk_nuclear", "vo_frobenius", "vo_nuclear"]]
    settings = {"resamples": 2000, "confidence": 0.95, "seed": 0} if attention else {}
    ds.attrs = _attributes("head_costs", 6, **settings)
    return ds


def _heads(rng: np.random.Generator, layers: Sequence[object]) -> xr.Dataset:
    """Norms, attention and made-up correlations of three heads in each layer."""
    shape, dims = (len(layers), 3), ("layer", "head")
    names = ("qk_frobenius", "qk_nuclear", "vo_frobenius", "vo_nuclear")
    attention = ("sink_rate", "diagonal_attention")
    ranks = rng.uniform(-0.5, 0.5, (4, 2))
    found = {name: (dims, np.exp(rng.normal(2, 1, shape))) for name in names}
    found |= {name: (dims, rng.uniform(0, 1, shape)) for name in attention}
    for end, shift in (("", 0.0), ("_low", -0.1), ("_high", 0.1)):
        found[f"spearman{end}"] = (("cost", "attention"), ranks + shift)
    found["heads"] = ("attention", np.array([9, 8]))
    coords = {
        "layer": list(layers),
        "head": np.arange(3),
        "cost": list(names),
        "attention": list(attention),
    }
    return xr.Dataset(found, coords=coords)
