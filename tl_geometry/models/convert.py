"""From a Hugging Face model to either of TransformerLens' model classes, without a hub."""

import warnings
from typing import Any

import torch

from tl_geometry.models.backends import model_class
from tl_geometry.models.errors import BackendUnavailableError

# TransformerLens 2 stores one causal mask of n_ctx x n_ctx in every block.
HOOKED_MAX_CTX = 2048


def hooked_from_llama(
    hf: Any,
    tokenizer: Any,
    *,
    name: str,
    processing: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    """A HookedTransformer with the weights of a Llama-architecture Hugging Face model.

    >>> hooked_from_llama(hf, tok, name="mine", processing=False,
    ...                   device=torch.device("cpu"), dtype=torch.float32)

    Weights are processed in float32 (float64 where asked for) and cast at the end. The context is
    the model's own, at most 2048 positions.

    Raises:
        BackendUnavailableError: an architecture or an option that this conversion does not carry
            over exactly.
    """
    if obstacles := obstacles_to_hooked(hf.config):
        raise refuse_hooked(name, obstacles)
    hooked_class = model_class("hooked")
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights

    config = hf.config
    wide = torch.promote_types(dtype, torch.float32)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    d_head = getattr(config, "head_dim", None) or config.hidden_size // heads
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Hooked", DeprecationWarning)
        cfg = HookedTransformerConfig(
            model_name=name,
            original_architecture="LlamaForCausalLM",
            n_layers=config.num_hidden_layers,
            n_heads=heads,
            n_key_value_heads=kv_heads if kv_heads != heads else None,
            d_model=config.hidden_size,
            d_head=d_head,
            d_mlp=config.intermediate_size,
            d_vocab=config.vocab_size,
            n_ctx=min(config.max_position_embeddings, HOOKED_MAX_CTX),
            act_fn=config.hidden_act,
            gated_mlp=True,
            normalization_type="RMSPre" if processing else "RMS",
            final_rms=True,
            eps=config.rms_norm_eps,
            positional_embedding_type="rotary",
            rotary_adjacent_pairs=False,
            rotary_dim=d_head,
            rotary_base=_rope_parameters(config)["rope_theta"],
            init_weights=False,
            device=str(device),
            dtype=wide,
        )
        model = hooked_class(cfg, tokenizer=tokenizer)
    with torch.no_grad():
        weights = convert_llama_weights(hf.to(device=device, dtype=wide), cfg)
        model.load_and_process_state_dict(
            weights,
            fold_ln=processing,
            center_writing_weights=False,
            center_unembed=processing,
            fold_value_biases=processing,
        )
    if dtype != wide:
        model.to(dtype, print_details=False)
    return model.eval()


def bridge_from_hf(hf: Any, tokenizer: Any, *, name: str, processing: bool) -> Any:
    """A TransformerBridge around a Hugging Face model, which keeps its device and dtype.

    >>> bridge_from_hf(hf, tok, name="mine", processing=False)

    ``processing`` turns on TransformerLens' compatibility mode.
    """
    model_class("bridge")
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf.set_attn_implementation("eager")
    bridge = build_bridge_from_module(
        hf,
        type(hf).__name__,
        hf_config=hf.config,
        tokenizer=tokenizer,
        model_name=name,
        dtype=hf.dtype,
        device=str(hf.device),
    )
    if processing:
        bridge.enable_compatibility_mode(disable_warnings=True)
    return bridge.eval()


def _rope_parameters(config: Any) -> dict[str, Any]:
    """Rotary settings, which transformers 4 and 5 keep under different names."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:
        scaling = getattr(config, "rope_scaling", None) or {"rope_type": "default"}
        parameters = {"rope_theta": config.rope_theta, **scaling}
    return dict(parameters)


def obstacles_to_hooked(config: Any) -> list[str]:
    """Why a Hugging Face configuration cannot become a HookedTransformer here; empty when it can.

    >>> obstacles_to_hooked(GPT2Config())
    ["its architecture is 'gpt2'"]
    """
    if config.model_type != "llama":
        return [f"its architecture is {config.model_type!r}"]
    obstacles = [f"it has {key}" for key in ("attention_bias", "mlp_bias") if getattr(config, key)]
    rope_type = _rope_parameters(config).get("rope_type", "default")
    if rope_type != "default":
        obstacles.append(f"its rotary embedding is scaled ({rope_type!r})")
    return obstacles


def refuse_hooked(name: str, obstacles: list[str]) -> BackendUnavailableError:
    """The error for a model that only the other class can hold."""
    return BackendUnavailableError(
        f"{name!r} cannot be loaded as a HookedTransformer from its files: {', '.join(obstacles)}; "
        "only plain Llama models can. Pass backend='bridge' (needs transformer-lens>=3.9)"
    )
