"""Attention of small HookedTransformers worked out from their parameters, without their forward.

For the variants that have no Hugging Face model: attention alone, ALiBi, learned sinks, and so on.

    layers = work_out(build_hooked("alibi"), tokens)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .huggingface import HFLayer

Weights = dict[str, Tensor]


@torch.no_grad()
def work_out(model: Any, tokens: Tensor) -> list[HFLayer]:
    """The attention layers of a HookedTransformer without grouped heads or rotary embeddings."""
    cfg, layers = model.cfg, []
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    n = tokens.shape[1]
    place = weights["pos_embed.W_pos"][:n] if "pos_embed.W_pos" in weights else None
    x = weights["embed.W_E"][tokens]
    if cfg.positional_embedding_type == "standard":
        x = x + place
    for index in range(cfg.n_layers):
        own = {
            name.removeprefix(f"blocks.{index}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"blocks.{index}.")
        }
        read = _norm(x, own, "ln1", cfg)
        located = read + place if cfg.positional_embedding_type == "shortformer" else read
        pattern = _pattern(located, own, cfg, index)
        v = torch.einsum("bkm,hmd->bkhd", read, own["attn.W_V"]) + own["attn.b_V"]
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        out = torch.einsum("bqhd,hdm->bqm", z, own["attn.W_O"]) + own["attn.b_O"]
        layers.append(
            HFLayer(f"blocks.{index}", pattern, v, own["attn.W_O"], own["attn.b_O"], z, out)
        )
        added = _norm(out, own, "ln1_post", cfg)
        if cfg.attn_only:
            x = x + added
            continue
        mlp = _norm(x if cfg.parallel_attn_mlp else x + added, own, "ln2", cfg)
        hidden = torch.nn.functional.gelu(mlp @ own["mlp.W_in"] + own["mlp.b_in"])
        written = _norm(hidden @ own["mlp.W_out"] + own["mlp.b_out"], own, "ln2_post", cfg)
        x = x + added + written
    return layers


def _pattern(x: Tensor, own: Weights, cfg: Any, index: int) -> Tensor:
    query = torch.einsum("bqm,hmd->bhqd", x, own["attn.W_Q"]) + own["attn.b_Q"][:, None]
    key = torch.einsum("bkm,hmd->bhkd", x, own["attn.W_K"]) + own["attn.b_K"][:, None]
    scores = query @ key.transpose(-1, -2) / math.sqrt(cfg.d_head)
    n = x.shape[1]
    distance = torch.arange(n)[:, None] - torch.arange(n)
    if cfg.positional_embedding_type == "alibi":
        slopes = torch.tensor([2.0 ** (-8 * (h + 1) / cfg.n_heads) for h in range(cfg.n_heads)])
        scores = scores - slopes[:, None, None] * distance.clamp(min=0)
    hidden = distance < 0 if cfg.attention_dir == "causal" else torch.zeros(n, n, dtype=torch.bool)
    if cfg.use_local_attn and cfg.attn_types[index] == "local":
        hidden = hidden | (distance >= cfg.window_size)
    weights = scores.masked_fill(hidden, -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    if "attn.sinks" in own:
        total = total + own["attn.sinks"].exp()[:, None, None]
    return weights / total


def _norm(x: Tensor, own: Weights, name: str, cfg: Any) -> Tensor:
    if f"{name}.w" not in own:
        return x
    centered = x if "RMS" in cfg.normalization_type else x - x.mean(-1, keepdim=True)
    scaled = centered / (centered.square().mean(-1, keepdim=True) + cfg.eps).sqrt()
    return scaled * own[f"{name}.w"] + own.get(f"{name}.b", torch.zeros(()))
