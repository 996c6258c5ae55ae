"""The norm modules of a block, applied outside a forward without firing anybody's hooks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tl_geometry.hooks.agreement import wide

__all__ = ["apply_norm", "is_neutral"]


@torch.no_grad()
def apply_norm(
    norm: nn.Module, x: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "batch pos d_model"]:
    """What a norm makes of x: the bare Hugging Face module, or HookedTransformer's formula.

    >>> apply_norm(site.post_norm, attention_output)
    """
    own = norm._parameters
    if "w" in own:  # HookedTransformer: calling the module would fire its hook points
        scaled = _normalised(norm, wide(x)) * wide(norm.get_parameter("w"))
        return scaled + wide(norm.get_parameter("b")) if "b" in own else scaled
    if type(norm).__name__.endswith("Pre"):  # the same, with scale and shift folded away
        return _normalised(norm, wide(x))
    inner = getattr(norm, "original_component", None)
    result: Tensor = (inner if isinstance(inner, nn.Module) else norm)(x)
    return result


def is_neutral(norm: nn.Module, d_model: int) -> bool | None:
    """Whether a norm only normalises, without scale or shift; None if it never had any.

    Scales are stored as w (neutral at 1) or as w with 1 + w meant (Gemma; neutral at 0), so the
    bare module of a TransformerBridge is tried out on a vector instead of read.
    """
    parameters = list(norm.parameters())
    if not parameters:
        return True if type(norm).__name__.endswith("Pre") else None
    like = parameters[0]
    x = torch.linspace(-1.0, 2.0, d_model, device=like.device).square().to(like.dtype)[None, None]
    found = wide(apply_norm(norm, x))
    slack = 1e-4 if like.dtype in (torch.float32, torch.float64) else 2e-2
    plain = (_root_mean_square(wide(x)), _root_mean_square(wide(x) - wide(x).mean()))
    return any(bool((found - candidate).abs().max() <= slack) for candidate in plain)


def _normalised(norm: nn.Module, x: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True) if "LayerNorm" in type(norm).__name__ else x
    return _root_mean_square(centered, float(getattr(norm, "eps", 0.0)))


def _root_mean_square(x: Tensor, eps: float = 0.0) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
