"""What the package makes of each architecture: the matrix that tests hold and README shows.

Every entry names a tiny model of ``zoo.architectures``, the classes of TransformerLens that run it,
and the verdict of the doctor. ``tests/analysis/test_architectures.py`` asserts each of them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .architectures import CONFIGS, DELEGATED

Kind = Literal["hooked", "bridge"]
LINES: dict[Kind, tuple[str, ...]] = {"hooked": ("2.18", "3.9"), "bridge": ("3.9", "4.3")}
LINE = ".".join(importlib.metadata.version("transformer-lens").split(".")[:2])
"""The installed line of TransformerLens."""


@dataclass(frozen=True)
class Entry:
    """One architecture.

    ``hooked`` and ``bridge`` hold the lines of TransformerLens that run it in that class (none:
    empty). ``windows`` are the sliding windows by layer. ``deviates`` names the runs ("bridge 3.9")
    in which TransformerLens attends otherwise than Hugging Face does; what it computes is measured.
    """

    arch: str
    label: str
    hooked: tuple[str, ...] = LINES["hooked"]
    bridge: tuple[str, ...] = LINES["bridge"]
    verdict: str = "exact"
    reason: str = ""
    windows: tuple[int | None, int | None] = (None, None)
    remark: str = ""
    deviates: tuple[str, ...] = ()

    @property
    def by_hand(self) -> bool:
        """Whether no Hugging Face model exists, so that the reference is worked out by hand."""
        return self.arch not in CONFIGS

    @property
    def supported(self) -> bool:
        """Whether its layers are measured."""
        return self.verdict in ("exact", "normed", "scaled")

    def edits(self, kind: Kind) -> dict[str, bool]:
        """Which edits change what follows."""
        delegated = kind == "bridge" and self.arch in DELEGATED
        return {"pattern": not delegated, "v": True, "z": True}

    def deviating(self, kind: Kind) -> bool:
        """Whether the installed TransformerLens attends otherwise than Hugging Face."""
        return f"{kind} {LINE}" in self.deviates


NONE: tuple[str, ...] = ()
_SINCE_3 = {"hooked": ("3.9",)}
_ONLY_4 = {"bridge": ("4.3",)}
_BRIDGE = {"hooked": NONE}
_BY_HAND = {"bridge": NONE}
_NORMED = {"verdict": "normed"}

MATRIX: tuple[Entry, ...] = (
    Entry("gpt2", "GPT-2"),
    Entry("llama", "Llama, grouped queries"),
    Entry("llama_mqa", "Llama, one key-value head"),
    Entry("mistral", "Mistral", windows=(5, 5), remark="sliding window"),
    Entry("mixtral", "Mixtral"),
    Entry("qwen2", "Qwen 2", remark="value biases"),
    Entry(
        "qwen2_window", "Qwen 2, windows in some layers", windows=(None, 5),
        deviates=("hooked 2.18", "hooked 3.9"), remark="HookedTransformer leaves the windows out",
    ),
    Entry("qwen3", "Qwen 3", remark="norms of queries and keys"),
    Entry("gemma1", "Gemma 1"),
    Entry("gemma2", "Gemma 2", **_NORMED, windows=(5, None), remark="capped scores, window"),
    Entry("gemma3", "Gemma 3", **_NORMED, windows=(5, None), remark="window in some layers"),
    Entry(
        "gemma4", "Gemma 4", **_BRIDGE, verdict="unsupported", windows=(5, None),
        reason="v_norm acts in between", remark="a norm of the values behind `hook_v`",
    ),
    Entry(
        "gpt_oss", "gpt-oss", windows=(5, None), deviates=("hooked 2.18",),
        remark="learned sinks: rows sum to less than 1; the rest is `null_sink_rate`. HookedTransformer 2.18 "
        "leaves them and the windows out",
    ),
    Entry("gpt_neox", "GPT-NeoX, Pythia", remark="parallel"),
    Entry("phi", "Phi", remark="parallel"),
    Entry("phi3", "Phi 3"),
    Entry("bloom", "Bloom", remark="ALiBi"),
    Entry("opt", "OPT"),
    Entry("gptj", "GPT-J"),
    Entry("gpt_neo", "GPT-Neo", windows=(None, 5), remark="local layers"),
    Entry("falcon", "Falcon", **_BRIDGE, remark="one key-value head, parallel"),
    Entry("mpt", "MPT", **_BRIDGE, remark="ALiBi"),
    Entry("olmo", "OLMo", **_SINCE_3),
    Entry(
        "olmo_clip", "OLMo with `clip_qkv`", **_SINCE_3, verdict="clipped",
        reason="clipped to +-0.3 after hook_v", remark="values are clipped behind `hook_v`",
    ),
    Entry("olmo2", "OLMo 2", **_SINCE_3, **_NORMED),
    Entry("olmo3", "OLMo 3", **_SINCE_3, **_NORMED, windows=(5, 5)),
    Entry("exaone4", "EXAONE 4", **_BRIDGE, **_NORMED, windows=(5, None)),
    Entry(
        "granite", "Granite", **_BRIDGE, verdict="scaled",
        remark="a constant factor behind the attention, which lengths include",
    ),
    Entry(
        "cohere", "Cohere", **_BRIDGE, deviates=("bridge 3.9",),
        remark="the bridge of 3.9 rotates queries and keys otherwise than Hugging Face: what is measured is the bridge",
    ),
    Entry("stablelm", "StableLM", **_BRIDGE),
    Entry("starcoder2", "StarCoder 2", **_BRIDGE),
    Entry("smollm3", "SmolLM 3", **_BRIDGE),
    Entry(
        "bitnet", "BitNet", **_BRIDGE, verdict="unsupported", reason="attn_sub_norm acts in between",
        remark="a norm of z before W_O",
    ),
    Entry(
        "qwen3_next", "Qwen3-Next", **_BRIDGE, verdict="gated", reason="a gate between 0 and 1",
        remark="gates on z; linear-attention layers are no attention layers",
    ),
    Entry(
        "deepseek_v3", "DeepSeek V3", **_BRIDGE, verdict="unsupported", reason="as in latent attention",
        remark="latent attention",
    ),
    Entry(
        "mamba", "Mamba", **_BRIDGE, verdict="no attention layer", reason="has no attention layer",
    ),
    Entry("bert", "BERT", remark="HookedEncoder"),
    Entry("roberta", "RoBERTa", **_BRIDGE, **_ONLY_4),
    Entry("vit", "ViT", **_BRIDGE),
    Entry(
        "t5", "T5", **_ONLY_4, deviates=("hooked 2.18",),
        remark="HookedEncoderDecoder; the decoder of 2.18 looks ahead",
    ),
    Entry("bart", "BART", **_BRIDGE),
    Entry("attention_only", "HookedTransformer, attention only", **_BY_HAND),
    Entry("alibi", "HookedTransformer, ALiBi", **_BY_HAND),
    Entry("learned_sinks", "HookedTransformer, learned sinks", **_SINCE_3, **_BY_HAND),
    Entry("parallel", "HookedTransformer, parallel", **_BY_HAND),
    Entry("window", "HookedTransformer, local layers", **_BY_HAND, windows=(None, 5)),
    Entry("bidirectional", "HookedTransformer, bidirectional", **_BY_HAND),
    Entry("sandwich", "HookedTransformer, norms before and after", **_BY_HAND, **_NORMED),
    Entry("shortformer", "HookedTransformer, shortformer", **_BY_HAND),
)  # fmt: skip

BY_ARCH: dict[str, Entry] = {entry.arch: entry for entry in MATRIX}


def runs() -> Iterator[tuple[Entry, Kind]]:
    """Every architecture in every class that the installed TransformerLens has for it."""
    for entry in MATRIX:
        for kind in ("hooked", "bridge"):
            if LINE in getattr(entry, kind):
                yield entry, kind
