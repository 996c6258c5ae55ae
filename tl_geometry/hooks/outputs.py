"""What becomes of z W_O + b_O on its way to the residual stream."""

from __future__ import annotations

import dataclasses

from jaxtyping import Float
from torch import Tensor

from tl_geometry.hooks.agreement import mismatch, project, tolerance, wide
from tl_geometry.hooks.norms import apply_norm
from tl_geometry.hooks.probe_run import Recording
from tl_geometry.hooks.report import LayerReport
from tl_geometry.hooks.sites import AttentionSite

__all__ = ["judge_output"]


def judge_output(site: AttentionSite, base: Recording, report: LayerReport) -> LayerReport:
    """Complete the report of a site with pattern @ v = z: exact, normed, scaled or unsupported."""
    z = base.values["z"]
    expected = project(site, z)
    allowed = tolerance(z, site.W_O)
    out = base.values.get("out", base.values.get("projected"))
    if out is None or out.shape != expected.shape:
        note = "no hook shows the layer's output, so z W_O + b_O was not compared with it"
        return _good(report, "exact", float("nan"), note)
    error = mismatch(expected, out)
    if error <= allowed:
        constant = _constant_behind(site)
        if constant != 1:
            return dataclasses.replace(_good(report, "scaled", error), output_scale=constant)
        return _good(report, "exact", error)
    norm = site.post_norm
    if norm is not None:
        normed = mismatch(apply_norm(norm, expected.to(out.dtype)), out)
        if normed <= 3 * allowed:
            return _good(report, "normed", normed)
    scale = float((expected * wide(out)).sum() / expected.square().sum())
    scaled = mismatch(scale * expected, out)
    if scaled <= allowed:
        return dataclasses.replace(_good(report, "scaled", scaled), output_scale=scale)
    projected = base.values.get("projected")
    if projected is not None and mismatch(expected, projected) <= allowed:
        place = _place_after_residual(site, base, expected, out)
        if place:
            note = f"{site.out_hook} shows {place}, to which z W_O + b_O is what attention adds"
            return _good(report, "exact", mismatch(expected, projected), note)
    reason = (
        f"z W_O + b_O differs from {site.out_hook} by {error:.2g} of its largest entry, and no "
        "norm of the block and no constant factor explains it; leave the layer out with layers="
    )
    return dataclasses.replace(report, output_error=error, reason=reason)


def _constant_behind(site: AttentionSite) -> float:
    """What the block multiplies its attention's output by, where that happens behind the output hook (Falcon-H1)."""
    block = getattr(site.block, "original_component", site.block)
    return float(getattr(block, "attn_out_multiplier", 1.0))


def _good(report: LayerReport, verdict: str, error: float, note: str = "") -> LayerReport:
    notes = "; ".join(text for text in (report.note, note) if text)
    return dataclasses.replace(report, verdict=verdict, output_error=error, note=notes)


def _place_after_residual(
    site: AttentionSite,
    base: Recording,
    expected: Float[Tensor, "batch query d_model"],
    out: Tensor,
) -> str:
    """Say what the output hook shows if it lies after the residual sum (BERT), else nothing."""
    residual = base.values.get("resid")
    if residual is None or residual.shape != expected.shape:
        return ""
    total = wide(residual) + expected
    allowed = tolerance(out, residual)
    if mismatch(total, out) <= allowed:
        return "the residual stream"
    for module in site.block.modules():
        kind = type(module).__name__
        if "norm" not in kind.lower() or hasattr(module, "original_component"):
            continue
        if mismatch(apply_norm(module, total.to(out.dtype)), out) <= 3 * allowed:
            return f"the {kind} of the residual stream"
    return ""
