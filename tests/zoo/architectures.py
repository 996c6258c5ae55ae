"""Tiny random models of many architectures, built from configs without any download.

    from zoo.architectures import BRIDGES, build_bridge, build_hooked
    model = build_bridge("gemma2")                 # TransformerBridge, eager, eval mode
    model = build_hooked("llama", n_layers=3)      # HookedTransformer

Every weight is drawn again with a visible scale, norms and biases included, so that no scale is 1
and no bias is 0 by accident. The seed is fixed: two calls with the same arguments give the same
model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

VOCAB = 50
WIDTH = 32

_LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_UNGROUPED = {**_LLAMA, "num_key_value_heads": 4}
_HEAD_8 = {**_LLAMA, "head_dim": 8}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_ctx": 64,
    "n_embd": WIDTH,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_NEOX = {key: value for key, value in _LLAMA.items() if key != "num_key_value_heads"}
_MOE = {"num_experts_per_tok": 2}
_ENCODER = {**_NEOX, "type_vocab_size": 2}
_BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "n_positions": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}

# name -> (Hugging Face model class, config class, config arguments)
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "llama_mqa": ("LlamaForCausalLM", "LlamaConfig", {**_LLAMA, "num_key_value_heads": 1}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_HEAD_8, "sliding_window": 5}),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_HEAD_8, **_MOE, "num_local_experts": 4, "sliding_window": None},
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _LLAMA),
    "qwen2_window": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**_LLAMA, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _HEAD_8),
    "gemma1": ("GemmaForCausalLM", "GemmaConfig", _HEAD_8),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**_HEAD_8, "sliding_window": 5, "query_pre_attn_scalar": 64},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **_HEAD_8,
            "sliding_window": 5,
            "query_pre_attn_scalar": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma4": (
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **_HEAD_8,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 0,
            "global_head_dim": 8,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**_HEAD_8, **_MOE, "num_local_experts": 4, "sliding_window": 5},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _NEOX),
    "phi": ("PhiForCausalLM", "PhiConfig", {**_NEOX, "partial_rotary_factor": 0.5}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**_LLAMA, "sliding_window": None}),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_head": 4, "n_layer": 2, "pad_token_id": 0},
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_NEOX, "ffn_dim": 48, "word_embed_proj_dim": WIDTH, "do_layer_norm_before": True},
    ),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**_GPT2, "rotary_dim": 4}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "num_heads": 4,
            "num_layers": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 5,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {
            **_NEOX,
            "multi_query": True,
            "new_decoder_architecture": False,
            "parallel_attn": True,
            "bias": False,
            "alibi": False,
        },
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCAB, "d_model": WIDTH, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    ),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", _UNGROUPED),
    "olmo_clip": ("OlmoForCausalLM", "OlmoConfig", {**_UNGROUPED, "clip_qkv": 0.3}),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _UNGROUPED),
    "olmo3": ("Olmo3ForCausalLM", "Olmo3Config", {**_LLAMA, "sliding_window": 5}),
    "exaone4": (
        "Exaone4ForCausalLM",
        "Exaone4Config",
        {
            **_HEAD_8,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**_LLAMA, "residual_multiplier": 0.3}),
    "cohere": ("CohereForCausalLM", "CohereConfig", _LLAMA),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", {**_LLAMA, "use_qkv_bias": True}),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        "Starcoder2Config",
        {**_LLAMA, "use_bias": True, "sliding_window": None},
    ),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", _LLAMA),
    "bitnet": ("BitNetForCausalLM", "BitNetConfig", _LLAMA),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **_HEAD_8,
            **_MOE,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **_LLAMA,
            **_MOE,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4},
    ),
    "bert": ("BertForMaskedLM", "BertConfig", _ENCODER),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**_ENCODER, "pad_token_id": 1}),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": WIDTH,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 12,
            "patch_size": 4,
            "num_labels": 3,
        },
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5),
    "bart": ("BartForConditionalGeneration", "BartConfig", _BART),
}

BRIDGES: tuple[str, ...] = tuple(name for name in CONFIGS if name != "roberta")
"""The architectures that TransformerLens 3 bridges too."""
# The wrapped model computes attention by itself: edits of hook_pattern come too late.
DELEGATED = frozenset({"bert", "roberta", "vit", "gptj", "gpt_neo", "opt", "t5", "bart", "gemma4"})


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings of the libraries while a model is built, and the global random state kept."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        yield


@torch.no_grad()
def enlarge(module: nn.Module, std: float = 0.3, seed: int = 0) -> nn.Module:
    """Draw every parameter again from N(0, std); scales of norms from 1 + N(0, std)."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * std
        owner, _, kind = name.rpartition(".")
        is_scale = kind == "w" or (kind == "weight" and "norm" in owner.rpartition(".")[2].lower())
        parameter.copy_(noise + 1.0 if is_scale else noise)
    return module


def build_huggingface(
    arch: str, *, attn: str = "eager", seed: int = 0, std: float = 0.3, **overrides: Any
) -> nn.Module:
    """The tiny Hugging Face model of an architecture, weights enlarged, in eval mode."""
    import transformers

    model_name, config_name, arguments = CONFIGS[arch]
    with quiet():
        config = getattr(transformers, config_name)(**{**arguments, **overrides})
        # Some classes look at the attention implementation only while they are built.
        options = {} if arch == "mamba" else {"attn_implementation": attn}
        model: Any = getattr(transformers, model_name)._from_config(config, **options)
    return enlarge(model, std, seed).eval()


def build_bridge(
    arch: str,
    *,
    attn: str = "eager",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Any:
    """A TransformerBridge of a tiny random model; `overrides` go into the Hugging Face config."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model: Any = build_huggingface(arch, attn=attn, seed=seed, **overrides).to(dtype)
    with quiet():
        bridge = build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
    return bridge.eval()


# name -> overrides of a HookedTransformerConfig
HOOKED_CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {
        "n_key_value_heads": 2,
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "rotary_dim": 8,
        "gated_mlp": True,
        "final_rms": True,
        "act_fn": "silu",
    },
    "attention_only": {"attn_only": True, "normalization_type": None},
    "alibi": {"positional_embedding_type": "alibi"},
    "parallel": {"parallel_attn_mlp": True},
    "window": {"use_local_attn": True, "attn_types": ["global", "local"], "window_size": 5},
    "bidirectional": {"attention_dir": "bidirectional"},
    "sandwich": {
        "normalization_type": "RMS",
        "use_normalization_before_and_after": True,
        "final_rms": True,
    },
    "shortformer": {"positional_embedding_type": "shortformer"},
    "learned_sinks": {"use_attention_sinks": True},
}
HOOKED: tuple[str, ...] = tuple(name for name in HOOKED_CONFIGS if name != "learned_sinks")
"""The variants that TransformerLens 2 knows too."""


def build_hooked(arch: str = "llama", *, seed: int = 0, std: float = 0.3, **overrides: Any) -> Any:
    """A tiny random HookedTransformer; `overrides` go into its config."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    settings: dict[str, Any] = {
        "n_layers": 2,
        "d_model": WIDTH,
        "n_heads": 4,
        "d_head": 8,
        "d_mlp": 48,
        "d_vocab": VOCAB,
        "n_ctx": 64,
        "act_fn": "gelu",
        "normalization_type": "LN",
        "seed": seed,
        "device": "cpu",
        **HOOKED_CONFIGS[arch],
        **overrides,
    }
    if settings.get("attn_only"):
        settings.update(act_fn=None, d_mlp=None)
    with quiet():
        model = HookedTransformer(HookedTransformerConfig(**settings))
    return enlarge(model, std, seed).eval()
