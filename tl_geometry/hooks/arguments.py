"""Names of a model's forward arguments."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["mask_argument"]


def mask_argument(model: Any) -> str:
    """Name of the padding mask in the model's forward (HookedEncoder has one of its own).

    >>> mask_argument(model)
    'attention_mask'
    """
    names = inspect.signature(model.forward).parameters
    return "one_zero_attention_mask" if "one_zero_attention_mask" in names else "attention_mask"
