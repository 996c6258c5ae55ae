"""Take the values of chosen tokens out, or put something else in their place.

A value that all query heads of a group share is changed at ``hook_v``, where the attention stays as it
is. For single heads of a group the same change is made at ``hook_pattern``, so that their siblings
don't feel it: z is the same, and the attention to the token shows as what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_geometry.ablations.editing import Edit, LayerInForward, edit_hooks
from tl_geometry.ablations.targets import Heads, Layers, Per, Target, targets
from tl_geometry.arguments import one_of
from tl_geometry.hooks.entries import FwdHook
from tl_geometry.hooks.real_tokens import Mask, key_stack_of
from tl_geometry.measures.devices import check_numbers
from tl_geometry.measures.masks import SinkRule, resolve_sinks, sink_ordinals

__all__ = [
    "Change",
    "Chosen",
    "TokenChange",
    "drop",
    "mask_tokens",
    "renormalized",
    "scaled",
    "token_hooks",
]


Change: TypeAlias = Callable[[Tensor, Tensor, LayerInForward], Tensor]
"""From values or attention weights, the mask of what is chosen in them, and their layer to new ones."""


@dataclass(frozen=True)
class TokenChange:
    """One change of chosen tokens, as an edit of values and as one of attention weights.

    Attributes:
        v: for values; None where it takes attention weights.
        pattern: for attention weights, with the mask of chosen columns; None where only values can
            say it.
        why: why attention weights have to be edited, where ``v`` can't be used.
        instead: what the caller could do where that is impossible.
        causal_v: whether ``v`` is right in layers whose queries see different keys, too.
        check: refuses layers that the change does not fit.
    """

    v: Change | None
    pattern: Change | None
    why: str = ""
    instead: str = "Leave the layer out with layers="
    causal_v: bool = True
    check: Callable[[Target], None] | None = None

    def by_values(self, target: Target) -> bool:
        """Whether an edit of values can say it in this layer."""
        alike = not target.report.causal and target.report.window is None
        return self.v is not None and (self.causal_v or alike)


def scaled(factor: float | int) -> TokenChange:
    """Multiply the values of the chosen tokens, or the attention to them."""

    def change(x: Tensor, chosen: Tensor, layer: LayerInForward) -> Tensor:  # noqa: ARG001
        return x.masked_fill(chosen, 0) if factor == 0 else torch.where(chosen, x * factor, x)

    return TokenChange(change, change)


drop = scaled(0)
"""Remove the terms of the chosen tokens."""


def _renormalize(
    pattern: Float[Tensor, "batch head query key"],
    chosen: Bool[Tensor, "batch head 1 key"],
    layer: LayerInForward,
) -> Float[Tensor, "batch head query key"]:
    wide = pattern if pattern.dtype == torch.float64 else pattern.float()
    kept = wide.masked_fill(chosen, 0)
    rest = kept.sum(-1, keepdim=True)
    if not layer.target.report.rows_sum_to_one:  # a learned sink has the rest of each row
        rest = rest + (1 - wide.sum(-1, keepdim=True)).clamp(min=0)
    told = (rest > 0) & (kept != wide).any(-1, keepdim=True)
    return torch.where(told, kept / torch.where(told, rest, 1), wide)


renormalized = TokenChange(
    None, _renormalize, "dividing the rest of a row needs its attention weights"
)
"""Remove the chosen columns and divide what is left of each row by its sum; a row with no rest stays."""


def token_hooks(
    ablation: str,
    model: Any,
    change: TokenChange,
    *,
    tokens: SinkRule,
    layers: Layers = None,
    heads: Heads = None,
    attention_mask: Mask = None,
    decoder_attention_mask: Mask = None,
    per: Per = "query_head",
    weights_first: bool = False,
    argument: str = "sink",
) -> list[FwdHook]:
    """Forward hooks that make one change of the tokens that a rule chooses.

    Args:
        weights_first: edit attention weights where that works, values elsewhere.
        argument: what the caller's argument with the rule is called.

    Raises:
        TypeError: a rule that is none.
        ValueError: an edit that can't be made on one of the layers, with the reason.
    """
    one_of("per", per, ("query_head", "kv_head"))
    chosen = Chosen(ablation, argument, tokens)
    edits = []
    for target in targets(ablation, model, layers, heads):
        if change.check is not None:
            change.check(target)
        shared = per == "query_head" and not target.whole_groups
        # Where rows sum to less than one anyway, a missing column would look like padding to a probe.
        by_weights = weights_first and target.can("pattern") and target.report.rows_sum_to_one
        through_v = change.by_values(target) and not (by_weights or chosen.by_head or shared)
        if through_v and change.v is not None:
            target.require(ablation, "v")
            edits.append((target, Edit(v=partial(_edit_values, change.v, chosen))))
            continue
        if chosen.by_head:
            why = f"the tokens that {argument} names differ from head to head"
            instead = f"Name the same tokens for all heads in {argument}="
        elif not change.by_values(target):
            why, instead = change.why, change.instead
        else:
            why = "its query heads share the values of the heads named"
            instead = 'Name all heads of a group, or give per="kv_head" to change them all'
        if change.pattern is None:
            raise ValueError(
                f"{ablation}: in layer {target.site.layer} this takes new values, but {why}. {instead}"
            )
        target.require_pattern(ablation, why, instead)
        edits.append((target, Edit(pattern=partial(_edit_weights, change.pattern, chosen, per))))
    return edit_hooks(ablation, model, edits, attention_mask, decoder_attention_mask)


class Chosen:
    """The tokens that a rule chooses in a batch.

    Raises:
        TypeError: a rule that is none.
        ValueError: no token, or one below 0; when it is called, a token outside the sequence.
    """

    def __init__(self, ablation: str, argument: str, rule: SinkRule) -> None:
        self.ablation, self.argument, self.rule = ablation, argument, rule
        self._latest: dict[str, int] = {}  # the layer seen last, by the tokens that are its keys
        if isinstance(rule, str):
            one_of(argument, rule, ("first", "auto"))
        elif not isinstance(rule, Tensor) or rule.dtype != torch.bool:
            with self._named():
                ordinals = sink_ordinals(rule)
            if not ordinals or min(ordinals) < 0:
                raise ValueError(
                    f"{ablation}: {argument} names the tokens {ordinals}; give one or more, counted from 0"
                )
        else:
            check_numbers(f"{ablation}: {argument}", rule, "they say which tokens are meant")

    @property
    def by_head(self) -> bool:
        """Whether heads may differ in their tokens, so that only the pattern of each can be edited."""
        if isinstance(self.rule, Tensor):
            return self.rule.ndim == 3 and self.rule.shape[1] > 1
        return isinstance(self.rule, str) and self.rule == "auto"

    def __call__(
        self,
        available: Bool[Tensor, "batch head_or_1 query key"],
        pattern: Tensor,
        layer: LayerInForward,
    ) -> Bool[Tensor, "batch some_head key"]:
        """Mark the chosen keys; ``pattern`` gives shapes, and the weights for ``"auto"``.

        Whether there are any is asked in the first edited layer of a forward: the answer stops the host.
        """
        with self._named():
            keys = resolve_sinks(self.rule, available, pattern)
        site = layer.target.site
        latest = self._latest.get(stack := key_stack_of(site))
        self._latest[stack] = site.index
        begins = latest is None or site.index <= latest
        if begins and not (isinstance(self.rule, str) or bool(keys.any())):
            mask = isinstance(self.rule, Tensor) and self.rule.dtype == torch.bool
            shown = "the mask" if mask else f"{self.argument}={self.rule!r}"
            raise ValueError(
                f"{self.ablation}: {shown} names no real token of this batch, so nothing would be changed"
            )
        return keys

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say which ablation and which of its arguments an error is about."""
        try:
            yield
        except (TypeError, ValueError) as error:
            message = str(error).replace("sink", self.argument, 1)
            raise type(error)(f"{self.ablation}: {message}") from error


def _edit_values(change: Change, chosen: Chosen, v: Tensor, layer: LayerInForward) -> Tensor:
    batch, n_key = v.shape[:2]
    real = layer.real_keys(batch, n_key, v.device)[:, None, None, :]
    shape_only = torch.empty((), device=v.device).expand(batch, 1, 1, n_key)
    keys = chosen(real, shape_only, layer)[:, 0]
    kv_heads = layer.target.kv_mask(v.device)
    return change(v, keys[:, :, None, None] & kv_heads[:, None], layer)


def _edit_weights(
    change: Change, chosen: Chosen, per: Per, pattern: Tensor, layer: LayerInForward
) -> Tensor:
    batch, n_heads, n_query, n_key = pattern.shape
    keys = chosen(layer.available(batch, n_query, n_key, pattern.device), pattern, layer)
    keys = keys & layer.target.head_mask(pattern.device)[:, None]
    if per == "kv_head":
        n_kv = layer.target.site.n_kv_heads
        shared = keys.reshape(batch, n_kv, -1, n_key).any(2)
        keys = shared.repeat_interleave(n_heads // n_kv, 1)
    return change(pattern, keys.unsqueeze(-2), layer)


def mask_tokens(
    model: Any,
    positions: SinkRule,
    *,
    renormalize: bool = False,
    layers: Layers = None,
    heads: Heads = None,
    attention_mask: Mask = None,
    decoder_attention_mask: Mask = None,
    per: Per = "query_head",
) -> list[FwdHook]:
    """Remove what chosen tokens contribute to the attention output, in every row.

    >>> model.run_with_hooks(tokens, fwd_hooks=mask_tokens(model, [2, 3]), return_type="loss")

    The tokens stay in the text and have their own rows; only their terms alpha_ij v_j leave z. The
    layer's output changes by exactly these terms.

    Args:
        model: a HookedTransformer or TransformerBridge.
        positions: numbers of the tokens among the real tokens of each row (from 0, so that padding
            changes nothing), or a bool mask ``batch pos`` that is True where a token goes.
        renormalize: divide the rest of each row by its sum, as if the token had not been there.

    Other arguments and errors as in :func:`zero_sink_values`.
    """
    if isinstance(positions, str):
        raise TypeError(
            f"mask_tokens: positions must be ints or a bool mask (batch pos), got {positions!r}"
        )
    return token_hooks(
        "mask_tokens",
        model,
        renormalized if renormalize else drop,
        tokens=positions,
        layers=layers,
        heads=heads,
        attention_mask=attention_mask,
        decoder_attention_mask=decoder_attention_mask,
        per=per,
        argument="positions",
    )
