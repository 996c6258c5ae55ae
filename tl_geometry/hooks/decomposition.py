"""Why z is not pattern @ v: values that are clipped, gates, norms in between."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from tl_geometry.hooks.agreement import mismatch, mix, tolerance, wide
from tl_geometry.hooks.sites import AttentionSite

__all__ = ["explain_difference", "lasting_clip"]


def explain_difference(
    site: AttentionSite,
    pattern: Float[Tensor, "batch head query key"],
    v: Float[Tensor, "batch key kv_head d_head"],
    z: Float[Tensor, "batch query head d_head"],
    mixed: Float[Tensor, "batch query head d_head"],
    error: float,
) -> tuple[str, str]:
    """Verdict and reason for a layer whose z differs from `mixed` = pattern @ v by `error`.

    Clipping is recognised by clipping the values ourselves, a gate by z / mixed lying between 0
    and 1 everywhere.
    """
    allowed = tolerance(pattern, v, z)
    clip = clip_of(site.module)
    if clip is not None and mismatch(mix(pattern, v.clamp(-clip, clip)), z) <= allowed:
        return "clipped", _clipped(clip, v)
    found = f"pattern @ v differs from z by {error:.2g} of its largest entry"
    if _is_gated(z, mixed, allowed):
        return "gated", (
            f"{found}: a gate between 0 and 1 multiplies every entry of z before W_O, and shares "
            "of single keys would leave it out; leave the layer out with layers="
        )
    norms = _norms_inside(site.module)
    cause = f" ({norms} acts in between)" if norms else ""
    return "unsupported", f"{found}{cause}; leave the layer out with layers="


def lasting_clip(site: AttentionSite, v: Float[Tensor, "batch key kv_head d_head"]) -> str:
    """Reason to refuse a layer that clips values which the probe happened to leave within bounds.

    Empty if nothing is clipped, or if `hook_v` shows the values when that has already been done.
    """
    clip = clip_of(site.module)
    if clip is None or float(wide(v).abs().max()) >= clip * (1 - 1e-3):
        return ""
    return _clipped(clip, v)


def clip_of(module: nn.Module) -> float | None:
    """The bound to which a live attention module clips its values, None if it does not."""
    inner = getattr(module, "original_component", None)
    bridged = isinstance(inner, nn.Module)
    holders = (
        (inner, getattr(inner, "config", None)) if bridged else (getattr(module, "cfg", None),)
    )
    for holder in holders:
        bound = getattr(holder, "clip_qkv", None)
        if isinstance(bound, (int, float)) and bound > 0:
            return float(bound)
    return None


def _clipped(clip: float, v: Tensor) -> str:
    return (
        f"values are clipped to +-{clip:g} after hook_v (largest on the probe: "
        f"{float(wide(v).abs().max()):.3g}), so z is not pattern @ v wherever they exceed it; "
        "leave the layer out with layers="
    )


def _is_gated(z: Tensor, mixed: Tensor, allowed: float) -> bool:
    large = mixed.abs() > allowed * mixed.abs().max()
    ratio = wide(z)[large] / mixed[large]
    return bool(((ratio > -allowed) & (ratio < 1 + allowed)).all())


def _norms_inside(module: nn.Module) -> str:
    """Names of norms inside the attention module other than those of queries and keys."""
    inner = getattr(module, "original_component", module)
    names = {name for name, _ in (*module.named_children(), *inner.named_children())}
    return ", ".join(sorted(n for n in names if "norm" in n and not n.startswith(("q_", "k_"))))
