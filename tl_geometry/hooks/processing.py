"""How the weights of a model were processed when it was loaded, read off the live weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tl_geometry.hooks.agreement import wide
from tl_geometry.hooks.norms import is_neutral
from tl_geometry.hooks.sites import AttentionSite
from tl_geometry.hooks.weights import per_head_bias

__all__ = ["weight_processing"]


def weight_processing(model: Any, sites: Sequence[AttentionSite]) -> dict[str, bool | str | None]:
    """What was done to the weights: yes, no, or None where the weights do not tell.

    >>> weight_processing(model, attention_sites(model))
    {'model_class': 'HookedTransformer', ..., 'folded_layer_norm': True, ...}

    - folded_layer_norm: the norm before attention has no learned scale or shift left.
    - folded_value_biases: all value biases are zero while key biases are not (None for a model
      without such biases).
    - centered_writing_weights: the output matrices have mean zero over d_model.
    """
    bridge = hasattr(model, "original_model")
    return {
        "model_class": type(model).__name__,
        "backend": "TransformerBridge" if bridge else "HookedTransformer",
        "compatibility_mode": bool(getattr(model, "compatibility_mode", False)) if bridge else None,
        "folded_layer_norm": _all_or_none([_norm_is_neutral(site) for site in sites]),
        "folded_value_biases": _value_biases_folded(sites),
        "centered_writing_weights": all(_is_centered(site.W_O) for site in sites),
    }


def _norm_is_neutral(site: AttentionSite) -> bool | None:
    norm = getattr(site.block, "ln1", None)
    if not isinstance(norm, nn.Module) or norm is site.post_norm:
        return None
    return is_neutral(norm, site.d_model)


def _value_biases_folded(sites: Sequence[AttentionSite]) -> bool | None:
    values = [site.b_V for site in sites]
    if any(bias is not None and bool(bias.any()) for bias in values):
        return False
    keys = [per_head_bias(site.module, "K", site.n_kv_heads) for site in sites]
    return True if any(bias is not None and bool(bias.any()) for bias in keys) else None


def _is_centered(W_O: Tensor) -> bool:
    wide_W_O = wide(W_O)
    mean = wide_W_O.mean(-1).abs().max()
    slack = {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(W_O.dtype, 1e-5)
    return bool(mean <= slack * wide_W_O.abs().max())


def _all_or_none(answers: Sequence[bool | None]) -> bool | None:
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None
