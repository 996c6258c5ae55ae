"""HookedTransformer, HookedEncoder and HookedEncoderDecoder of the same weights as a Hugging Face model.

    from zoo.conversions import build_converted
    model = build_converted("gpt2", build_huggingface("gpt2"))      # nothing folded, nothing centred

TransformerLens translates config and weights itself, as in ``from_pretrained``; only for models
that it knows by name (Gemma, OLMo) the config is written here.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from typing import Any

import torch
from torch import nn

from .architectures import quiet

NOTHING = {
    "fold_ln": False,
    "center_writing_weights": False,
    "center_unembed": False,
    "fold_value_biases": False,
}

_GEMMA = {"final_rms": True}
_GEMMA_2 = {
    **_GEMMA,
    "attn_scale": 8.0,
    "use_normalization_before_and_after": True,
    "use_local_attn": True,
}
# Architectures that TransformerLens knows by the names of their models: what it writes down for these.
_BY_NAME: dict[str, dict[str, Any]] = {
    "gemma1": {**_GEMMA, "act_fn": "gelu_pytorch_tanh"},
    "gemma2": {
        **_GEMMA_2,
        "attn_types": ["local", "global"],
        "attn_scores_soft_cap": 50.0,
        "output_logits_soft_cap": 30.0,
    },
    "gemma3": {
        **_GEMMA_2,
        "attn_types": ["local", "global"],
        "use_qk_norm": True,
        "rotary_base": 1_000_000,
        "rotary_base_local": 10_000,
    },
    "olmo": {"normalization_type": "LN"},
    "olmo_clip": {"normalization_type": "LN"},
    "olmo2": {},
    # Known by its config, but TransformerLens 3 asks it for a field that transformers 5 has moved.
    "phi": {
        "normalization_type": "LN",
        "parallel_attn_mlp": True,
        "rotary_dim": 4,
        "gated_mlp": False,
    },
}


def _config(arch: str, model: nn.Module) -> dict[str, Any]:
    """What a HookedTransformerConfig of this model takes."""
    from transformer_lens import loading_from_pretrained as loading

    name = type(model).__name__
    config: Any = model.config
    if arch not in _BY_NAME:
        config.architectures = [name]
        with tempfile.TemporaryDirectory() as directory:
            config.save_pretrained(directory)
            found = dict(loading.convert_hf_model_config(directory))
        found.pop("tokenizer_name", None)
        return {**found, "original_architecture": config.architectures[0]}
    heads = config.num_attention_heads
    d_head = getattr(config, "head_dim", None) or config.hidden_size // heads
    return {
        "d_model": config.hidden_size,
        "d_head": d_head,
        "n_heads": heads,
        "n_key_value_heads": config.num_key_value_heads if arch.startswith("gemma") else None,
        "d_mlp": config.intermediate_size,
        "n_layers": config.num_hidden_layers,
        "n_ctx": config.max_position_embeddings,
        "eps": getattr(config, "rms_norm_eps", getattr(config, "layer_norm_eps", 1e-5)),
        "d_vocab": config.vocab_size,
        "act_fn": getattr(config, "hidden_activation", None) or config.hidden_act,
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "rotary_dim": d_head,
        "gated_mlp": True,
        "window_size": getattr(config, "sliding_window", None),
        **({"clip_qkv": config.clip_qkv} if getattr(config, "clip_qkv", None) else {}),
        "original_architecture": name,
        **_BY_NAME[arch],
    }


def _pretraining(model: Any) -> nn.Module:
    """BERT as TransformerLens wants it: with heads that the masked language model has not."""
    import transformers

    whole = transformers.BertForPreTraining._from_config(model.config)
    whole.load_state_dict(model.state_dict(), strict=False)
    return whole


def build_converted(arch: str, model: nn.Module, **processing: Any) -> Any:
    """The Hugging Face model's weights in a class of TransformerLens 2 or 3.

    ``processing`` holds options of ``load_and_process_state_dict``, such as
    ``fold_value_biases=True``; what isn't named is not done. Encoders and T5 know no processing.
    """
    import transformer_lens
    from transformer_lens import loading_from_pretrained as loading

    options = {**NOTHING, **processing}
    settings = {**_config(arch, model), "dtype": torch.float32, "device": "cpu"}
    settings["init_weights"] = False
    if options["fold_ln"]:
        settings["normalization_type"] += "Pre"
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        if arch == "bert":
            model = _pretraining(model)
        config = transformer_lens.HookedTransformerConfig.from_dict(settings)
        weights = loading.get_pretrained_state_dict(tempfile.gettempdir(), config, model)
        weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        if arch in ("bert", "t5"):
            name = "HookedEncoderDecoder" if arch == "t5" else "HookedEncoder"
            converted = getattr(transformer_lens, name)(config, move_to_device=False)
            converted.load_state_dict(weights, strict=False)
        else:
            converted = transformer_lens.HookedTransformer(config, move_to_device=False)
            converted.load_and_process_state_dict(weights, **options)
    return converted.eval()
