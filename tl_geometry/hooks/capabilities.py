"""The doctor: what each attention layer of a model supports, measured on a short probe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tl_geometry.hooks.agreement import tolerance, wide
from tl_geometry.hooks.dropout import active_dropout
from tl_geometry.hooks.judgement import judge
from tl_geometry.hooks.probe_inputs import probe_arguments
from tl_geometry.hooks.probe_run import KINDS, Recording, record
from tl_geometry.hooks.processing import weight_processing
from tl_geometry.hooks.report import SUPPORTED, Doctor, LayerReport
from tl_geometry.hooks.sites import AttentionSite, attention_sites, select_sites

__all__ = ["SUPPORTED", "Doctor", "LayerReport", "doctor"]

_FORWARD_ERRORS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError)


def doctor(
    model: Any,
    *,
    inputs: Any = None,
    edits: bool = True,
    layers: Iterable[int | str] | int | str | None = None,
) -> Doctor:
    """Examine a model: which attention layers can be measured, and which hook edits take effect.

    >>> report = tlg.doctor(model)
    >>> report                                   # prints a table
    >>> report.ok, report.layers[0].verdict
    (True, 'exact')

    Runs one short forward (two rows of twelve tokens), and three more if `edits` is true, on the
    model as it is: same mode, same hooks of your own, no gradients. Nothing is left behind.

    `inputs`: what model.forward takes first, or a dict of its arguments, if made-up tokens will not
    do. `layers`: labels of the layers to examine, all by default.

    Raises: ValueError if the model has no attention layer, a label does not exist, or inputs can't
    be made up.
    """
    sites = select_sites(attention_sites(model), layers)
    processing = weight_processing(model, sites)
    dropped = active_dropout(model)
    if dropped is not None:
        reason = f"dropout is active ({dropped}), so every forward differs: call model.eval() first"
        reports = [
            LayerReport(s.layer, s.name, "unsupported", reason, window=s.window) for s in sites
        ]
        return Doctor(tuple(reports), processing)
    arguments = probe_arguments(model, inputs)
    base = _first_run(model, sites, arguments, made_up=inputs is None)
    reports = [judge(site, recording) for site, recording in zip(sites, base, strict=True)]
    if edits:
        reports = _with_edits(model, sites, arguments, base, reports)
    return Doctor(tuple(reports), processing, tuple(_warnings(reports, processing)))


def _first_run(
    model: Any,
    sites: Sequence[AttentionSite],
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    *,
    made_up: bool,
) -> list[Recording]:
    try:
        return record(model, sites, arguments)
    except _FORWARD_ERRORS as error:
        if not made_up:
            raise
        raise ValueError(
            f"inputs: {type(model).__name__} does not run on made-up tokens "
            f"({type(error).__name__}: {error}); give inputs=..., what model.forward takes first "
            "or a dict of its arguments"
        ) from error


def _with_edits(
    model: Any,
    sites: Sequence[AttentionSite],
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    base: Sequence[Recording],
    reports: Sequence[LayerReport],
) -> list[LayerReport]:
    effects: list[dict[str, bool | None]] = [{} for _ in sites]
    for kind in KINDS:
        edited = record(model, sites, arguments, edit=kind)
        for effect, before, after in zip(effects, base, edited, strict=True):
            effect[kind] = _took_effect(kind, before, after)
    return [dataclasses.replace(r, edits=e) for r, e in zip(reports, effects, strict=True)]


def _took_effect(kind: str, before: Recording, after: Recording) -> bool | None:
    """Whether setting an activation to zero was felt by the next one; None if not visible."""
    if kind != "z":
        z, old = after.values.get("z"), before.values.get("z")
        if kind not in after.values or z is None or old is None:
            return None
        return _size(z) <= tolerance(z) * _size(old)
    downstream = "projected" if "projected" in after.values else "out"
    out, old = after.values.get(downstream), before.values.get(downstream)
    if "z" not in after.values or out is None or old is None:
        return None
    return _size(out - out[:1, :1]) <= tolerance(out) * _size(old)


def _size(tensor: Tensor) -> float:
    return float(wide(tensor).abs().max())


def _warnings(
    reports: Sequence[LayerReport], processing: Mapping[str, bool | str | None]
) -> Iterable[str]:
    hiding = [str(r.layer) for r in reports if r.hides_more and r.supported]
    if hiding:
        yield (
            f"layers {_some(hiding)}: the mask may hide more than causality and window say (chunks, prefixes); "
            "such keys count as available"
        )
    lossy = [r for r in reports if r.row_sum_min == r.row_sum_min and not r.rows_sum_to_one]
    if lossy and processing["folded_value_biases"]:
        shown = _some([str(r.layer) for r in lossy])
        yield (
            f"attention rows of layers {shown} sum to less than 1 (learned sinks), but value "
            "biases were folded into b_O as if they summed to 1, so the model's outputs are off; "
            "give fold_value_biases=False where the weights are processed (from_pretrained or "
            "enable_compatibility_mode)"
        )


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:4]) + (", ..." if len(labels) > 4 else "")
