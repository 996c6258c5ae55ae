"""How the same questions are answered elsewhere, written from the published formulas without a shortcut.

What each of them needs is stated in its shape: projected values ``batch key head d_model``, weighted projected values
``batch head query key d_model``, or one forward per token. Tests compare each with this package's own numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.hooks import AttentionSite, attention_sites


def projected_values(
    v: Float[Tensor, "batch key kv_head d_head"], W_O: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "batch key head d_model"]:
    """v_j W_O of every query head, written out."""
    v = v.repeat_interleave(W_O.shape[0] // v.shape[2], dim=2)
    return torch.einsum("bkhd,hdm->bkhm", v, W_O)


def contributions_of_layer(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
) -> dict[str, Tensor]:
    """Contribution weights of both modes, and the factors of intra mode, as matrices ``batch head query key``.

    c_ij = <o_i, alpha_ij v_j W_O> / |o_i|^2 with o_i of the head (intra) or of the layer (inter), each product one
    einsum over d_model.
    """
    values = projected_values(v, W_O)
    heads = torch.einsum("bhqk,bkhm->bqhm", pattern, values)
    layer = heads.sum(2)
    along_head = torch.einsum("bqhm,bkhm->bhqk", heads, values)
    along_layer = torch.einsum("bqm,bkhm->bhqk", layer, values)
    lengths = heads.norm(dim=-1).transpose(1, 2).unsqueeze(-1)
    value_lengths = values.norm(dim=-1).transpose(1, 2).unsqueeze(-2)
    return {
        "intra": pattern * along_head / lengths.square(),
        "inter": pattern * along_layer / layer.norm(dim=-1)[:, None, :, None].square(),
        "relative_norm": value_lengths / lengths,
        "cosine": along_head / (lengths * value_lengths),
        "length": lengths.squeeze(-1),
    }


def reduced(pattern: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Means over the queries of each document and head, under the names of :class:`tl_geometry.Contributions`.

    The first token is the sink; sink statistics are over the later queries.
    """
    intra, inter = found["intra"], found["inter"]
    per_row = {
        "contribution_self": intra.diagonal(dim1=-2, dim2=-1),
        "contribution_negative": intra.clamp(max=0).sum(-1).neg(),
        "contribution_attention_distance": (intra - pattern).abs().sum(-1) / 2,
        "contribution_relative_norm": (pattern * found["relative_norm"]).sum(-1),
        "contribution_cosine": (pattern * found["cosine"]).sum(-1),
        "contribution_inter": inter.sum(-1),
        "contribution_inter_negative": inter.clamp(max=0).sum(-1).neg(),
        "output_norm": found["length"],
        "contribution_sink": intra[:, :, 1:, 0],
        "contribution_inter_sink": inter[:, :, 1:, 0],
    }
    return {name: rows.mean(-1) for name, rows in per_row.items()}


@torch.no_grad()
def cached_contributions(
    model: Any, tokens: Tensor, return_type: str | None = "logits"
) -> dict[str, Float[Tensor, "layer head"]]:
    """What :class:`tl_geometry.Contributions` gives, by ``run_with_cache`` and one layer after the other.

    All is cached, as that call does when nothing is said.
    """
    sites = attention_sites(model)
    _, cache = model.run_with_cache(tokens, return_type=return_type)
    layers = []
    for site in sites:
        pattern = cache[site.pattern_hook]
        found = contributions_of_layer(pattern, cache[site.v_hook], site.W_O)
        layers.append(reduced(pattern, found))
    return {name: torch.stack([layer[name].mean(0) for layer in layers]) for name in layers[0]}


def norm_analysis(
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
) -> Float[Tensor, "batch head query key"]:
    """The norms |alpha_ij f(x_j)| of the weighted, transformed vectors, each of which is written out.

    Source: Kobayashi, Kuribayashi, Yokoi & Inui, "Attention is Not Only a Weight", EMNLP 2020, arXiv 2004.10102.
    """
    transformed = projected_values(v, W_O).transpose(1, 2)
    weighted = pattern.unsqueeze(-1) * transformed.unsqueeze(2)
    return weighted.norm(dim=-1)


@torch.no_grad()
def value_zeroing(
    model: Any,
    tokens: Tensor,
    positions: Sequence[int],
    layers: Sequence[AttentionSite] | None = None,
    at_once: int = 1,
) -> Float[Tensor, "position query"]:
    """Cosine distance of each token's last residual stream from what it is when one token's value is zero.

    One forward per position, in which that token's value is zero in all heads of the layers (all of them by
    default) while the attention stays; ``at_once`` of these forwards share a batch. Source: Mohebbi, Zuidema,
    Chrupala & Alishahi, "Quantifying Context Mixing in Transformers", EACL 2023, arXiv 2301.12971, who zero the
    value in one layer at a time, which takes a forward per token and layer.
    """
    sites = attention_sites(model) if layers is None else list(layers)
    last = f"{attention_sites(model)[-1].name.rpartition('.')[0]}.hook_resid_post"
    intact = _residual(model, tokens, last, [])
    found = []
    for start in range(0, len(positions), at_once):
        some = torch.as_tensor(positions[start : start + at_once])

        def zero(v: Tensor, hook: Any, some: Tensor = some) -> Tensor:
            v = v.clone()
            v[torch.arange(len(some)), some] = 0
            return v

        hooks = [(site.v_hook, zero) for site in sites]
        changed = _residual(model, tokens.expand(len(some), -1), last, hooks)
        found.append(1 - torch.cosine_similarity(changed, intact, dim=-1))
    return torch.cat(found)


def _residual(model: Any, tokens: Tensor, name: str, hooks: list[Any]) -> Tensor:
    """The activation of one hook in a run with other hooks."""
    seen: list[Tensor] = []
    keep = (name, lambda x, hook: seen.append(x))
    model.run_with_hooks(tokens, fwd_hooks=[*hooks, keep], return_type=None)
    return seen[0]
