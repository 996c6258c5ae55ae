"""How much each head matters alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from tl_geometry.arguments import confidence_level, one_of, whole_seed
from tl_geometry.evaluation.documents import read_documents
from tl_geometry.evaluation.head_variants import (
    Head,
    RemovalMode,
    chosen_heads,
    head_name,
    without_heads,
)
from tl_geometry.evaluation.runs import Variant, run_variants
from tl_geometry.evaluation.statistics import Bootstrap
from tl_geometry.evaluation.variables import with_interval

__all__ = ["head_sensitivity", "outlying"]

OUTLIER_SCORE = 5.0
MAD_TO_SIGMA = 1.4826
DOCUMENTS_KEPT = 64
_TS = "Mudarisov et al., arXiv 2602.01893"


def head_sensitivity(
    model: Any,
    data: Any,
    *,
    n_ctx: int = 256,
    max_documents: int | None = 8,
    layers: Iterable[int | str] | int | str | None = None,
    heads: Iterable[Head] | None = None,
    mode: RemovalMode = "zero",
    batch_size: int | None = None,
    prepend_bos: bool | None = None,
    confidence: float = 0.95,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Remove one head at a time and see what it does to the loss.

    >>> ds = head_sensitivity(model, texts)
    >>> ds.delta_nll.sel(layer=0), ds.attrs["outliers"]
    (<xarray.DataArray ...>, ['L0H12'])

    delta NLL of a head is NLL without it minus NLL of the whole model, in nats per target, where
    targets are the real tokens behind the first of each document. A head is named an outlier where
    its delta NLL lies more than 5 robust standard deviations (1.4826 times the median absolute
    deviation over the heads) from the median. Source: Mudarisov et al., arXiv 2602.01893, who found
    head 12 of layer 0 in Gemma-7B so; the rule is a reconstruction.

    On a HookedTransformer the blocks before a head are not run again: about half of the cost of one
    forward per head. Other classes run the forwards in full.

    Args:
        data: as for :func:`tl_geometry.analyze`.
        layers, heads: labels of layers, or (layer, head) pairs, to look at; the others are NaN.
        mode: a removed head's z becomes zero, or its running mean (:func:`remove_heads`).
        confidence: of the intervals, bootstrapped over documents.
        checkpoint: file that keeps what is done; the run can be killed at any time.
        resume: go on from that file.
        seed: of the bootstrap.

    Returns:
        ``delta_nll`` (layer head) with the ends ``_low`` and ``_high`` of its interval (NaN for a
        single document), ``outlier``, ``nll`` of the whole model, and of up to 64 documents
        ``delta_nll_document``. ``attrs["outliers"]`` names the outliers, largest first.

    Raises:
        ValueError: an unknown layer or head, a model without a loss of the next token, or a
            checkpoint of another run.
    """
    one_of("mode", mode, ("zero", "mean"))
    confidence, seed = confidence_level(confidence), whole_seed(seed)
    sites, chosen = chosen_heads(model, layers, heads)
    documents = read_documents(
        model,
        data,
        n_ctx=n_ctx,
        batch_size=batch_size,
        prepend_bos=prepend_bos,
        max_documents=max_documents,
    )
    variants = [Variant("full")]
    variants += [without_heads(model, head_name(head), [head], mode) for head in chosen]
    scores = run_variants(
        model,
        documents,
        variants,
        settings={"evaluation": "head_sensitivity", "mode": mode},
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    )
    boot = Bootstrap(scores.targets, confidence=confidence, seed=seed)
    full = scores.of("full")
    delta = boot.estimate(scores.nll[1:], baseline=full)
    flags = outlying(delta.value)
    labels = [site.layer for site in sites]
    places = tuple(np.array([(labels.index(layer), head) for layer, head in chosen]).T)
    shape = (len(sites), max(site.n_heads for site in sites))

    def spread(values: NDArray[Any]) -> NDArray[np.float64]:
        array = np.full((*shape, *values.shape[1:]), np.nan)
        array[places] = values
        return array

    axes = ("layer", "head")
    text = "NLL without the head minus NLL of the whole model"
    outlier = np.zeros(shape, dtype=bool)
    outlier[places] = flags
    variables: dict[str, Any] = {
        **with_interval("delta_nll", axes, delta, long_name=text, source=_TS, lay_out=spread),
        "outlier": (
            axes,
            outlier,
            {"long_name": "far from the other heads", "units": "", "source": _TS},
        ),
        **with_interval(
            "nll", (), boot.estimate(full), long_name="NLL of the whole model", source=_TS
        ),
    }
    if documents.count <= DOCUMENTS_KEPT:
        variables["delta_nll_document"] = (
            (*axes, "document"),
            spread((scores.nll[1:] - full) / scores.targets),
            {"long_name": f"{text}, per document", "units": "nat/token", "source": _TS},
        )
    ranked = sorted(np.flatnonzero(flags), key=lambda row: -abs(delta.value[row]))
    attrs = {
        **scores.attrs,
        "outliers": [head_name(chosen[row]) for row in ranked],
        "outlier_rule": f"|delta NLL - median| > {OUTLIER_SCORE:g} * {MAD_TO_SIGMA} * MAD over heads",
        "confidence": confidence,
        "seed": seed,
    }
    coords = {"layer": labels, "head": np.arange(shape[1])}
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def outlying(
    values: Float64[NDArray[np.float64], " head"],
) -> Bool[NDArray[np.bool_], " head"]:
    """Values further from the median than 5 robust standard deviations.

    >>> outlying(np.array([0.1, 0.2, 0.15, 0.12, 9.0])).tolist()
    [False, False, False, False, True]
    """
    distance = np.abs(values - np.median(values))
    return np.asarray(distance > OUTLIER_SCORE * MAD_TO_SIGMA * np.median(distance))
