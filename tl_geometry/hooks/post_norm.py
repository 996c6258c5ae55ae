"""The elementwise scale of a norm behind the attention, for contributions measured after it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tl_geometry.hooks.norms import apply_norm
from tl_geometry.hooks.sites import AttentionSite

__all__ = ["post_norm_scale"]


def post_norm_scale(site: AttentionSite) -> Float[Tensor, " d_model"] | None:
    """The factor w of ``norm(x) = x / rms(x) * w`` behind a layer's attention; None where no norm follows.

    Read off the norm's answer to a vector of ones, so it doesn't matter whether the model stores w
    or w - 1.

    Raises:
        ValueError: the norm also centres its input, so it is no elementwise scale.
    """
    norm = site.post_norm
    if norm is None:
        return None
    # Large enough that the norm's epsilon does not show.
    flat = torch.full((site.d_model,), 64.0, device=site.device, dtype=site.dtype)
    scale = apply_norm(norm, flat[None, None])[0, 0].detach()
    ramp = flat * torch.linspace(-1, 2, site.d_model, device=site.device).to(flat)
    expected = (ramp / ramp.float().square().mean().sqrt()).to(scale) * scale
    if not torch.allclose(apply_norm(norm, ramp[None, None])[0, 0], expected, rtol=2e-2, atol=1e-3):
        raise ValueError(
            f'layer {site.layer}: the norm behind the attention centres or shifts, which output="normed" does not '
            'support; use output="raw"'
        )
    return scale
