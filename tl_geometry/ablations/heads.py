"""Remove whole heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.ablations.editing import Edit, LayerInForward, edit_hooks
from tl_geometry.ablations.targets import Heads, Layers, Target, targets
from tl_geometry.arguments import one_of
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.hooks.real_tokens import Mask
from tl_geometry.measures.devices import upload

__all__ = ["HeadMeans", "remove_heads"]

HeadMeans: TypeAlias = Mapping[tuple[int | str, int], Tensor]
"""A mean of z for each (layer, head): ``d_head``."""


def remove_heads(
    model: Any,
    heads: Heads = None,
    mode: Literal["zero", "mean"] = "zero",
    *,
    layers: Layers = None,
    reference: HeadMeans | None = None,
    attention_mask: Mask = None,
    decoder_attention_mask: Mask = None,
) -> list[FwdHook]:
    """Take heads out: z of each becomes zero, or a mean that says nothing about the token at hand.

    >>> model.run_with_hooks(tokens, fwd_hooks=remove_heads(model, [(5, 1), (7, 0)]), return_type="loss")

    The layer's output changes by exactly z W_O of these heads (or by its difference to the mean's).

    Args:
        model: a HookedTransformer or TransformerBridge.
        heads: (layer, head) pairs; by default all heads of ``layers``.
        mode: ``"zero"``, or ``"mean"``: the running mean of z over the positions so far, which leaks
            nothing of later ones. In a bidirectional layer it is the mean over all of them; in
            cross-attention over the decoder's positions so far.
        layers: labels of layers; with ``heads``, those must lie in them.
        reference: for ``"mean"``, means from elsewhere: a mapping of (layer, head) to ``d_head``.
        attention_mask, decoder_attention_mask: as in :func:`zero_sink_values`; padding takes part in
            no mean.

    Returns:
        ``fwd_hooks`` for ``run_with_hooks`` or ``model.hooks``.

    Raises:
        ValueError: a head or layer that does not exist, no head at all, a layer that can't be
            edited, a reference that does not fit.
        RuntimeError: while the model runs, an edit that the layer's output shows nothing of.
    """
    one_of("mode", mode, ("zero", "mean"))
    if heads is None and layers is None:
        raise ValueError(
            "heads is None: name the (layer, head) pairs to remove, or give layers= for all of theirs"
        )
    if reference is not None and mode != "mean":
        raise ValueError('reference holds means, so it needs mode="mean"')
    edits = []
    for target in targets("remove_heads", model, layers, heads):
        target.require("remove_heads", "z")
        edits.append((target, _edit(target, mode, reference)))
    return edit_hooks("remove_heads", model, edits, attention_mask, decoder_attention_mask)


def _edit(target: Target, mode: str, reference: HeadMeans | None) -> Edit:
    if mode == "zero":
        return Edit(z=_zero, needs_tokens=False)
    if reference is not None:
        means = [_mean_of(target, head, reference) for head in target.heads]
        return Edit(z=_put(torch.stack(means)), needs_tokens=False)
    if target.can("pattern") and target.report.window is None:
        return Edit(pattern=_running_mean_of_rows)
    return Edit(z=_running_mean)


def _mean_of(target: Target, head: int, reference: HeadMeans) -> Float[Tensor, " d_head"]:
    found = reference.get((target.site.layer, head))
    if found is None or tuple(found.shape) != (target.site.d_head,):
        shown = "nothing" if found is None else f"shape {tuple(found.shape)}"
        raise ValueError(
            f"reference must hold d_head ({target.site.d_head}) numbers for layer {target.site.layer!r}, "
            f"head {head}; it has {shown}"
        )
    return found


def _zero(z: Tensor, layer: LayerInForward) -> Tensor:
    return z.masked_fill(layer.target.head_mask(z.device)[:, None], 0)


def _put(means: Float[Tensor, "some_heads d_head"]) -> Callable[[Tensor, LayerInForward], Tensor]:
    def edit(z: Tensor, layer: LayerInForward) -> Tensor:
        index = upload(torch.tensor(layer.target.heads), z.device)
        shape = (*z.shape[:2], len(layer.target.heads), z.shape[-1])
        return z.index_copy(2, index, upload(means, z.device).to(z.dtype).expand(shape))

    return edit


def _running_mean(
    z: Float[Tensor, "batch query head d_head"], layer: LayerInForward
) -> Float[Tensor, "batch query head d_head"]:
    real = layer.real_queries(z.shape[0], z.shape[1], z.device)
    mean = mean_so_far(z, real[:, :, None, None], 1, causal=_in_order(layer.target))
    return torch.where(layer.target.head_mask(z.device)[:, None], mean, z)


def _running_mean_of_rows(
    pattern: Float[Tensor, "batch head query key"], layer: LayerInForward
) -> Float[Tensor, "batch head query key"]:
    """The same at the pattern, where whoever reads after us sees what z is made of."""
    real = layer.real_queries(pattern.shape[0], pattern.shape[2], pattern.device)
    mean = mean_so_far(pattern, real[:, None, :, None], 2, causal=_in_order(layer.target))
    heads = layer.target.head_mask(pattern.device)[:, None, None]
    return torch.where(heads, mean, pattern)


def _in_order(target: Target) -> bool:
    """Whether a query must not know of later ones; those of cross-attention are a decoder's positions."""
    return target.report.causal or target.site.cross


def mean_so_far(
    x: Float[Tensor, "batch ..."], real: Bool[Tensor, "batch ..."], dim: int, *, causal: bool
) -> Float[Tensor, "batch ..."]:
    """Mean of the real entries up to each position of ``dim``, or of all of them."""
    wide = (x if x.dtype == torch.float64 else x.float()).masked_fill(~real, 0)
    if causal:
        total, count = wide.cumsum(dim), real.cumsum(dim)
    else:
        total, count = wide.sum(dim, keepdim=True), real.sum(dim, keepdim=True)
    return (total / count.clamp(min=1)).expand_as(x).to(x.dtype)
