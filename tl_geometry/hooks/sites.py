"""Where a model attends: its attention sites, found from its hooks and live modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tl_geometry.hooks.weights import (
    head_counts,
    input_weights,
    output_weights,
    per_head_bias,
)
from tl_geometry.hooks.windows import sliding_window
from tl_geometry.models.versions import check_transformer_lens

__all__ = ["AttentionSite", "attention_sites", "select_sites"]

_PATTERN = ".hook_pattern"
_SITE = re.compile(r"^(?P<stack>.*?)\.?(?P<block>\d+)\.(?P<leaf>.+)$")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionSite:
    """One attention layer of a model, with the names of its hooks and its live weights.

    >>> site = attention_sites(model)[3]
    >>> site.name, site.n_heads, site.n_kv_heads
    ('blocks.3.attn', 9, 3)

    Counts are those of the live weights and hooks when the site was made; the weights themselves
    are read anew at each access, so they follow later processing, dtype and device changes.
    """

    index: int
    layer: int | str
    name: str
    module: nn.Module
    block: nn.Module
    pattern_hook: str
    v_hook: str
    z_hook: str
    out_hook: str | None
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    cross: bool
    window: int | None

    def __repr__(self) -> str:
        heads = f"{self.n_heads} heads of {self.d_head}, {self.n_kv_heads} of values"
        return f"AttentionSite({self.name!r}, {heads}, window={self.window}, cross={self.cross})"

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:  # noqa: N802
        """Output projection, one matrix per head."""
        return output_weights(self.module, self.n_heads)

    @property
    def b_O(self) -> Float[Tensor, " d_model"] | None:  # noqa: N802
        """Bias of the output projection, None where there is none."""
        bias = self.module.b_O if hasattr(self.module, "b_O") else None
        return bias.detach() if isinstance(bias, Tensor) else None

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_head"]:  # noqa: N802
        """Projection to queries, one matrix per head; ValueError where there is none."""
        return input_weights(self.module, "Q", self.n_heads, self.d_head)

    @property
    def W_K(self) -> Float[Tensor, "kv_head d_model d_head"]:  # noqa: N802
        """Projection to keys, for the heads that `hook_v` shows; ValueError where there is none."""
        return input_weights(self.module, "K", self.n_kv_heads, self.d_head)

    @property
    def W_V(self) -> Float[Tensor, "kv_head d_model d_head"]:  # noqa: N802
        """Projection to values, for the heads that `hook_v` shows; ValueError where there is none."""
        return input_weights(self.module, "V", self.n_kv_heads, self.d_head)

    @property
    def b_V(self) -> Float[Tensor, "kv_head d_head"] | None:  # noqa: N802
        """Bias of the values, for the heads that `hook_v` shows; None where there is none."""
        return per_head_bias(self.module, "V", self.n_kv_heads)

    @property
    def device(self) -> torch.device:
        """Device of this layer."""
        return self.W_O.device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of this layer's weights."""
        return self.W_O.dtype

    @property
    def post_norm(self) -> nn.Module | None:
        """Norm of the attention output before it joins the residual stream (Gemma 2, OLMo 2)."""
        return _post_norm(self.block, self.module)


def attention_sites(model: Any) -> list[AttentionSite]:
    """All attention layers of a HookedTransformer or TransformerBridge, in forward order.

    >>> [site.layer for site in attention_sites(model)]
    [0, 1, 2]

    A site is a `hook_pattern` with a `hook_v` and a `hook_z` beside it. Layers that mix tokens in
    another way (Mamba, linear attention) have none and are simply not in the list. Labels are block
    numbers, or the full names (`"decoder_blocks.0.cross_attn"`) in models with several stacks.

    Raises: ValueError if the model has no such site, ImportError if the installed TransformerLens
    is older than 2.16, or 5 and later.
    """
    check_transformer_lens()
    hooks: dict[str, Any] = dict(getattr(model, "hook_dict", {}))
    prefixes = [name.removesuffix(_PATTERN) for name in hooks if name.endswith(_PATTERN)]
    prefixes = [p for p in prefixes if {f"{p}.hook_v", f"{p}.hook_z"} <= hooks.keys()]
    if not prefixes:
        raise ValueError(
            f"model: {type(model).__name__} has no attention layer (no hook_pattern with hook_v "
            "and hook_z beside it in model.hook_dict); give a HookedTransformer or a "
            "TransformerBridge that has softmax attention"
        )
    prefixes = _in_forward_order(prefixes)
    kinds = {match.group("stack", "leaf") if (match := _SITE.match(p)) else p for p in prefixes}
    single = len(kinds) == 1
    return [_site(model, prefix, index, hooks, single) for index, prefix in enumerate(prefixes)]


def select_sites(
    sites: Sequence[AttentionSite], layers: Iterable[int | str] | int | str | None
) -> list[AttentionSite]:
    """The sites with the given labels, in their own order; all of them for None.

    >>> [site.layer for site in select_sites(sites, [2, 0])]
    [0, 2]

    Raises: ValueError naming the labels that do not exist.
    """
    if layers is None:
        return list(sites)
    several = isinstance(layers, Iterable) and not isinstance(layers, str)
    wanted: list[Any] = list(layers) if several else [layers]  # type: ignore[arg-type]
    labels = [site.layer for site in sites]
    missing = [layer for layer in wanted if layer not in labels]
    if missing or not wanted:
        raise ValueError(f"layers: {missing or wanted} given, the attention layers are {labels}")
    return [site for site in sites if site.layer in wanted]


def _in_forward_order(prefixes: list[str]) -> list[str]:
    """Stacks as they first appear, then block numbers, then appearance inside a block."""
    stacks: dict[str, int] = {}

    def key(item: tuple[int, str]) -> tuple[int, int, int]:
        position, prefix = item
        match = _SITE.match(prefix)
        stack, block = (match["stack"], int(match["block"])) if match else (prefix, 0)
        return stacks.setdefault(stack, len(stacks)), block, position

    return [prefix for _, prefix in sorted(enumerate(prefixes), key=key)]


def _site(
    model: Any, prefix: str, index: int, hooks: dict[str, Any], single: bool
) -> AttentionSite:
    module: nn.Module = model.get_submodule(prefix)
    match = _SITE.match(prefix)
    parent, _, leaf = prefix.rpartition(".")
    n_heads, n_kv_heads = head_counts(module, hooks[f"{prefix}.hook_v"], hooks[f"{prefix}.hook_z"])
    cross = "cross" in leaf or bool(getattr(module, "is_cross_attention", False))
    out_names = [f"{parent}.hook_cross_attn_out"] if cross else [f"{parent}.hook_attn_out"]
    out_names += [f"{prefix}.hook_out"]
    W_O = output_weights(module, n_heads)
    return AttentionSite(
        index=index,
        layer=int(match["block"]) if match and single else prefix,
        name=prefix,
        module=module,
        block=model.get_submodule(parent),
        pattern_hook=f"{prefix}.hook_pattern",
        v_hook=f"{prefix}.hook_v",
        z_hook=f"{prefix}.hook_z",
        out_hook=next((name for name in out_names if name in hooks), None),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=W_O.shape[1],
        d_model=W_O.shape[2],
        cross=cross,
        window=None if cross else sliding_window(module),
    )


_POST_NORM = (
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
)  # HookedTransformer calls their norm after attention `ln1`


def _post_norm(block: nn.Module, attention: nn.Module) -> nn.Module | None:
    children = dict(block.named_children())
    if "ln1_post" in children:
        return children["ln1_post"]
    if getattr(getattr(attention, "cfg", None), "original_architecture", None) in _POST_NORM:
        return children.get("ln1")
    # A TransformerBridge says in `hook_aliases` which of the block's modules writes hook_attn_out.
    writer = str(getattr(block, "hook_aliases", {}).get("hook_attn_out", "")).partition(".")[0]
    module = children.get(writer)
    return None if module is attention else module
