"""Which of TransformerLens' two model classes the installed release has."""

import importlib
from importlib.metadata import version
from typing import Any, Literal

from tl_geometry.models.errors import BackendUnavailableError
from tl_geometry.models.versions import check_transformer_lens

Backend = Literal["hooked", "bridge"]

_HOME: dict[Backend, tuple[str, str, str]] = {
    "hooked": ("transformer_lens", "HookedTransformer", "transformer-lens>=2.16,<4"),
    "bridge": ("transformer_lens.model_bridge", "TransformerBridge", "transformer-lens>=3.9,<5"),
}


def model_class(backend: Backend) -> Any:
    """The class behind a backend, looked up when it is asked for.

    >>> model_class("bridge").__name__
    'TransformerBridge'

    Raises:
        BackendUnavailableError: the installed TransformerLens lacks the class.
        ImportError: the installed TransformerLens is older than 2.16, or 5 and later.
    """
    check_transformer_lens()
    module, name, requirement = _HOME[backend]
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        other: Backend = "bridge" if backend == "hooked" else "hooked"
        raise BackendUnavailableError(
            f"backend={backend!r} needs {name}, which TransformerLens "
            f"{version('transformer-lens')} does not have. Pass backend={other!r}, or install "
            f"one that has it: pip install '{requirement}'"
        ) from error


def candidate_backends(backend: str) -> tuple[Backend, ...]:
    """The backends to try, best first; "auto" is every one that the installed release has.

    >>> candidate_backends("auto")  # TransformerLens 3
    ('hooked', 'bridge')

    Raises:
        ValueError: the word is none of "auto", "hooked", "bridge".
        BackendUnavailableError: the installed TransformerLens lacks the class asked for.
    """
    if backend == "auto":
        return tuple(candidate for candidate in _HOME if _has(candidate))
    for candidate in _HOME:
        if candidate == backend:
            model_class(candidate)
            return (candidate,)
    raise ValueError(f"backend must be 'auto', 'hooked' or 'bridge', got {backend!r}")


def _has(backend: Backend) -> bool:
    try:
        model_class(backend)
    except BackendUnavailableError:
        return False
    return True
