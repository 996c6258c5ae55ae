"""What a model loses as more and more of its heads are removed, in different orders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from tl_geometry.arguments import confidence_level, one_of, whole_number, whole_seed
from tl_geometry.evaluation.documents import read_documents
from tl_geometry.evaluation.head_orders import checked_orders, head_order, head_statistics
from tl_geometry.evaluation.head_variants import Head, RemovalMode, chosen_heads, without_heads
from tl_geometry.evaluation.runs import Variant, run_variants
from tl_geometry.evaluation.sparsify_curves import removal_curves, removal_text
from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.measures.selection import exact_share

__all__ = ["sparsify", "sparsity_table"]

RETENTION = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)
TABLE = (0.9, 0.75, 0.5, 0.25)


def sparsify(
    model: Any,
    data: Any,
    orders: Iterable[str] | str | None = None,
    retention: Sequence[float | int] = RETENTION,
    *,
    layers: Iterable[int | str] | int | str | None = None,
    heads: Iterable[Any] | None = None,
    repeats: int = 3,
    seed: int = 0,
    mode: RemovalMode = "zero",
    n_ctx: int = 256,
    max_documents: int | None = 8,
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    confidence: float = 0.95,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> xr.Dataset:
    """Remove heads in several orders, least valuable first over the whole model, and follow the loss.

    >>> ds = sparsify(model, texts, ["reset>mixer>retriever", "entropy", "random"])
    >>> ds.nll.sel(order="entropy"), ds.auc
    >>> sparsity_table(ds)                                  # delta NLL at 90, 75, 50, 25 %

    At retention r of n heads the first floor((1 - r) n) of the order are removed, together. Orders
    rank heads by what one pass over the same documents shows of them, and are defined in
    :mod:`tl_geometry.evaluation.head_orders`. Source: Mudarisov et al., arXiv 2602.01893.

    Args:
        data: as for :func:`tl_geometry.analyze`.
        orders: names; by default the six of the regimes, ``"output_norm"``, ``"contribution"``,
            ``"entropy"``, ``"weight_norm"`` and ``"random"``.
        retention: shares of the heads that stay, in [0, 1], taken as they are written.
        layers, heads: labels of layers, or (layer, head) pairs: only these heads are ranked, removed
            and counted.
        repeats: how many random orders; their mean is the row ``"random"``.
        seed: of the random orders and of the bootstrap.
        mode: a removed head's z becomes zero, or its running mean (:func:`remove_heads`).
        confidence: of the intervals, bootstrapped over documents.
        checkpoint: file that keeps what is done; the run can be killed at any time.
        resume: go on from that file.

    Returns:
        ``nll``, ``delta_nll`` and ``perplexity`` (order retention) with the ends ``_low`` and
        ``_high`` of their intervals (NaN for a single document); ``auc`` (order), the area under
        delta NLL over the share of heads removed, by the trapezoid rule from nothing removed to the
        most that was; ``removed`` (retention), how many heads; ``rank`` (order layer head), the
        place of each head in the order, so that those with rank < removed are gone, NaN for heads that
        are not ranked. Of the random
        orders ``random_rank`` and ``random_nll`` (repeat ...), and their standard deviations
        ``nll_spread`` and ``auc_spread``, NaN for the other orders. What the orders rank by:
        ``regime``, ``output_norm``, ``contribution``, ``entropy`` and, where asked for,
        ``weight_norm`` (layer head).

    Raises:
        ValueError: an unknown order, layer or head, a retention outside [0, 1], a model that can't be
            measured or has no loss of the next token, or a checkpoint of another run.
    """
    one_of("mode", mode, ("zero", "mean"))
    names = checked_orders(orders)
    shares = _checked_retention(retention)
    repeats, seed = whole_number("repeats", repeats, 1), whole_seed(seed)
    confidence = confidence_level(confidence)
    sites, chosen = chosen_heads(model, layers, heads)
    documents = read_documents(
        model,
        data,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
    statistics = head_statistics(model, documents, sites, names, progress=progress)
    labels = [site.layer for site in sites]
    places = tuple(np.array([(labels.index(layer), head) for layer, head in chosen]).T)
    columns = {str(name): array.values[places] for name, array in statistics.items()}
    rankings = {
        (name, repeat): head_order(name, columns, seed=(seed, repeat))
        for name in names
        for repeat in range(repeats if name == "random" else 1)
    }
    removed = [floor((1 - exact_share(share)) * len(chosen)) for share in shares]
    variants, runs_of = _variants(model, chosen, rankings, removed, mode)
    scores = run_variants(
        model,
        documents,
        variants,
        settings={
            "evaluation": "sparsify",
            "mode": mode,
            "seed": seed,
            "repeats": repeats,
            "heads": None if layers is None and heads is None else [list(head) for head in chosen],
            "rankings": _digest(rankings),
        },
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    )
    runs = {
        key: scores.nll[[scores.variants.index(v) for v in row]] for key, row in runs_of.items()
    }
    boot = Bootstrap(scores.targets, confidence=confidence, seed=seed)
    grid = np.array(removed) / len(chosen)
    variables = removal_curves(boot, runs, scores.of("full"), names, grid)

    def laid_out(order: NDArray[np.int64]) -> NDArray[np.float64]:
        ranks = np.full(statistics.output_norm.shape, np.nan)
        ranks[tuple(axis[order] for axis in places)] = np.arange(len(order))
        return ranks

    unknown = np.full(statistics.output_norm.shape, np.nan)
    ranks = [unknown if name == "random" else laid_out(rankings[name, 0]) for name in names]
    variables["removed"] = (
        ("retention",),
        np.array(removed),
        removal_text("heads removed", "heads"),
    )
    variables["rank"] = (
        ("order", "layer", "head"),
        np.array(ranks),
        removal_text("place of the head in the order of removal", "heads"),
    )
    if "random" in names:
        variables["random_rank"] = (
            ("repeat", "layer", "head"),
            np.array([laid_out(rankings["random", k]) for k in range(repeats)]),
            removal_text("place of the head in a random order of removal", "heads"),
        )
    found: xr.Dataset = statistics.assign(variables).assign_coords(
        order=list(names), retention=list(shares)
    )
    found.attrs = {
        **scores.attrs,
        "auc_rule": "trapezoid over the share of heads removed, from none to the most; nats",
        "confidence": confidence,
        "seed": seed,
    }
    return found


def sparsity_table(ds: xr.Dataset) -> pd.DataFrame:
    """Delta NLL of each order with 90, 75, 50 and 25 % of the heads left, in nats per token.

    >>> sparsity_table(sparsify(model, texts)).round(2)

    Raises:
        ValueError: the result holds none of these retentions.
    """
    shares = [share for share in TABLE if share in ds.retention.values]
    if not shares:
        raise ValueError(
            f"ds holds the retentions {ds.retention.values.tolist()}, the table needs some of {list(TABLE)}"
        )
    return pd.DataFrame(
        ds.delta_nll.sel(retention=shares).values,
        index=pd.Index(ds.order.values, name="order"),
        columns=[f"{share:.0%}" for share in shares],
    )


def _checked_retention(retention: Sequence[float | int]) -> tuple[float, ...]:
    shares = sorted({float(share) for share in retention}, reverse=True)
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ValueError(
            f"retention must be shares of the heads that stay, each in [0, 1], got {list(retention)}"
        )
    return tuple(shares)


_Key = tuple[str, int]
_Rankings = Mapping[_Key, NDArray[np.int64]]


def _variants(
    model: Any,
    heads: Sequence[Head],
    rankings: _Rankings,
    removed: Sequence[int],
    mode: RemovalMode,
) -> tuple[list[Variant], dict[_Key, list[str]]]:
    """The runs to do, each set of heads once, and for each order the names of its runs."""
    found = {frozenset[int](): Variant("full")}
    cells: dict[_Key, list[str]] = {}
    for (order, repeat), ranking in rankings.items():
        cells[order, repeat] = []
        for count in removed:
            gone = frozenset(ranking[:count].tolist())
            if gone not in found:
                name = f"{order} {repeat} without {count}"
                found[gone] = without_heads(model, name, [heads[k] for k in sorted(gone)], mode)
            cells[order, repeat].append(found[gone].name)
    return list(found.values()), cells


def _digest(rankings: _Rankings) -> str:
    plain = [[*key, ranking.tolist()] for key, ranking in rankings.items()]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()
