"""Variants of a run from which heads were removed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from tl_geometry.ablations import remove_heads
from tl_geometry.analysis.results import kept_heads
from tl_geometry.data import Batch
from tl_geometry.evaluation.runs import Variant
from tl_geometry.hooks import AttentionSite, attention_sites, select_sites
from tl_geometry.hooks.entries import FwdHook

__all__ = ["Head", "RemovalMode", "chosen_heads", "head_name", "without_heads"]

Head: TypeAlias = tuple[int | str, int]
"""Label of a layer, and number of a head in it."""

RemovalMode: TypeAlias = Literal["zero", "mean"]


def head_name(head: Head) -> str:
    """Short name of a head.

    >>> head_name((0, 12)), head_name(("encoder_blocks.0.attn", 3))
    ('L0H12', 'encoder_blocks.0.attn H3')
    """
    layer, number = head
    return f"L{layer}H{number}" if isinstance(layer, int) else f"{layer} H{number}"


def without_heads(
    model: Any, name: str, heads: Sequence[Head], mode: RemovalMode = "zero"
) -> Variant:
    """The variant of a run from which some heads are removed; the blocks before them stay as they are."""
    layers = [layer for layer, _ in heads]
    numbered = [layer for layer in layers if isinstance(layer, int)]
    first = min(numbered) if len(numbered) == len(layers) else None
    return Variant(name, partial(_removal, model=model, heads=tuple(heads), mode=mode), first)


def chosen_heads(
    model: Any,
    layers: Iterable[int | str] | int | str | None = None,
    heads: Iterable[Any] | None = None,
) -> tuple[list[AttentionSite], list[Head]]:
    """The attention layers and heads that are meant, in forward order; all of them by default.

    Raises:
        ValueError: nothing named, an unknown layer or head, or a layer on which a removal would
            change nothing.
    """
    named = None if heads is None else list(heads)
    if named is not None and not named:
        raise ValueError("heads is empty: name at least one (layer, head), or leave it out")
    for entry in named or []:
        if not (isinstance(entry, (tuple, list)) and len(entry) == 2):
            raise ValueError(f"heads must hold (layer, head) pairs, got {entry!r}")
    if layers is None and named is not None:
        layers = list(dict.fromkeys(layer for layer, _ in named))
    sites = select_sites(attention_sites(model), layers)
    kept = kept_heads(sites, named, ())
    chosen = [(sites[row].layer, head) for row, head in kept.nonzero().tolist()]
    remove_heads(model, chosen)  # refuses what can't be edited before anything is run
    return sites, chosen


def _removal(
    batch: Batch, *, model: Any, heads: Sequence[Head], mode: RemovalMode
) -> list[FwdHook]:
    return remove_heads(model, heads, mode, attention_mask=batch.attention_mask)
