"""Do recorded activations obey the equations of attention, as far as their data type allows?"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.hooks.sites import AttentionSite

__all__ = ["autocast_dtype", "mismatch", "mix", "project", "tolerance"]

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 3e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def tolerance(*tensors: Tensor) -> float:
    """Largest mismatch that the coarsest data type explains: of the tensors, or of an autocast region around us."""
    dtypes = {t.dtype for t in tensors} | {autocast_dtype(t.device) for t in tensors}
    return max(_TOLERANCES.get(dtype, 3e-4) for dtype in dtypes)


def autocast_dtype(device: torch.device) -> torch.dtype:
    """What an autocast region rounds products to, float64 outside of one."""
    kind = device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return torch.float64
    return torch.get_autocast_dtype(kind)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it has that already."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def mismatch(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest magnitude of the expected tensor."""
    difference = (wide(found) - wide(expected)).abs().max()
    scale = wide(expected).abs().max()
    return float(difference / scale) if scale > 0 else float(difference)


def mix(
    pattern: Float[Tensor, "batch head query key"], v: Float[Tensor, "batch key kv_head d_head"]
) -> Float[Tensor, "batch query head d_head"]:
    """Mix values: pattern @ v, values repeated for the query heads that share them."""
    repeated = wide(v).repeat_interleave(pattern.shape[1] // v.shape[2], dim=2)
    return torch.einsum("bhqk,bkhd->bqhd", wide(pattern).to(repeated.dtype), repeated)


def project(
    site: AttentionSite, z: Float[Tensor, "batch query head d_head"]
) -> Float[Tensor, "batch query d_model"]:
    """Output of the attention layer before anything else happens to it: z W_O + b_O."""
    output = torch.einsum("bqhd,hdm->bqm", wide(z), wide(site.W_O).to(wide(z).dtype))
    return output if site.b_O is None else output + wide(site.b_O)
