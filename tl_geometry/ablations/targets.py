"""What an ablation aims at: layers and heads that exist, and that an edit can reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from tl_geometry.hooks import AttentionSite, LayerReport, attention_sites, select_sites
from tl_geometry.hooks.examined import examined
from tl_geometry.measures.devices import upload

__all__ = ["Heads", "Layers", "Per", "Target", "targets"]

Label: TypeAlias = SupportsIndex | str
Layers: TypeAlias = Iterable[Label] | Label | None
Heads: TypeAlias = Iterable[tuple[Label, SupportsIndex]] | None
Per: TypeAlias = Literal["query_head", "kv_head"]


@dataclass(frozen=True, eq=False)
class Target:
    """One layer that is to be edited, and the query heads that are meant."""

    site: AttentionSite
    report: LayerReport
    heads: tuple[int, ...]

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """The value heads that the query heads read."""
        group = self.site.n_heads // self.site.n_kv_heads
        return tuple(sorted({head // group for head in self.heads}))

    @property
    def whole_groups(self) -> bool:
        """Whether no other query head reads the values of those that are meant."""
        group = self.site.n_heads // self.site.n_kv_heads
        return len(self.heads) == group * len(self.kv_heads)

    def head_mask(self, device: torch.device) -> Bool[Tensor, " head"]:
        """The query heads as a mask."""
        return _mask(self.site.n_heads, self.heads, device)

    def kv_mask(self, device: torch.device) -> Bool[Tensor, " kv_head"]:
        """Their value heads as a mask."""
        return _mask(self.site.n_kv_heads, self.kv_heads, device)

    def can(self, kind: Literal["pattern", "v", "z"]) -> bool:
        """Whether a hook that returns a new tensor there changes what follows."""
        return self.report.edits[kind] is not False and kind in self.report.fire_order

    def require_pattern(self, ablation: str, why: str, instead: str) -> None:
        """Refuse an ablation that has to edit attention weights where that changes nothing.

        Raises:
            ValueError: with the reason.
        """
        if not self.can("pattern"):
            raise ValueError(
                f"{ablation}: layer {self.site.layer} mixes its values before hook_pattern fires (its attention is "
                f"computed by the wrapped model), so editing the pattern would change nothing, and {why}. {instead}"
            )

    def require(self, ablation: str, kind: Literal["v", "z"]) -> None:
        """Refuse an edit of values or of mixed values where it changes nothing.

        Raises:
            ValueError: with the reason.
        """
        if not self.can(kind):
            raise ValueError(
                f"{ablation}: a new tensor at hook_{kind} of layer {self.site.layer} changes nothing that follows; "
                "leave the layer out with layers="
            )


def targets(ablation: str, model: Any, layers: Layers, heads: Heads) -> list[Target]:
    """The layers and heads that the caller named; every head of every layer for None.

    Raises:
        ValueError: an unknown layer or head, a head outside ``layers``, nothing named at all, or a
            layer whose attention can't be taken apart, with the doctor's reason.
    """
    sites = attention_sites(model)
    reports = {report.layer: report for report in examined(model, sites).layers}
    chosen = select_sites(sites, _labels(layers))
    named = None if heads is None else _by_layer(heads, chosen)
    if named is not None:
        chosen = [site for site in chosen if site.layer in named]
    for site in chosen:
        report = reports[site.layer]
        if not report.supported:
            raise ValueError(
                f"{ablation}: layer {site.layer} can't be edited: {report.reason}"
                f"{'' if 'layers=' in report.reason else '; or leave the layer out with layers='}"
            )
    return [
        Target(
            site,
            reports[site.layer],
            tuple(range(site.n_heads)) if named is None else named[site.layer],
        )
        for site in chosen
    ]


def _labels(layers: Any) -> list[int | str] | None:
    """Labels as plain ints and strings; numpy's integers are labels too."""
    if layers is None:
        return None
    single = isinstance(layers, (int, str)) or getattr(layers, "ndim", 1) == 0
    given = [layers] if single else list(layers)
    try:
        return [label if isinstance(label, str) else index(label) for label in given]
    except TypeError as error:
        raise TypeError(f"layers must be labels of layers (int or str), got {given!r}") from error


def _by_layer(heads: Heads, sites: list[AttentionSite]) -> dict[int | str, tuple[int, ...]]:
    counts = {site.layer: site.n_heads for site in sites}
    found: dict[int | str, set[int]] = {}
    for entry in heads or ():
        try:
            label, number = entry
            layer = label if isinstance(label, str) else index(label)
            head = index(number)
        except (TypeError, ValueError) as error:
            raise ValueError(f"heads must hold (layer, head) pairs, got {entry!r}") from error
        if layer not in counts:
            raise ValueError(f"heads: ({layer!r}, {head}) is in none of the layers {list(counts)}")
        if isinstance(number, bool) or not 0 <= head < counts[layer]:
            raise ValueError(
                f"heads: layer {layer!r} has the heads 0 to {counts[layer] - 1}, got {number!r}"
            )
        found.setdefault(layer, set()).add(head)
    if not found:
        raise ValueError("heads is empty: name at least one (layer, head), or leave it out")
    return {layer: tuple(sorted(named)) for layer, named in found.items()}


def _mask(n: int, chosen: tuple[int, ...], device: torch.device) -> Bool[Tensor, " n"]:
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(chosen)] = True
    return upload(mask, device)
