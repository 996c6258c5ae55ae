"""The full matrices of one prompt, for looking at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
import xarray as xr
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from tl_geometry.analysis.batch_masks import BatchMasks
from tl_geometry.analysis.ledger import Ledger
from tl_geometry.analysis.reading import LayerReader
from tl_geometry.analysis.results import model_provenance
from tl_geometry.arguments import one_of
from tl_geometry.data import resolve_bos
from tl_geometry.data.bos import bos_id
from tl_geometry.data.limits import check_length, check_text, check_vocabulary, model_context
from tl_geometry.hooks import AttentionSite, Doctor, attention_sites, doctor, select_sites
from tl_geometry.hooks.arguments import mask_argument
from tl_geometry.hooks.capture import capture_hooks
from tl_geometry.measures.layer import Output, ValueBias

__all__ = ["PromptMatrices", "PromptMode", "prompt_contributions", "prompt_matrices"]

PromptMode = Literal["intra", "inter", "attention"]


@dataclass(frozen=True)
class PromptMatrices:
    """Matrices ``layer head query key`` of one prompt by mode, what a query can see, what is left of its attention."""

    by_mode: dict[PromptMode, NDArray[Any]]
    available: NDArray[Any]
    null_attention: NDArray[Any]


def prompt_contributions(
    model: Any,
    text: str | Tensor,
    layers: Iterable[int | str] | None = None,
    mode: PromptMode = "intra",
    *,
    prepend_bos: bool | None = None,
    value_bias: ValueBias = "as_hooked",
    output: Output = "raw",
) -> xr.DataArray:
    """Contribution weights of one prompt: every layer, head, query and key.

    >>> c = prompt_contributions(model, "The cat sat on the mat", layers=[5])
    >>> c.sel(layer=5, head=2).isel(query=-1).to_pandas()

    Args:
        text: a string, or token ids (``pos`` or ``1 pos``), taken as they are.
        layers: labels of the layers, all by default. Memory grows with layers x heads x tokens^2.
        mode: ``"intra"`` or ``"inter"`` contribution weights, or ``"attention"`` for the pattern.
        prepend_bos: whether a bos token opens the text; by default what the model's tokenizer
            setting says.
        value_bias, output: as in :func:`tl_geometry.contribution_weights`.

    Returns:
        ``layer head query key``, dimensionless, with the tokens as coordinates ``query_token`` and
        ``key_token``, and what is left of each row's attention, which a learned null sink takes, as
        ``null_attention``. Entries that a query can't see are 0; rows whose output has cancelled are NaN.

    Raises:
        TypeError: token ids that are no integers.
        ValueError: an empty text, ids outside the vocabulary, more tokens than the model's context,
            a layer that can't be measured (with its reason), or a text without a tokenizer.
    """
    one_of("mode", mode, get_args(PromptMode))
    tokens, words = prompt_tokens(model, text, prepend_bos)
    sites = select_sites(attention_sites(model), layers)
    diagnosis = doctor(model, edits=False, layers=[site.layer for site in sites])
    for report in diagnosis.layers:
        if not report.supported:
            raise ValueError(f"layer {report.layer} can't be measured: {report.reason}")
    diagnosis.warn()
    found = prompt_matrices(
        model, tokens, sites, diagnosis, [mode], value_bias=value_bias, output=output
    )
    matrices = found.by_mode[mode]
    names = {"intra": "contribution weight (intra)", "inter": "contribution weight (inter)"}
    position = np.arange(len(words))
    return xr.DataArray(
        matrices,
        dims=("layer", "head", "query", "key"),
        coords={
            "layer": [site.layer for site in sites],
            "head": np.arange(matrices.shape[1]),
            "query": position,
            "key": position,
            "query_token": ("query", token_array(words)),
            "key_token": ("key", token_array(words)),
            "null_attention": (
                ("layer", "head", "query"),
                found.null_attention,
                {
                    "long_name": "attention that goes to no token (a learned null sink)",
                    "units": "1",
                },
            ),
        },
        name="attention" if mode == "attention" else "contribution",
        attrs={
            "long_name": names.get(mode, "attention"),
            "units": "1",
            "source": "Cunningham & Muca Cirone, arXiv 2606.07604",
            "mode": mode,
            "warnings": list(diagnosis.warnings),
            **model_provenance(model, diagnosis.processing),
        },
    )


def prompt_matrices(
    model: Any,
    tokens: Int64[Tensor, "1 pos"],
    sites: Sequence[AttentionSite],
    diagnosis: Doctor,
    modes: Sequence[PromptMode],
    *,
    value_bias: ValueBias = "as_hooked",
    output: Output = "raw",
) -> PromptMatrices:
    """One forward, all matrices; NaN for heads that a layer does not have.

    Raises:
        ValueError: activations that can't be trusted, with the layer.
    """
    tokens = tokens.to(sites[0].device)
    n, n_heads = tokens.shape[1], max(site.n_heads for site in sites)
    shape = (len(sites), n_heads, n, n)
    dtype = np.float64 if sites[0].dtype == torch.float64 else np.float32
    found = {mode: np.full(shape, np.nan, dtype) for mode in modes}
    available = np.zeros((len(sites), n, n), dtype=bool)
    null_attention = np.full(shape[:-1], np.nan, dtype)
    real = torch.ones_like(tokens)
    masks = BatchMasks(sites, real)
    reader = LayerReader(model, sites, diagnosis, value_bias=value_bias, output=output)
    reader.refresh()
    ledger = Ledger(sites, n_heads, sites[0].device)
    rows = {site.index: row for row, site in enumerate(sites)}

    def consume(site: AttentionSite, pattern: Tensor, v: Tensor, z: Tensor) -> None:
        row, geometry = rows[site.index], reader.geometry(site, pattern, v, z, masks)
        ledger.update(row, geometry, z, v)
        available[row] = geometry.available[0, 0].cpu().numpy()
        null_attention[row, : site.n_heads] = geometry.null_attention[0].cpu().numpy()
        for mode in modes:
            matrix = geometry.pattern if mode == "attention" else geometry.contributions(mode)
            found[mode][row, : site.n_heads] = matrix[0].cpu().numpy()

    with torch.no_grad():
        model.run_with_hooks(
            tokens,
            return_type=None,
            fwd_hooks=capture_hooks(model, sites, consume),
            **{mask_argument(model): real},
        )
    ledger.verify()
    return PromptMatrices(found, available, null_attention)


def token_array(words: Any) -> NDArray[Any]:
    """Texts of tokens as an array of strings. NULs at an end, which numpy drops, stand as the sign for them."""
    texts = np.array(words, dtype=object)
    for place, text in np.ndenumerate(texts):
        kept = text.rstrip("\0")
        texts[place] = kept + "\u2400" * (len(text) - len(kept))
    return texts.astype(str)


def prompt_tokens(
    model: Any, text: Any, prepend_bos: bool | None
) -> tuple[Int64[Tensor, "1 pos"], list[str]]:
    """Token ids of a prompt and the text of each token.

    Raises:
        TypeError: neither a string nor a tensor of integers.
        ValueError: an empty text, more than one row, ids outside the vocabulary, more tokens than the
            model's context, or a text for a model without a tokenizer.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError("text is a string, but the model has no tokenizer; pass token ids")
        if not text.strip():
            raise ValueError("text must hold one prompt of at least one token, got an empty text")
        check_text(text)
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        opening = bos_id(model) if resolve_bos(model, prepend_bos).prepend else None
        tokens = torch.tensor(ids if opening is None else [opening, *ids], dtype=torch.int64)
    elif isinstance(text, Tensor) and not text.is_floating_point() and text.dtype != torch.bool:
        tokens = text.to(torch.int64)
    else:
        kind = text.dtype if isinstance(text, Tensor) else type(text).__name__
        raise TypeError(f"text must be a string or token ids, a tensor of integers; got {kind}")
    if tokens.ndim == 1:
        tokens = tokens[None]
    if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.shape[1] == 0:
        raise ValueError(
            f"text must hold one prompt of at least one token, got {tuple(tokens.shape)}"
        )
    check_vocabulary(tokens, model, "text")
    context = model_context(model)
    check_length(tokens, context or tokens.shape[1], context, "text")
    tokens = tokens.contiguous()
    if tokenizer is None:
        return tokens, [str(token) for token in tokens[0].tolist()]
    return tokens, [tokenizer.decode([token]) for token in tokens[0].tolist()]
