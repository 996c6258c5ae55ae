"""Interventions on attention sinks.

Source: Cunningham & Muca Cirone, arXiv 2606.07604 (what a sink's removal does to norm, cone and loss).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.ablations.editing import LayerInForward
from tl_geometry.ablations.targets import Heads, Layers, Per, Target
from tl_geometry.ablations.tokens import (
    Change,
    TokenChange,
    drop,
    renormalized,
    scaled,
    token_hooks,
)
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.hooks.real_tokens import Mask
from tl_geometry.measures.devices import upload
from tl_geometry.measures.masks import SinkRule

__all__ = ["remove_sinks", "replace_sink_values", "rescale_sink_values", "zero_sink_values"]

Reference: TypeAlias = Mapping[int | str, Tensor]
"""A mean value for each layer: ``kv_head d_head``."""


def zero_sink_values(
    model: Any,
    layers: Layers = None,
    heads: Heads = None,
    sink: SinkRule = "first",
    attention_mask: Mask = None,
    per: Per = "query_head",
    *,
    decoder_attention_mask: Mask = None,
) -> list[FwdHook]:
    """Set the sinks' values to zero; the attention to them stays.

    >>> loss = model.run_with_hooks(tokens, fwd_hooks=zero_sink_values(model), return_type="loss")

    The output changes by exactly the sinks' terms, in every row, that of the sink included; so it is
    the same as with the sinks' columns of the pattern removed.

    Args:
        model: a HookedTransformer or TransformerBridge.
        layers: labels of the layers to edit, all by default.
        heads: (layer, head) pairs to edit, all heads of the layers by default. A value that several
            query heads share is left to the others.
        sink: which keys are sinks (:func:`tl_geometry.measures.masks.resolve_sinks`). ``"auto"``
            finds them in the pattern, so it edits that; heads without a sink stay as they are.
        attention_mask: ``batch pos``, as the model gets it, or a function that gives the current
            batch's. Without one all tokens are real but for pads at the end of rows.
        per: ``"kv_head"`` changes a shared value for all of its query heads.
        decoder_attention_mask: the same for the decoder of an encoder-decoder model.

    Returns:
        ``fwd_hooks`` for ``run_with_hooks`` or ``model.hooks``. They return new tensors, compose with
        other hooks in the order of the list, and check that the model takes notice of the edit.

    Raises:
        ValueError: an unknown layer or head, a layer that can't be taken apart or edited (with the
            reason); while the model runs: a sink outside the sequence, a row that begins with pads
            though no mask was given, a KV cache.
        RuntimeError: while the model runs, an edit that reaches nothing.
    """
    return _hooks(
        "zero_sink_values",
        model,
        drop,
        layers,
        heads,
        sink,
        attention_mask,
        per,
        decoder_attention_mask,
    )


def rescale_sink_values(
    model: Any,
    factor: float | int,
    layers: Layers = None,
    heads: Heads = None,
    sink: SinkRule = "first",
    attention_mask: Mask = None,
    per: Per = "query_head",
    *,
    decoder_attention_mask: Mask = None,
) -> list[FwdHook]:
    """Multiply the sinks' values by a factor; the attention to them stays.

    >>> model.run_with_hooks(tokens, fwd_hooks=rescale_sink_values(model, 2.0), return_type="loss")

    Args:
        model: a HookedTransformer or TransformerBridge.
        factor: 0 is :func:`zero_sink_values`, 1 changes nothing.

    Other arguments and errors as in :func:`zero_sink_values`.
    """
    if isinstance(factor, bool) or not math.isfinite(factor):
        raise ValueError(f"factor must be a finite number, got {factor!r}")
    change = scaled(float(factor))
    return _hooks(
        "rescale_sink_values",
        model,
        change,
        layers,
        heads,
        sink,
        attention_mask,
        per,
        decoder_attention_mask,
    )


def replace_sink_values(
    model: Any,
    value: Literal["mean"] | Reference = "mean",
    layers: Layers = None,
    heads: Heads = None,
    sink: SinkRule = "first",
    attention_mask: Mask = None,
    per: Per = "query_head",
    *,
    decoder_attention_mask: Mask = None,
) -> list[FwdHook]:
    """Put a mean in the place of the sinks' values; the attention to them stays.

    >>> model.run_with_hooks(tokens, fwd_hooks=replace_sink_values(model, "mean"), return_type="loss")

    Args:
        model: a HookedTransformer or TransformerBridge.
        value: ``"mean"`` is each query's own mean of the values that it can see, the sinks' included,
            so nothing of later positions leaks in. It is made at the pattern, whose weight on the
            sink is spread over the visible keys. Or a reference mean, a mapping of layer labels to
            ``kv_head d_head``.

    Other arguments and errors as in :func:`zero_sink_values`; ValueError also for a reference that
    lacks a layer or has another shape.
    """
    if isinstance(value, Mapping):
        change = TokenChange(_reference_values(value), None, check=partial(_check_reference, value))
    elif value == "mean":
        change = TokenChange(
            _mean_of_all,
            _spread,
            "the mean of the values so far differs from query to query",
            "Give reference means instead, a mapping of layers to kv_head d_head",
            causal_v=False,
        )
    else:
        raise ValueError(
            f'value must be "mean" or a mapping of layers to mean values (kv_head d_head), got {value!r}'
        )
    return _hooks(
        "replace_sink_values",
        model,
        change,
        layers,
        heads,
        sink,
        attention_mask,
        per,
        decoder_attention_mask,
    )


def remove_sinks(
    model: Any,
    renormalize: bool = False,
    layers: Layers = None,
    heads: Heads = None,
    sink: SinkRule = "first",
    attention_mask: Mask = None,
    per: Per = "query_head",
    *,
    decoder_attention_mask: Mask = None,
) -> list[FwdHook]:
    """Remove the sinks' columns from the pattern.

    >>> model.run_with_hooks(tokens, fwd_hooks=remove_sinks(model, renormalize=True), return_type="loss")

    Args:
        model: a HookedTransformer or TransformerBridge.
        renormalize: divide the rest of each row by its sum, so that the attention goes to the other
            tokens; a row with no rest stays as it is. Else nothing takes the sinks' place, and z is
            that of :func:`zero_sink_values`.

    Other arguments and errors as in :func:`zero_sink_values`.
    """
    change = renormalized if renormalize else drop
    return _hooks(
        "remove_sinks",
        model,
        change,
        layers,
        heads,
        sink,
        attention_mask,
        per,
        decoder_attention_mask,
        weights_first=True,
    )


def _hooks(
    name: str,
    model: Any,
    change: TokenChange,
    layers: Layers,
    heads: Heads,
    sink: SinkRule,
    attention_mask: Mask,
    per: Per,
    decoder_attention_mask: Mask,
    *,
    weights_first: bool = False,
) -> list[FwdHook]:
    return token_hooks(
        name,
        model,
        change,
        tokens=sink,
        layers=layers,
        heads=heads,
        attention_mask=attention_mask,
        decoder_attention_mask=decoder_attention_mask,
        per=per,
        weights_first=weights_first,
    )


def _spread(
    pattern: Float[Tensor, "batch head query key"],
    chosen: Bool[Tensor, "batch head 1 key"],
    layer: LayerInForward,
) -> Float[Tensor, "batch head query key"]:
    """Weights under which the chosen keys' values are the mean of all that the query can see."""
    batch, _, n_query, n_key = pattern.shape
    available = layer.available(batch, n_query, n_key, pattern.device)
    wide = pattern if pattern.dtype == torch.float64 else pattern.float()
    kept = wide.masked_fill(chosen, 0)
    share = (wide - kept).sum(-1, keepdim=True) / available.sum(-1, keepdim=True).clamp(min=1)
    return kept + share * available


def _mean_of_all(v: Tensor, chosen: Tensor, layer: LayerInForward) -> Tensor:
    """The same where every query sees every token."""
    real = layer.real_keys(v.shape[0], v.shape[1], v.device)[:, :, None, None]
    wide = v if v.dtype == torch.float64 else v.float()
    mean = wide.masked_fill(~real, 0).sum(1, keepdim=True) / real.sum(1, keepdim=True)
    return torch.where(chosen, mean.to(v.dtype), v)


def _reference_values(reference: Reference) -> Change:
    def change(v: Tensor, chosen: Tensor, layer: LayerInForward) -> Tensor:
        return torch.where(
            chosen, upload(reference[layer.target.site.layer], v.device).to(v.dtype), v
        )

    return change


def _check_reference(reference: Reference, target: Target) -> None:
    site = target.site
    found, shape = reference.get(site.layer), (site.n_kv_heads, site.d_head)
    if found is None:
        raise ValueError(
            f"value: there is no mean for layer {site.layer!r} among {list(reference)}"
        )
    if tuple(found.shape) != shape:
        raise ValueError(
            f"value: the mean of layer {site.layer!r} must be kv_head d_head {shape}, got {tuple(found.shape)}"
        )
