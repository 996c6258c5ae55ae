"""Attention layers as Hugging Face computes them: the reference that knows nothing of TransformerLens.

    layers = read("gpt2", build_huggingface("gpt2"), inputs("gpt2"))
    layers[0].attention, layers[0].v, layers[0].W_O

The model returns its attentions itself. Values are what its own value projection says, by a plain
forward hook of torch; fused projections are cut by the layout in ``LAYOUTS``. ``z`` is what its
output projection receives and ``out`` what it answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Cut = Callable[[Tensor, int, int], Tensor]


def _last(x: Tensor, kv_heads: int, d_head: int) -> Tensor:
    """The last columns belong to the values, as with a projection to values alone."""
    return x[..., -kv_heads * d_head :].unflatten(-1, (kv_heads, d_head))


def _by_head(x: Tensor, kv_heads: int, d_head: int) -> Tensor:
    """Query, key and value of a head stand together."""
    return x.unflatten(-1, (kv_heads, 3, d_head))[..., 2, :]


@dataclass(frozen=True)
class Layout:
    """Names (regular expressions, from their end) of the two projections, and where values are cut."""

    value: str = r"self_attn\.v_proj"
    output: str = r"self_attn\.o_proj"
    cut: Cut = _last


_BERT = Layout(r"attention\.self\.value", r"attention\.output\.dense")
LAYOUTS: dict[str, Layout] = {
    "gpt2": Layout(r"attn\.c_attn", r"attn\.c_proj"),
    "gpt_neox": Layout(r"attention\.query_key_value", r"attention\.dense", _by_head),
    "bloom": Layout(r"self_attention\.query_key_value", r"self_attention\.dense", _by_head),
    "falcon": Layout(r"self_attention\.query_key_value", r"self_attention\.dense"),
    "mpt": Layout(r"attn\.Wqkv", r"attn\.out_proj"),
    "phi3": Layout(r"self_attn\.qkv_proj"),
    "phi": Layout(output=r"self_attn\.dense"),
    "opt": Layout(output=r"self_attn\.out_proj"),
    "gptj": Layout(r"attn\.v_proj", r"attn\.out_proj"),
    "gpt_neo": Layout(r"attention\.v_proj", r"attention\.out_proj"),
    "bert": _BERT,
    "roberta": _BERT,
    "vit": Layout(
        r"attention\.v_proj|attention\.value", r"attention\.o_proj|attention\.output\.dense"
    ),
    "t5": Layout(r"Attention\.v", r"Attention\.o"),
    "bart": Layout(r"attn\.v_proj", r"attn\.out_proj"),
}
# Query heads that share a key-value head are counted in the config; elsewhere by these fields.
_KV_HEADS = {"falcon": 1}


@dataclass(frozen=True)
class HFLayer:
    """One layer: ``attention`` batch head query key, ``v`` batch key kv_head d_head, ``W_O`` head d_head d_model."""

    name: str
    attention: Tensor
    v: Tensor
    W_O: Tensor
    b_O: Tensor | None  # noqa: N815
    z: Tensor
    out: Tensor

    @property
    def mixed(self) -> Tensor:
        """Attention times values, ``batch query head d_head``."""
        group = self.attention.shape[1] // self.v.shape[2]
        values = self.v.repeat_interleave(group, 2)
        return torch.einsum("bhqk,bkhd->bqhd", self.attention, values)


def inputs(arch: str, *, rows: int = 2, length: int = 10, seed: int = 1) -> dict[str, Tensor]:
    """Arguments for a Hugging Face model; ids 3 to 49, no special token."""
    generator = torch.Generator().manual_seed(seed)
    if arch == "vit":
        return {"pixel_values": torch.randn(rows, 3, 12, 12, generator=generator)}
    ids = torch.stack([torch.randperm(47, generator=generator) for _ in range(rows)]) + 3
    found = {"input_ids": ids[:, :length]}
    if arch in ("t5", "bart"):
        found["decoder_input_ids"] = ids[:, -length + 3 :]
    return found


def read(arch: str, model: nn.Module, given: Mapping[str, Tensor]) -> list[HFLayer]:
    """All attention layers in forward order; in decoders self-attention before cross-attention."""
    layout = LAYOUTS.get(arch, Layout())
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    handles, values, outputs = [], [], []
    for name, module in model.named_modules():
        for pattern, found in ((layout.value, values), (layout.output, outputs)):
            if re.search(f"({pattern})$", name):
                found.append(name)

                def keep(_: Any, args: Any, result: Tensor, key: str = name) -> None:
                    seen[key] = (args[0].detach(), result.detach())

                handles.append(module.register_forward_hook(keep))
    try:
        with torch.no_grad():
            answer: Any = model(**given, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    attentions = _attentions(answer)
    assert len(values) == len(outputs) == len(attentions), (values, outputs, len(attentions))
    return [
        _layer(model, layout, value, output, weights, seen, arch)
        for value, output, weights in zip(values, outputs, attentions, strict=True)
    ]


def _attentions(answer: Any) -> list[Tensor]:
    plain = answer.get("attentions")
    if plain:
        return [weights for weights in plain if weights is not None]
    pairs = zip(answer.decoder_attentions, answer.cross_attentions, strict=True)
    return [*answer.encoder_attentions, *(weights for pair in pairs for weights in pair)]


def _layer(
    model: nn.Module,
    layout: Layout,
    value: str,
    output: str,
    attention: Tensor,
    seen: Mapping[str, tuple[Tensor, Tensor]],
    arch: str,
) -> HFLayer:
    projection: Any = model.get_submodule(output)
    heads = attention.shape[1]
    weight = projection.weight.detach()
    weight = weight if type(projection).__name__ == "Conv1D" else weight.T
    W_O = weight.unflatten(0, (heads, -1))
    config: Any = model.config
    kv_heads = _KV_HEADS.get(arch) or getattr(config, "num_key_value_heads", None) or heads
    (z, out), bias = seen[output], getattr(projection, "bias", None)
    return HFLayer(
        name=output,
        attention=attention.detach(),
        v=layout.cut(seen[value][1], kv_heads, W_O.shape[1]),
        W_O=W_O,
        b_O=None if bias is None else bias.detach(),
        z=z.unflatten(-1, (heads, -1)),
        out=out,
    )
