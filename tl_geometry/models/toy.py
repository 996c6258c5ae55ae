"""The toy: a small GPT-2 that solves Bigram-Backcopy, with its weights in the package.

It is trained by ``python -m tl_geometry.models.train_toy`` on rows that begin with bos (id 0), and
takes token ids only: there is no tokenizer.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tl_geometry.models.backends import Backend, model_class
from tl_geometry.models.convert import bridge_from_hf

NAME = "toy"
WEIGHTS = "toy.safetensors"
VOCAB = 65
N_CTX = 128
D_MODEL = 64
D_MLP = 128


def load_toy(
    *, backend: Backend, processing: bool, device: torch.device, dtype: torch.dtype
) -> Any:
    """The toy as a HookedTransformer or a TransformerBridge, in well under a second.

    >>> load_toy(backend="hooked", processing=False,
    ...          device=torch.device("cpu"), dtype=torch.float32)
    """
    hf = toy_from_weights(Path(__file__).parent / WEIGHTS)
    return wrap_toy(hf, backend=backend, processing=processing, device=device, dtype=dtype)


def wrap_toy(
    hf: Any, *, backend: Backend, processing: bool, device: torch.device, dtype: torch.dtype
) -> Any:
    """Any trained toy, as ``train_toy`` returns it, as either of TransformerLens' classes.

    >>> wrap_toy(train_toy(layers=3), backend="bridge", processing=False,
    ...          device=torch.device("cpu"), dtype=torch.float32)
    """
    if backend == "bridge":
        return bridge_from_hf(
            hf.to(device=device, dtype=dtype), None, name=NAME, processing=processing
        )
    return _hooked(hf, processing=processing, device=device, dtype=dtype)


def new_toy(layers: int = 1) -> Any:
    """An untrained toy: a Hugging Face GPT-2 with one head per layer and untied embeddings.

    >>> sum(weight.numel() for weight in new_toy().parameters())
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=N_CTX,
        n_embd=D_MODEL,
        n_layer=layers,
        n_head=1,
        n_inner=D_MLP,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config)


def toy_from_weights(path: Path) -> Any:
    """A trained toy from a file that ``train_toy`` wrote; its number of layers is read there.

    >>> toy_from_weights(Path("toy.safetensors"))
    """
    weights = load_file(path)
    layers = sum(name.endswith(".ln_1.weight") for name in weights)
    hf = new_toy(layers)
    hf.load_state_dict(weights)
    return hf.eval()


def _hooked(hf: Any, *, processing: bool, device: torch.device, dtype: torch.dtype) -> Any:
    hooked_class = model_class("hooked")
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    config = hf.config
    wide = torch.promote_types(dtype, torch.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Hooked", DeprecationWarning)
        cfg = HookedTransformerConfig(
            model_name=NAME,
            original_architecture="GPT2LMHeadModel",
            n_layers=config.n_layer,
            n_heads=config.n_head,
            d_model=config.n_embd,
            d_head=config.n_embd // config.n_head,
            d_mlp=config.n_inner,
            d_vocab=config.vocab_size,
            n_ctx=config.n_positions,
            act_fn=config.activation_function,
            normalization_type="LNPre" if processing else "LN",
            eps=config.layer_norm_epsilon,
            init_weights=False,
            device=str(device),
            dtype=wide,
        )
        model = hooked_class(cfg)
    with torch.no_grad():
        model.load_and_process_state_dict(
            convert_gpt2_weights(hf.to(device=device, dtype=wide), cfg),
            fold_ln=processing,
            center_writing_weights=processing,
            center_unembed=processing,
            fold_value_biases=processing,
        )
    if dtype != wide:
        model.to(dtype, print_details=False)
    return model.eval()
