"""From what one site showed on the probe to a verdict with a reason."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from tl_geometry.hooks.agreement import mismatch, mix, tolerance, wide
from tl_geometry.hooks.decomposition import explain_difference, lasting_clip
from tl_geometry.hooks.outputs import judge_output
from tl_geometry.hooks.probe_run import KINDS, Recording
from tl_geometry.hooks.report import LayerReport
from tl_geometry.hooks.sites import AttentionSite
from tl_geometry.hooks.windows import attention_chunk

__all__ = ["attention_implementation", "judge"]

_EAGER = 'switch to eager attention: model.original_model.set_attn_implementation("eager")'
_LEAVE_OUT = "leave the layer out with layers="


def judge(site: AttentionSite, base: Recording) -> LayerReport:
    """Verdict on one site from its activations; edits are probed elsewhere.

    Each step goes on only while the one before held: the hooks fired once, shapes are those of
    multi-head attention, numbers are finite, pattern @ v = z, keys with weight are those that
    causality and window allow, and the output is z W_O + b_O up to a norm or a scale.
    """
    report = LayerReport(
        site.layer, site.name, "unsupported", window=site.window, fire_order=base.order
    )
    problem = _not_fired(site, base) or _wrong_shape(site, base) or _not_finite(base)
    if problem:
        return dataclasses.replace(report, reason=problem)
    pattern, v, z = (base.values[kind] for kind in KINDS)
    report = _with_rows(report, pattern)
    mixed = mix(pattern, v)
    error = mismatch(mixed, z)
    report = dataclasses.replace(report, decomposition_error=error)
    if error > tolerance(pattern, v, z):
        verdict, reason = explain_difference(site, pattern, v, z, mixed, error)
        return dataclasses.replace(report, verdict=verdict, reason=reason)
    clip = lasting_clip(site, v)
    if clip:
        return dataclasses.replace(report, verdict="clipped", reason=clip)
    chunk = attention_chunk(site.module)
    if chunk is not None:
        reason = f"attends in chunks of {chunk} tokens, so that most earlier keys are hidden; {_LEAVE_OUT}"
        return dataclasses.replace(report, reason=f"the layer {reason}")
    beyond, note = _visibility(site, pattern, report.causal)
    if beyond:
        return dataclasses.replace(report, reason=beyond)
    report = dataclasses.replace(report, note=note, hides_more=bool(note))
    return judge_output(site, base, report)


def _not_fired(site: AttentionSite, base: Recording) -> str:
    missing = [kind for kind in KINDS if kind not in base.values]
    if missing == ["pattern"]:
        used = attention_implementation(site.module)
        if used not in (None, "eager"):
            return (
                f"hook_pattern never fired: attention runs as {used!r}, without a pattern; {_EAGER}"
            )
        return f"hook_pattern never fired: the layer builds no attention pattern; {_LEAVE_OUT}"
    if missing:
        names = ", ".join(f"hook_{kind}" for kind in missing)
        return f"{names} never fired: shared with another layer, or fused away; {_LEAVE_OUT}"
    often = max(base.counts[kind] for kind in KINDS)
    if often > 1:
        return (
            f"hooks fire {often} times in one forward: the layer is used repeatedly; {_LEAVE_OUT}"
        )
    return ""


def attention_implementation(module: nn.Module) -> str | None:
    """How a wrapped model computes its attention ("eager", "sdpa", ...), None where nothing says so."""
    configs = (getattr(part, "config", None) for part in module.modules())
    used = (getattr(config, "_attn_implementation", None) for config in configs)
    return next((name for name in used if isinstance(name, str)), None)


def _wrong_shape(site: AttentionSite, base: Recording) -> str:
    pattern, v, z = (base.values[kind] for kind in KINDS)
    shown = f"pattern {tuple(pattern.shape)}, v {tuple(v.shape)}, z {tuple(z.shape)}"
    if pattern.ndim != 4 or v.ndim != 4 or z.ndim != 4:
        return f"{shown} are not all tensors of four axes split into heads; {_LEAVE_OUT}"
    batch, heads, query, key = pattern.shape
    fits = (
        v.shape == (batch, key, site.n_kv_heads, site.d_head)
        and z.shape == (batch, query, heads, site.d_head)
        and heads == site.n_heads
        and heads % site.n_kv_heads == 0
    )
    if not fits:
        what = ""
        if v.shape[1] == heads != key:
            what = "values come per query head, as in latent attention; "
        elif batch != z.shape[0]:
            what = "hook_pattern shows no attention weights (perhaps position biases); "
        return f"{shown} do not fit {site.n_heads} heads of {site.d_head}: {what}{_LEAVE_OUT}"
    if not site.cross and query != key:
        return f"{key} keys for {query} queries: another stack or a cache is mixed in; {_LEAVE_OUT}"
    return ""


def _not_finite(base: Recording) -> str:
    bad = [f"hook_{kind}" for kind in KINDS if not bool(base.values[kind].isfinite().all())]
    return f"NaN or infinity in {', '.join(bad)}: check weights and data type" if bad else ""


def _with_rows(report: LayerReport, pattern: Tensor) -> LayerReport:
    sums = wide(pattern).sum(-1)
    slack = 1e-4 if pattern.dtype in (torch.float32, torch.float64) else 3e-2
    square = pattern.shape[-1] == pattern.shape[-2]
    return dataclasses.replace(
        report,
        causal=square and bool(wide(pattern).triu(1).max() <= _NO_WEIGHT),
        rows_sum_to_one=bool((sums - 1).abs().max() <= slack),
        row_sum_min=float(sums.min()),
    )


_NO_WEIGHT = 1e-6  # additive masks leave exact zeros; this allows for unusually soft ones


def _visibility(site: AttentionSite, pattern: Tensor, causal: bool) -> tuple[str, str]:
    """Compare the keys that get weight with those that causality and window leave: reason, note."""
    if site.cross:
        return "", ""
    position = torch.arange(pattern.shape[-1], device=pattern.device)
    distance = position[:, None] - position[None, :]
    visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if site.window is not None:
        visible = visible & (distance < site.window)
    weight = wide(pattern).amax(dim=(0, 1))
    beyond = float(weight.masked_fill(visible, 0.0).max())
    if beyond > _NO_WEIGHT:
        return (
            f"the layer declares a window of {site.window}, but keys further back get weight "
            f"{beyond:.2g}; {_LEAVE_OUT}"
        ), ""
    attending = (
        weight.sum(-1, keepdim=True) > 0
    )  # rows of NaN scores, which some models show as zeros, say nothing
    hidden = (visible & attending & (weight == 0)).nonzero()
    if len(hidden):
        query, key = hidden[-1].tolist()
        return "", (
            f"no head gives weight to key {key} of query {query}, though causality and window "
            "leave it: the mask may hide more (chunks, prefixes); such keys count as available"
        )
    return "", ""
