"""In which order heads are removed: rankings of all heads of a model, least valuable first.

Source: Mudarisov et al., arXiv 2602.01893. Names of orders:

- ``"retriever>mixer>reset"`` and the five other arrangements of the three regimes: all heads of the
  regime on the left are removed first, then those of the next; within a regime by mean output norm,
  ascending.
- ``"output_norm"``: mean |o_i| of the head, ascending.
- ``"contribution"``: mean over rows of sum_j |c_ij|, with inter contribution weights, ascending.
- ``"entropy"``: mean entropy of the head's attention, descending.
- ``"weight_norm"``: |W_V W_O|_F of the head, ascending.
- ``"random"``: a permutation from a seed.

Ties go to the lower layer, then to the lower head. Heads without a value come first, since nothing
of them was ever defined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int64
from numpy.typing import NDArray
from tqdm.auto import tqdm

from tl_geometry.analysis.accumulator import Accumulator, Measured, Variable
from tl_geometry.analysis.contributions import Contributions
from tl_geometry.analysis.head_costs import value_output_norms
from tl_geometry.analysis.probe import Probe
from tl_geometry.analysis.regimes import Regimes
from tl_geometry.evaluation.documents import Documents
from tl_geometry.hooks import AttentionSite
from tl_geometry.hooks.arguments import mask_argument
from tl_geometry.measures.geometry import AttentionGeometry
from tl_geometry.measures.regimes import REGIMES
from tl_geometry.measures.sinks import masked_mean

__all__ = ["ORDERS", "REGIME_ORDERS", "checked_orders", "head_order", "head_statistics"]

REGIME_ORDERS: tuple[str, ...] = tuple(">".join(names) for names in permutations(REGIMES))
"""The six arrangements of the regimes; the first is removed first."""

ORDERS: tuple[str, ...] = (
    *REGIME_ORDERS,
    "output_norm",
    "contribution",
    "entropy",
    "weight_norm",
    "random",
)
"""All orders that :func:`tl_geometry.sparsify` knows."""

_TS = "Mudarisov et al., arXiv 2602.01893"


class _Entropy(Accumulator):
    """Entropy of attention: mean over rows of -sum_j alpha_ij log alpha_ij."""

    variables: Mapping[str, Variable] = {
        "entropy": Variable("entropy of the attention, mean over rows", "nat", _TS)
    }

    def measure(self, geometry: AttentionGeometry) -> Measured:
        """One number per document and head."""
        rows = [
            torch.special.entr(geometry.pattern[:, :, some, keys]).sum(-1)
            for some, keys in geometry.spans()
        ]
        return {"entropy": masked_mean(torch.cat(rows, -1), geometry.rows)}


def checked_orders(orders: Iterable[str] | str | None) -> tuple[str, ...]:
    """The orders that were asked for; all of them for None.

    Raises:
        ValueError: an unknown order, one twice, or none.
    """
    if orders is None:
        return ORDERS
    found = (orders,) if isinstance(orders, str) else tuple(orders)
    unknown = [name for name in found if name not in ORDERS]
    if unknown or not found or len(set(found)) < len(found):
        raise ValueError(
            f"orders must be some of {', '.join(map(repr, ORDERS))}, each once; got {list(found)}"
        )
    return found


def head_statistics(
    model: Any,
    documents: Documents,
    sites: Sequence[AttentionSite],
    orders: Sequence[str] = ORDERS,
    *,
    progress: bool = False,
) -> xr.Dataset:
    """What the orders rank by, in one pass over the documents: variables over layer and head.

    ``weight_norm`` is among them only where an order asks for it, since not every layer has a plain
    W_V.
    """
    probe = Probe(
        model, [Contributions(), Regimes(), _Entropy()], layers=[site.layer for site in sites]
    )
    device = sites[0].device
    with torch.no_grad():
        for batch in tqdm(documents.batches, unit=" batches", disable=not progress):
            mask = batch.attention_mask
            model.run_with_hooks(
                batch.tokens.to(device),
                return_type=None,
                fwd_hooks=probe.hooks(attention_mask=mask, documents=batch.documents),
                **{mask_argument(model): mask.long().to(device)},
            )
    found = probe.result()
    # sum |c| is sum c plus twice the negative part.
    size = found.contribution_inter + 2 * found.contribution_inter_negative
    statistics: xr.Dataset = found[["regime", "output_norm", "entropy"]].assign(
        contribution=_described(size.values, "sum of |contribution weight| (inter), mean over rows")
    )
    if "weight_norm" in orders:
        norms = np.full(size.shape, np.nan)
        for row, site in enumerate(sites):
            norms[row, : site.n_heads] = value_output_norms(site).cpu()
        statistics["weight_norm"] = _described(norms, "Frobenius norm of W_V W_O")
    statistics.attrs = {}
    return statistics


def head_order(
    order: str, columns: Mapping[str, NDArray[Any]], *, seed: int | Sequence[int] = 0
) -> Int64[NDArray[np.int64], " head"]:
    """Numbers of all heads, the one that is removed first in front.

    >>> head_order("entropy", {"entropy": np.array([0.2, 1.5, 0.7])}).tolist()
    [1, 2, 0]

    Args:
        columns: a value for each head, by the names of :func:`head_statistics`; the heads stand in
            the order that breaks ties.
        seed: of ``"random"``.
    """
    if order == "random":
        n = len(next(iter(columns.values())))
        shuffled: NDArray[np.int64] = np.random.default_rng(seed).permutation(n)
        return shuffled
    if order in REGIME_ORDERS:
        places = {name: place for place, name in enumerate(order.split(">"))}
        regimes = np.array([places.get(str(name), -1) for name in columns["regime"]])
        return np.lexsort((_filled(columns["output_norm"]), regimes))
    values = columns[order]
    return np.argsort(_filled(-values if order == "entropy" else values), kind="stable")


def _filled(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.where(np.isnan(values), -np.inf, values)


def _described(values: NDArray[Any], long_name: str) -> tuple[Any, ...]:
    return ("layer", "head"), values, {"long_name": long_name, "units": "1", "source": _TS}
