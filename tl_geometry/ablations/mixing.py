"""Move attention patterns towards simple ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.ablations.editing import Edit, LayerInForward, edit_hooks
from tl_geometry.ablations.targets import Heads, Layers, targets
from tl_geometry.ablations.tokens import Chosen
from tl_geometry.arguments import one_of, real_number
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.hooks.real_tokens import Mask
from tl_geometry.measures.devices import upload
from tl_geometry.measures.importances import document_noise
from tl_geometry.measures.masks import SinkRule

__all__ = ["MixTarget", "mix_pattern"]

MixTarget: TypeAlias = Literal["identity", "uniform", "sink", "permuted"]


def mix_pattern(
    model: Any,
    t: float | int,
    target: MixTarget = "identity",
    layers: Layers = None,
    heads: Heads = None,
    sink: SinkRule = "first",
    attention_mask: Mask = None,
    *,
    decoder_attention_mask: Mask = None,
    seed: int = 0,
    documents: Sequence[int] | None = None,
) -> list[FwdHook]:
    """Replace attention by (1 - t) attention + t target.

    >>> model.run_with_hooks(tokens, fwd_hooks=mix_pattern(model, 0.5, "uniform"), return_type="loss")

    Source: Sukenik et al., arXiv 2605.08453 (sparser or denser patterns against oversmoothing).

    Args:
        model: a HookedTransformer or TransformerBridge.
        t: share of the target, in [0, 1].
        target: ``"identity"``, each token attends to itself; ``"uniform"``, to all keys that it can
            see alike; ``"sink"``, to the sinks alone (rows that see none stay as they are);
            ``"permuted"``, the row's own weights on its visible keys in random order.
        sink: which keys are sinks, for ``"sink"``.
        seed: of ``"permuted"``; every layer has its own order.
        documents: numbers of the rows within a corpus, which seed ``"permuted"``; by default those
            within the batch.

    The rows of padding stay as they are. Where the wrapped model mixes its values before
    ``hook_pattern`` fires, z is edited instead, to (1 - t) z + t target v: the same numbers. Only
    ``"permuted"`` needs the attention weights themselves.

    Other arguments, hooks and errors as in :func:`zero_sink_values`; ValueError also for t outside
    [0, 1] and for ``"identity"`` in cross-attention, where no query is a key.
    """
    one_of("target", target, get_args(MixTarget))
    if not 0 <= (t := real_number("t", t)) <= 1:
        raise ValueError(f"t is a share of the target, so it must lie in [0, 1], got {t!r}")
    chosen = Chosen("mix_pattern", "sink", sink)
    edits = []
    for place in targets("mix_pattern", model, layers, heads):
        if place.site.cross and target == "identity":
            raise ValueError(
                f"mix_pattern: no query is a key in the cross-attention of layer {place.site.layer}; leave it out "
                "with layers="
            )
        if place.can("pattern"):
            edit = Edit(pattern=_weight_edit(t, target, chosen, seed, documents))
        else:
            if target == "permuted" or (target == "sink" and chosen.by_head):
                place.require_pattern(
                    "mix_pattern",
                    "permuting a row, or a sink that differs from head to head, needs its weights",
                    "Choose another target, or leave the layer out with layers=",
                )
            place.require("mix_pattern", "z")
            edit = Edit(z=_z_edit(t, target, chosen))
        edits.append((place, edit))
    return edit_hooks("mix_pattern", model, edits, attention_mask, decoder_attention_mask)


def _weight_edit(
    t: float, target: MixTarget, sink: Chosen, seed: int, documents: Sequence[int] | None
) -> Callable[[Tensor, LayerInForward], Tensor]:
    def edit(pattern: Tensor, layer: LayerInForward) -> Tensor:
        batch, n_heads, n_query, n_key = pattern.shape
        available = layer.available(batch, n_query, n_key, pattern.device)
        wide = pattern if pattern.dtype == torch.float64 else pattern.float()
        if target == "permuted":
            noise = document_noise(
                n_heads,
                available.any(-1)[:, 0],
                available.any(-2)[:, 0],
                seed=seed,
                layer=layer.target.site.index,
                documents=range(batch) if documents is None else documents,
            )
            goal = _permuted(wide, available, upload(noise, pattern.device))
            told = available.any(-1, keepdim=True)
        else:
            goal, told = _goal(target, sink, available, wide, layer)
        heads = layer.target.head_mask(pattern.device)[:, None, None]
        return torch.where(told & heads, torch.lerp(wide, goal.expand_as(wide), t), wide)

    return edit


def _z_edit(
    t: float, target: MixTarget, sink: Chosen
) -> Callable[[Tensor, LayerInForward], Tensor]:
    def edit(z: Tensor, layer: LayerInForward) -> Tensor:
        v = layer.v
        if v is None:
            raise RuntimeError(f"{layer.ablation}: hook_v did not fire before hook_z")
        batch, n_query, n_heads, _ = z.shape
        available = layer.available(batch, n_query, v.shape[1], z.device)
        wide = z if z.dtype == torch.float64 else z.float()
        shape_only = torch.empty((), dtype=wide.dtype, device=z.device).expand(
            batch, 1, n_query, v.shape[1]
        )
        goal, told = _goal(target, sink, available, shape_only, layer)
        mixed = torch.einsum("bqk,bkgd->bqgd", goal[:, 0], v.to(wide))
        mixed = mixed.repeat_interleave(n_heads // v.shape[2], 2)
        place = told[:, 0, :, :, None] & layer.target.head_mask(z.device)[:, None]
        return torch.where(place, torch.lerp(wide, mixed, t), wide)

    return edit


def _goal(
    target: MixTarget,
    sink: Chosen,
    available: Bool[Tensor, "batch 1 query key"],
    pattern: Tensor,
    layer: LayerInForward,
) -> tuple[Float[Tensor, "batch head_or_1 query key"], Bool[Tensor, "batch head_or_1 query 1"]]:
    """The pattern to move to, and the rows that have one."""
    if target == "identity":
        chosen = available & torch.eye(
            available.shape[-1], dtype=torch.bool, device=available.device
        )
    elif target == "uniform":
        chosen = available
    else:
        chosen = available & sink(available, pattern, layer).unsqueeze(-2)
    count = chosen.sum(-1, keepdim=True)
    return chosen.to(pattern) / count.clamp(min=1), count > 0


def _permuted(
    pattern: Float[Tensor, "batch head query key"],
    available: Bool[Tensor, "batch 1 query key"],
    noise: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """Each row's weights on its visible keys, sorted by random numbers in [0, 1) among themselves."""
    shuffled = noise.masked_fill(~available, 2).argsort(dim=-1, stable=True)
    in_order = (~available).expand_as(pattern).to(torch.uint8).argsort(dim=-1, stable=True)
    return torch.zeros_like(pattern).scatter(-1, in_order, pattern.gather(-1, shuffled))
