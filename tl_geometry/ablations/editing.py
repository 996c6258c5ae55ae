"""From edits of single layers to forward hooks that check themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tl_geometry.ablations.effect import EffectCheck, OutputCheck
from tl_geometry.ablations.targets import Target
from tl_geometry.hooks import attention_sites
from tl_geometry.hooks.entries import FwdHook, HookFunction, hook_entries
from tl_geometry.hooks.padding import PadToken
from tl_geometry.hooks.real_tokens import Mask, RealTokens, key_stack_of, stack_of
from tl_geometry.measures.devices import no_autocast, upload
from tl_geometry.measures.masks import attention_available

__all__ = ["Edit", "LayerInForward", "edit_hooks"]


@dataclass(frozen=True)
class Edit:
    """What an ablation does to one layer: functions of a hooked tensor that return a new one.

    Each is given the tensor and the :class:`LayerInForward` that it belongs to. ``needs_tokens`` says
    whether it asks that which tokens are real; an edit of z alone that doesn't works beside a KV cache.
    """

    v: Callable[[Tensor, LayerInForward], Tensor] | None = None
    pattern: Callable[[Tensor, LayerInForward], Tensor] | None = None
    z: Callable[[Tensor, LayerInForward], Tensor] | None = None
    needs_tokens: bool = True


class LayerInForward:
    """One layer of the forward that is running: its target, its masks, and its values once they are known."""

    def __init__(
        self,
        ablation: str,
        target: Target,
        edit: Edit,
        tokens: _Tokens,
        projected: str | None,
    ) -> None:
        self.ablation = ablation
        self.target = target
        self.edit = edit
        self.tokens = tokens
        self.v: Tensor | None = None
        where = f"{ablation}: layer {target.site.layer}"
        self.check = EffectCheck(where)
        self.output_hook = target.site.out_hook if projected is None else projected
        self.output_check = OutputCheck(
            where, target.site, target.report, projected=projected is not None
        )

    def functions(self) -> dict[str, HookFunction]:
        """Functions by hook name."""
        site, edit = self.target.site, self.edit
        found: dict[str, Callable[[Tensor], Tensor | None]] = {site.z_hook: self._on_z}
        if edit.v is not None or edit.pattern is not None or edit.needs_tokens:
            found |= {site.v_hook: self._on_v, site.pattern_hook: self._on_pattern}
        if edit.z is not None and self.output_hook is not None:
            found[self.output_hook] = self.output_check.compare
        return {name: partial(_in_full_precision, function) for name, function in found.items()}

    def real_keys(self, batch: int, n: int, device: torch.device) -> Bool[Tensor, "batch key"]:
        """Keys that are real tokens."""
        mask = self.tokens.real("key", key_stack_of(self.target.site), batch, n)
        if mask is None:
            return torch.ones(batch, n, dtype=torch.bool, device=device)
        return upload(mask, device)

    def real_queries(self, batch: int, n: int, device: torch.device) -> Bool[Tensor, "batch query"]:
        """Queries that are real tokens."""
        mask = self.tokens.real("query", stack_of(self.target.site), batch, n)
        if mask is None:
            return torch.ones(batch, n, dtype=torch.bool, device=device)
        return upload(mask, device)

    def available(
        self, batch: int, n_query: int, n_key: int, device: torch.device
    ) -> Bool[Tensor, "batch 1 query key"]:
        """Entries of the pattern that padding, causality and the window leave."""
        report = self.target.report
        return attention_available(
            n_query=n_query,
            n_key=n_key,
            query_mask=self.real_queries(batch, n_query, device),
            key_mask=self.real_keys(batch, n_key, device),
            causal=report.causal and not self.target.site.cross,
            window=report.window,
            device=device,
        )

    def _on_v(self, v: Tensor) -> Tensor | None:
        edited = None if self.edit.v is None else self.edit.v(v, self).to(v.dtype)
        self.v = v if edited is None else edited
        self.check.start(v, self.v)
        return edited

    def _on_pattern(self, pattern: Tensor) -> Tensor | None:
        if not self.target.site.cross and pattern.shape[-1] != pattern.shape[-2]:
            raise ValueError(
                f"{self.ablation}: the pattern has {pattern.shape[-2]} queries and {pattern.shape[-1]} keys: with a "
                "KV cache the earlier values are out of reach; run the full text uncached (use_past_kv_cache=False)"
            )
        edited = None
        if self.edit.pattern is not None:
            edited = self.edit.pattern(pattern, self).to(pattern.dtype)
        self.check.mix(pattern, pattern if edited is None else edited)
        return edited

    def _on_z(self, z: Tensor) -> Tensor | None:
        edited = None
        if self.edit.z is not None:
            edited = self.edit.z(z, self).to(z.dtype)
            self.output_check.start(z, edited)
        else:
            self.check.compare(z, weights_edited=self.edit.pattern is not None)
        self.v = None
        return edited


def _in_full_precision(
    function: Callable[[Tensor], Tensor | None],
    x: Tensor,
    hook: Any,  # noqa: ARG001
) -> Tensor | None:
    with no_autocast(x.device):
        return function(x)


def edit_hooks(
    ablation: str,
    model: Any,
    edits: Sequence[tuple[Target, Edit]],
    attention_mask: Mask = None,
    decoder_attention_mask: Mask = None,
) -> list[FwdHook]:
    """Forward hooks for an ablation of some layers.

    Raises:
        TypeError, ValueError: a mask that is none.
    """
    # Only a decoder's mask has to know which stacks of blocks there are.
    sites = [] if decoder_attention_mask is None else attention_sites(model)
    tokens = _Tokens(sites, attention_mask, decoder_attention_mask, PadToken.of(model))
    functions: dict[str, HookFunction] = {}
    points = model.hook_dict if any(edit.z is not None for _, edit in edits) else {}
    for target, edit in edits:
        projected = f"{target.site.name}.o.hook_out"  # of a TransformerBridge
        output = projected if projected in points else None
        functions |= LayerInForward(ablation, target, edit, tokens, output).functions()
    entries = hook_entries(model, functions)
    if tokens.hook is None or not any(edit.needs_tokens for _, edit in edits):
        return entries
    return [(tokens.hook, tokens.look), *entries]


class _Tokens(RealTokens):
    """Real tokens for edits, which come before the first pattern could show what the model masks."""

    def look(self, seen: Tensor, hook: Any = None) -> None:
        super().look(seen, hook)
        leading = None if self._pad is None else self._pad.leading(seen)
        if leading is not None and bool(leading.any()):
            rows = leading.any(-1).nonzero().flatten().tolist()
            raise ValueError(
                f"the rows {rows[:8]} begin with pad tokens, and no attention_mask was given: give the one that the "
                "model gets, or all ones if these tokens are meant"
            )
