"""Remove entries of the attention, chosen by a mask or by an importance.

Masking an entry (head, query, key) takes its term alpha_ij v_j W_O out of the layer's output; nothing is renormalised.

Source: Cunningham & Muca Cirone, arXiv 2606.07604.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.ablations.editing import Edit, LayerInForward, edit_hooks
from tl_geometry.ablations.targets import Heads, Layers, Target, targets
from tl_geometry.arguments import one_of
from tl_geometry.hooks import AttentionSite
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.hooks.frames import Frames
from tl_geometry.hooks.real_tokens import Mask
from tl_geometry.measures.devices import check_numbers, no_autocast, upload
from tl_geometry.measures.geometry import AttentionGeometry, Mode
from tl_geometry.measures.importances import (
    IMPORTANCES,
    Importance,
    layer_importance,
    random_importance,
)
from tl_geometry.measures.masks import SinkRule
from tl_geometry.measures.selection import Scope, check_fraction, select_entries

__all__ = ["EntryMask", "EntryMasker", "EntryScores", "mask_entries"]

EntryMask: TypeAlias = Tensor | Mapping[int | str, Tensor]
"""True where an entry goes: ``batch head query key`` (or what broadcasts to it) for all layers, or by layer."""

EntryScores: TypeAlias = Importance | Callable[[AttentionGeometry], Tensor]
"""Name of an importance, or a function that scores every entry of a layer (``batch head query key``)."""

_WHY = "choosing entries needs the attention weights first"
_INSTEAD = "Load the model as a HookedTransformer, or remove whole tokens with mask_tokens or heads with remove_heads"


def mask_entries(
    model: Any,
    mask: EntryMask | None = None,
    importance: EntryScores | None = None,
    fraction: float | int | None = None,
    largest: bool = True,
    scope: Scope = "query",
    mode: Mode = "inter",
    reference: Literal["online", "clean"] = "online",
    absolute: bool = False,
    *,
    layers: Layers = None,
    heads: Heads = None,
    sink: SinkRule = "first",
    attention_mask: Mask = None,
    decoder_attention_mask: Mask = None,
    cache: Any = None,
    seed: int = 0,
    documents: Sequence[int] | None = None,
) -> list[FwdHook]:
    """Remove attention entries: those of a mask, or a share of them by importance.

    >>> hooks = mask_entries(model, importance="contribution", fraction=0.05)
    >>> model.run_with_hooks(tokens, fwd_hooks=hooks, return_type="loss")

    Entries of rows whose query is a sink are never chosen by an importance. The others of each
    ``scope`` are ranked by falling importance, equal ones by head, query and key; ``largest`` removes
    the first floor(fraction n) (comprehensiveness), else the last (sufficiency).

    Args:
        model: a HookedTransformer or TransformerBridge.
        mask: what goes, literally; instead of an importance.
        importance: ``"attention"``, ``"value_weighted"``, ``"value_weighted_normalized"``,
            ``"contribution"``, ``"random"``, or a function of a layer's
            :class:`tl_geometry.measures.AttentionGeometry` that scores ``batch head query key``.
        fraction: share of the entries that goes, in [0, 1].
        scope: what is ranked together, within one document and layer: ``"row"`` (one head, one
            query), ``"query"`` (one query, all heads), ``"head"``, ``"layer"``, ``"token"`` (whole
            keys, by the sum of their importance).
        mode: whose output an importance refers to, the head's (``"intra"``) or the layer's.
        reference: ``"online"`` ranks by the masked run's own activations, layer by layer; ``"clean"``
            by those of ``cache``, from the run without the mask.
        absolute: rank contributions by their absolute value.
        layers, heads: as in :func:`zero_sink_values`; only entries of these heads are ranked.
        sink: which keys are sinks.
        attention_mask, decoder_attention_mask: as in :func:`zero_sink_values`.
        cache: for ``"clean"``, an ``ActivationCache`` or dict of hook names of the same tokens.
        seed: of ``"random"``.
        documents: numbers of the rows within a corpus, which seed ``"random"``.

    Returns:
        ``fwd_hooks`` for ``run_with_hooks`` or ``model.hooks``.

    Raises:
        ValueError: neither mask nor importance, or both; a fraction outside [0, 1]; an unknown scope,
            mode or importance; a layer whose pattern can't be edited. While the model runs: a mask or
            scores of another shape.
    """
    if (mask is None) == (importance is None):
        raise ValueError("give either mask= or importance= with fraction=")
    if mask is not None:
        if fraction is not None:
            raise ValueError("fraction goes with importance=; a mask says itself what is removed")
        edits = []
        if layers is None and isinstance(mask, Mapping):
            layers = list(mask)
        for target in targets("mask_entries", model, layers, heads):
            target.require_pattern("mask_entries", _WHY, _INSTEAD)
            gone = _literal_edit(_of_layer(mask, target))
            edits.append((target, Edit(pattern=gone, needs_tokens=False)))
        return edit_hooks("mask_entries", model, edits, attention_mask, decoder_attention_mask)
    if fraction is None or importance is None:
        raise ValueError("importance= needs fraction=, the share of entries to remove")
    masker = EntryMasker(
        model,
        importance,
        fraction,
        largest=largest,
        scope=scope,
        mode=mode,
        absolute=absolute,
        layers=layers,
        heads=heads,
        sink=sink,
        seed=seed,
    )
    one_of("reference", reference, ("online", "clean"))
    if reference == "clean" and cache is None:
        raise ValueError(
            'reference="clean" ranks by a run without the mask: give its activations, '
            "cache=model.run_with_cache(tokens)[1]"
        )
    return masker.hooks(
        attention_mask,
        decoder_attention_mask,
        documents=documents,
        cache=cache if reference == "clean" else None,
    )


class EntryMasker:
    """Hooks that remove a share of the entries by importance, batch after batch of a corpus.

    >>> masker = EntryMasker(model, "attention", 0.1)
    >>> model.run_with_hooks(tokens, fwd_hooks=masker.hooks(attention_mask))

    Arguments and errors as in :func:`mask_entries`.
    """

    def __init__(
        self,
        model: Any,
        importance: EntryScores,
        fraction: float | int,
        *,
        largest: bool = True,
        scope: Scope = "query",
        mode: Mode = "inter",
        absolute: bool = False,
        layers: Layers = None,
        heads: Heads = None,
        sink: SinkRule = "first",
        seed: int = 0,
    ) -> None:
        if not callable(importance):
            one_of("importance", importance, IMPORTANCES)
        one_of("scope", scope, get_args(Scope))
        one_of("mode", mode, ("intra", "inter"))
        self.model = model
        self.importance, self.fraction = importance, check_fraction(fraction)
        self.largest, self.scope, self.mode, self.absolute = largest, scope, mode, absolute
        self.sink, self.seed = sink, seed
        self.targets = targets("mask_entries", model, layers, heads)
        for target in self.targets:
            target.require_pattern("mask_entries", _WHY, _INSTEAD)
        self.frames = Frames([target.site for target in self.targets])

    def hooks(
        self,
        attention_mask: Mask = None,
        decoder_attention_mask: Mask = None,
        *,
        documents: Sequence[int] | None = None,
        cache: Any = None,
    ) -> list[FwdHook]:
        """Forward hooks for one batch."""
        self.frames.refresh()

        def edit(pattern: Tensor, layer: LayerInForward) -> Tensor:
            if self.fraction == 0:
                return pattern
            return pattern.masked_fill(self._chosen(pattern, layer, documents, cache), 0)

        edits = [(target, Edit(pattern=edit)) for target in self.targets]
        return edit_hooks("mask_entries", self.model, edits, attention_mask, decoder_attention_mask)

    def _chosen(
        self, pattern: Tensor, layer: LayerInForward, documents: Sequence[int] | None, cache: Any
    ) -> Bool[Tensor, "batch head query key"]:
        """The entries of one layer that go."""
        site, report = layer.target.site, layer.target.report
        v = layer.v
        if cache is not None:
            names = (site.pattern_hook, site.v_hook)
            missing = sorted(set(names) - set(cache.keys()))
            if missing:
                raise ValueError(f"cache has no {', '.join(missing)}: cache these hooks too")
            clean, v = (cache[name].to(pattern.device) for name in names)
            if clean.shape != pattern.shape:
                raise ValueError(
                    f"cache holds a pattern of shape {tuple(clean.shape)}, the run has {tuple(pattern.shape)}: it must "
                    "come from the same tokens"
                )
            pattern = clean
        if v is None:
            raise RuntimeError(
                f"mask_entries: hook_v of layer {site.layer} did not fire before its pattern"
            )
        batch, n_heads, n_query, n_key = pattern.shape
        with torch.no_grad(), no_autocast(pattern.device):
            geometry = AttentionGeometry(
                pattern.detach(),
                v.detach(),
                site.W_O,
                available=layer.available(batch, n_query, n_key, pattern.device),
                sink=self.sink,
                cross=site.cross,
                causal=report.causal and not site.cross,
                frame=self.frames.of(site),
                masked=True,
                layer=site.index,
                documents=documents,
            )
            candidates = geometry.available & ~geometry.sink_queries.unsqueeze(-1)
            if len(layer.target.heads) < n_heads:
                candidates = candidates & layer.target.head_mask(pattern.device)[:, None, None]
            return select_entries(
                self._scores(geometry),
                candidates.expand(pattern.shape),
                self.fraction,
                scope=self.scope,
                largest=self.largest,
                causal=geometry.causal,
            )

    def _scores(self, geometry: AttentionGeometry) -> Float[Tensor, "batch head query key"]:
        if callable(self.importance):
            scores: Any = self.importance(geometry)
            if not isinstance(scores, Tensor) or scores.shape != geometry.pattern.shape:
                shown = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise ValueError(
                    f"importance must score batch head query key {tuple(geometry.pattern.shape)}, got {shown}"
                )
            wide: Tensor = scores.to(geometry.dtype)
            return wide
        if self.importance == "random":
            return random_importance(geometry, self.seed)
        return layer_importance(geometry, self.importance, self.mode, absolute=self.absolute)


def _of_layer(mask: EntryMask, target: Target) -> Tensor:
    site: AttentionSite = target.site
    found = mask.get(site.layer) if isinstance(mask, Mapping) else mask
    if not isinstance(found, Tensor) or found.dtype != torch.bool:
        what = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(
            f"mask must be a bool tensor (batch head query key), or a mapping with one for layer {site.layer!r}; "
            f"got {what}"
        )
    check_numbers("mask", found, "they say which entries go")
    return found


def _literal_edit(mask: Tensor) -> Callable[[Tensor, LayerInForward], Tensor]:
    def edit(pattern: Tensor, layer: LayerInForward) -> Tensor:
        try:
            gone = upload(mask, pattern.device).expand(pattern.shape)
        except RuntimeError as error:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)}, which does not broadcast to the pattern of layer "
                f"{layer.target.site.layer}, batch head query key {tuple(pattern.shape)}"
            ) from error
        heads = layer.target.head_mask(pattern.device)[:, None, None]
        return pattern.masked_fill(gone & heads, 0)

    return edit
