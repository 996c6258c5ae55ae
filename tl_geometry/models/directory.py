"""Models in a local directory written by ``save_pretrained``."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from tl_geometry.models.backends import Backend
from tl_geometry.models.convert import (
    bridge_from_hf,
    hooked_from_llama,
    obstacles_to_hooked,
    refuse_hooked,
)
from tl_geometry.models.errors import ModelUnavailableError, UnknownModelError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def load_directory(
    directory: Path,
    *,
    backends: tuple[Backend, ...],
    processing: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    """A model from a directory with config.json and weights; the tokenizer is optional.

    The first of ``backends`` that can hold it is taken.

    >>> load_directory(Path("my-model"), backends=("bridge",), processing=False,
    ...                device=torch.device("cpu"), dtype=torch.float32)

    Raises:
        UnknownModelError: the directory holds no Hugging Face model.
        ModelUnavailableError: its weights are missing or damaged.
        BackendUnavailableError: the architecture needs the other model class.
    """
    architecture = _architecture(directory)
    import transformers

    loader = getattr(transformers, architecture, None)
    if loader is None:
        raise UnknownModelError(
            f"{directory / 'config.json'} names the architecture {architecture!r}, which "
            f"transformers {transformers.__version__} does not have"
        )
    name = directory.resolve().name
    backend = backends[0]
    config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    if backend == "hooked" and (obstacles := obstacles_to_hooked(config)):
        if "bridge" not in backends:
            raise refuse_hooked(name, obstacles)
        backend = "bridge"
    try:
        hf = loader.from_pretrained(
            directory,
            dtype=torch.promote_types(dtype, torch.float32) if backend == "hooked" else dtype,
            attn_implementation="eager",
            local_files_only=True,
        ).to(device)
    except SafetensorError as error:
        raise ModelUnavailableError(
            f"the weights in {str(directory)!r} are damaged ({error}); copy or save the model again"
        ) from error
    tokenizer = None
    if any((directory / file).exists() for file in _TOKENIZER_FILES):
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    if backend == "hooked":
        return hooked_from_llama(
            hf, tokenizer, name=name, processing=processing, device=device, dtype=dtype
        )
    return bridge_from_hf(hf, tokenizer, name=name, processing=processing)


def _architecture(directory: Path) -> str:
    """The class name that config.json gives."""
    path = directory / "config.json"
    if not path.is_file():
        found = ", ".join(sorted(item.name for item in directory.iterdir())[:8]) or "nothing"
        raise UnknownModelError(
            f"the directory {str(directory)!r} has no config.json (it holds: {found}). Write one "
            "with model.save_pretrained(directory) and tokenizer.save_pretrained(directory)"
        )
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["architectures"][0])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UnknownModelError(
            f"{str(path)!r} does not name an architecture, so it is no configuration of a model"
        ) from error
