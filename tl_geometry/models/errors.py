"""What can go wrong while loading a model, as errors that name the remedy."""


class UnknownModelError(ValueError):
    """The name is neither a model that can be loaded nor a directory that holds one."""


class ModelUnavailableError(OSError):
    """The model exists, but its files are not on this machine and cannot be fetched now."""


class BackendUnavailableError(ValueError):
    """The installed TransformerLens has no such model class, or the class cannot hold the model."""
