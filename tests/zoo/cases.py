"""One run of the matrix: the model, what its hooks show, and the same from Hugging Face or by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tl_geometry.hooks import AttentionSite, Doctor, attention_sites, doctor

from .architectures import CONFIGS, build_bridge, build_hooked, build_huggingface
from .by_hand import work_out
from .conversions import build_converted
from .huggingface import HFLayer, inputs, read
from .matrix import BY_ARCH, Entry, Kind

_KNOWN: dict[Hashable, Any] = {}
STD = 0.15  # attention is not so peaked that only one key of a row matters


@dataclass(frozen=True)
class Shown:
    """What the hooks of one layer show."""

    site: AttentionSite
    pattern: Tensor
    v: Tensor


@dataclass(frozen=True)
class Case:
    """A model in one class, with the arguments of its forward and its attention layers."""

    entry: Entry
    kind: Kind
    model: Any
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]

    @functools.cached_property
    def sites(self) -> list[AttentionSite]:
        """Its attention layers as the package finds them."""
        return attention_sites(self.model)

    @functools.cached_property
    def doctor(self) -> Doctor:
        """The doctor's report."""
        return doctor(self.model)

    @functools.cached_property
    def shown(self) -> list[Shown]:
        """Pattern and values of each layer, through hooks of our own."""
        seen: dict[tuple[int, str], Tensor] = {}
        hooks = []
        for site in self.sites:
            for kind, name in (("pattern", site.pattern_hook), ("v", site.v_hook)):

                def keep(
                    tensor: Tensor, hook: Any, key: tuple[int, str] = (site.index, kind)
                ) -> None:
                    seen[key] = tensor.detach().clone()

                hooks.append((name, keep))
        self.run(hooks)
        return [Shown(s, seen[s.index, "pattern"], seen[s.index, "v"]) for s in self.sites]

    def run(self, hooks: list[Any]) -> None:
        """One forward."""
        with torch.no_grad():
            self.model.run_with_hooks(*self.args, fwd_hooks=hooks, **self.kwargs)

    @functools.cached_property
    def expected(self) -> list[HFLayer]:
        """The layers as Hugging Face computes them, or worked out by hand."""
        if self.entry.by_hand:
            return work_out(self.model, self.args[0])
        return _read(self.entry.arch)

    @functools.cached_property
    def reference(self) -> list[HFLayer]:
        """What measures are compared on: the expected layers, or where TransformerLens deviates, its own."""
        if not self.entry.deviating(self.kind):
            return self.expected
        return [
            replace(layer, attention=shown.pattern, v=shown.v)
            for layer, shown in zip(self.expected, self.shown, strict=True)
        ]

    def once(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """A slow reference of one layer; runs of the same architecture share it, unless one deviates."""
        deviating = self.kind if self.entry.deviating(self.kind) else None
        key = (compute.__name__, self.entry.arch, deviating, arguments)
        if key not in _KNOWN:
            _KNOWN[key] = compute(self, *arguments)
        return _KNOWN[key]

    def available(self, index: int) -> Tensor:
        """``1 query key``: what a layer may see, from what its architecture says."""
        layer = self.reference[index]
        queries, keys = layer.attention.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool)
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        if self.causal(index):
            seen = seen & (distance >= 0)
        window = self.window(index)
        if window is not None:
            seen = seen & (distance < window)
        return seen[None]

    def window(self, index: int) -> int | None:
        """The sliding window of a layer; a HookedTransformer that deviates has none."""
        unlike = self.kind == "hooked" and self.entry.deviating(self.kind)
        return None if unlike or self.several_stacks else self.entry.windows[index]

    @property
    def several_stacks(self) -> bool:
        """Whether this is an encoder with a decoder."""
        return self.entry.arch in ("t5", "bart")

    def cross(self, index: int) -> bool:
        """Whether a layer's keys are those of an encoder: the order is that of the stacks."""
        return self.several_stacks and index in (3, 5)

    def causal(self, index: int) -> bool:
        """Whether no query of a layer may see a later key."""
        if self.several_stacks:
            return index in (2, 4) and not self.entry.deviating(self.kind)
        return self.entry.arch not in ("bert", "roberta", "vit", "bidirectional")


@functools.cache
def huggingface(arch: str) -> nn.Module:
    """The Hugging Face model, which nobody changes."""
    return build_huggingface(arch, std=STD)


@functools.cache
def _read(arch: str) -> list[HFLayer]:
    return read(arch, huggingface(arch), inputs(arch))


@functools.cache
def case(arch: str, kind: Kind) -> Case:
    """The model of a run of the matrix, built once."""
    given = inputs(arch)
    kwargs = {}
    if "decoder_input_ids" in given:
        kwargs["decoder_input"] = given["decoder_input_ids"]
    if kind == "bridge":
        model = build_bridge(arch, std=STD)
    elif arch in CONFIGS:
        model = build_converted(arch, huggingface(arch))
    else:
        model = build_hooked(arch, std=STD)
    tokens = given.get("input_ids", given.get("pixel_values"))
    assert tokens is not None
    return Case(BY_ARCH[arch], kind, model, (tokens,), kwargs)
