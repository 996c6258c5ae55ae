"""The full matrices of one prompt, for looking at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from tl_geometry.analysis.batch_masks import BatchMasks
from tl_geometry.analysis.results import model_provenance
from tl_geometry.data import resolve_bos
from tl_geometry.data.bos import bos_id
from tl_geometry.hooks import AttentionSite, attention_sites, doctor, select_sites
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.measures.checks import one_of
from tl_geometry.measures.geometry import AttentionGeometry

__all__ = ["PromptMode", "prompt_contributions"]

PromptMode = Literal["intra", "inter", "attention"]


def prompt_contributions(
    model: Any,
    text: str | Tensor,
    layers: Iterable[int | str] | None = None,
    mode: PromptMode = "intra",
    *,
    prepend_bos: bool | None = None,
) -> xr.DataArray:
    """Contribution weights of one prompt: every layer, head, query and key.

    >>> c = prompt_contributions(model, "The cat sat on the mat", layers=[5])
    >>> c.sel(layer=5, head=2).isel(query=-1).to_pandas()

    Args:
        text: a string, or token ids (``pos`` or ``1 pos``), taken as they are.
        layers: labels of the layers, all by default. Memory grows with layers x heads x tokens^2.
        mode: ``"intra"`` or ``"inter"`` contribution weights, or ``"attention"`` for the pattern
            itself.
        prepend_bos: whether a bos token opens the text; by default what the model's tokenizer
            setting says.

    Returns:
        ``layer head query key``, dimensionless, with the tokens as coordinates ``query_token`` and
        ``key_token``. Entries that a query can't see are 0; rows whose output has cancelled are NaN
        (see :func:`contribution_weights`).

    Raises:
        ValueError: an empty text, a layer that can't be measured (with its reason), or a text
            without a tokenizer.
    """
    one_of("mode", mode, get_args(PromptMode))
    tokens, words = prompt_tokens(model, text, prepend_bos)
    sites = select_sites(attention_sites(model), layers)
    diagnosis = doctor(model, edits=False, layers=[site.layer for site in sites])
    for report in diagnosis.layers:
        if not report.supported:
            raise ValueError(f"layer {report.layer} can't be measured: {report.reason}")
    reports = {report.layer: report for report in diagnosis.layers}
    masks = BatchMasks(torch.ones_like(tokens), None, None)
    found: dict[int | str, NDArray[Any]] = {}

    def consume(site: AttentionSite, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        available = masks.available(site, reports[site.layer], pattern)
        geometry = AttentionGeometry(
            pattern, v, site.W_O.detach(), available=available, z=z, cross=site.cross
        )
        matrix = geometry.pattern if mode == "attention" else geometry.contributions(mode)
        found[site.layer] = matrix[0].cpu().numpy()

    with torch.no_grad():
        model.run_with_hooks(
            tokens, return_type=None, fwd_hooks=capture_hooks(model, sites, consume)
        )
    missing = [site.layer for site in sites if site.layer not in found]
    if missing:
        raise RuntimeError(f"the attention hooks of the layers {missing} never fired")
    n_heads = max(site.n_heads for site in sites)
    stacked = np.full(
        (len(sites), n_heads, len(words), len(words)),
        np.nan,
        dtype=next(iter(found.values())).dtype,
    )
    for row, site in enumerate(sites):
        stacked[row, : site.n_heads] = found[site.layer]
    names = {
        "intra": "contribution weight (intra)",
        "inter": "contribution weight (inter)",
        "attention": "attention",
    }
    position = np.arange(len(words))
    return xr.DataArray(
        stacked,
        dims=("layer", "head", "query", "key"),
        coords={
            "layer": [site.layer for site in sites],
            "head": np.arange(n_heads),
            "query": position,
            "key": position,
            "query_token": ("query", words),
            "key_token": ("key", words),
        },
        name="attention" if mode == "attention" else "contribution",
        attrs={
            "long_name": names[mode],
            "units": "1",
            "source": "Cunningham & Muca Cirone, arXiv 2606.07604",
            "mode": mode,
            **model_provenance(model, diagnosis.processing),
        },
    )


def prompt_tokens(
    model: Any, text: str | Tensor, prepend_bos: bool | None
) -> tuple[Tensor, list[str]]:
    """Token ids ``1 pos`` of a prompt and the text of each token.

    Raises:
        ValueError: an empty text, more than one row, or a text for a model without a tokenizer.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError(
                "text is a string, but the model has no tokenizer; pass token ids instead"
            )
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if resolve_bos(model, prepend_bos).prepend:
            opening = bos_id(model)
            ids = ids if opening is None else [opening, *ids]
        tokens = torch.tensor(ids, dtype=torch.long)[None]
    else:
        tokens = text.long().reshape(1, -1) if text.ndim == 1 else text.long()
    if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] == 0:
        raise ValueError(
            f"text must hold one prompt of at least one token, got {tuple(tokens.shape)} token ids"
        )
    if tokenizer is None:
        return tokens, [str(token) for token in tokens[0].tolist()]
    return tokens, [tokenizer.decode([token]) for token in tokens[0].tolist()]
