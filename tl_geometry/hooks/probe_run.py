"""Short forwards of a model that record what its attention hooks show."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tl_geometry.hooks.sites import AttentionSite

__all__ = ["Recording", "record"]

KINDS = ("pattern", "v", "z")


@dataclass
class Recording:
    """What one site showed in one forward: its activations, as the hooks fired."""

    values: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """The hooks of attention that fired, first to last."""
        return tuple(kind for kind in self.values if kind in (*KINDS, "out"))

    def keep(self, kind: str, value: Tensor) -> None:
        """Copy the first activation of a kind and count the others."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.values.setdefault(
            kind, value.detach().clone()
        )  # the model may overwrite its own buffer later


def record(
    model: Any,
    sites: Sequence[AttentionSite],
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    *,
    edit: str | None = None,
) -> list[Recording]:
    """One forward without gradients; with `edit`, that activation is set to zero at every site.

    >>> base = record(model, sites, inputs)
    >>> blind = record(model, sites, inputs, edit="pattern")

    Setting to zero is a test that stays local: whatever the layers before did, a pattern or values
    of zero give z = 0, and z = 0 gives an output that no longer depends on the token. So one
    forward tests all layers.

    The model's mode and its other hooks are left as they are; ours are removed even when the
    forward fails.
    """
    recordings = [Recording() for _ in sites]
    targets = _targets(model, sites, recordings)

    def wanted(name: str) -> bool:
        return name in targets

    def keep(value: object, hook: Any) -> Tensor | None:
        if not isinstance(value, Tensor):
            return None
        found = targets.get(hook.name, [])
        for recording, kind in found:
            recording.keep(kind, value)
        return torch.zeros_like(value) if edit in [kind for _, kind in found] else None

    args, kwargs = arguments
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A hook on .* returned a modified tensor")
        # One filter instead of a name per hook: TransformerBridge collects all of its hooks anew
        # for every entry of the list.
        model.run_with_hooks(*args, fwd_hooks=[(wanted, keep)], **kwargs)
    return recordings


def _targets(
    model: Any, sites: Sequence[AttentionSite], recordings: Sequence[Recording]
) -> dict[str, list[tuple[Recording, str]]]:
    """What to record where, by the canonical names that hook points carry themselves."""
    points = model.hook_dict
    targets: dict[str, list[tuple[Recording, str]]] = {}
    for site, recording in zip(sites, recordings, strict=True):
        for kind, name in _hook_names(site).items():
            if name in points:
                targets.setdefault(points[name].name, []).append((recording, kind))
    return targets


def _hook_names(site: AttentionSite) -> dict[str, str]:
    parent = site.name.rpartition(".")[0]
    names = {
        "resid": f"{parent}.hook_resid_pre",
        "v": site.v_hook,
        "pattern": site.pattern_hook,
        "z": site.z_hook,
        "projected": f"{site.name}.o.hook_out",  # TransformerBridge only: z W_O + b_O itself
    }
    return {**names, "out": site.out_hook} if site.out_hook is not None else names
