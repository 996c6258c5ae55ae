"""Models to work on: SmolLM2 without a hub, local directories, and what TransformerLens loads."""

from tl_geometry.models.errors import (
    BackendUnavailableError,
    ModelUnavailableError,
    UnknownModelError,
)
from tl_geometry.models.loading import load_model

__all__ = ["BackendUnavailableError", "ModelUnavailableError", "UnknownModelError", "load_model"]
