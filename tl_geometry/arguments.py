"""Scalar arguments: the value that counts, or an error that names the argument and what it got."""

from __future__ import annotations

import os
from operator import index
from typing import Any

__all__ = [
    "confidence_level",
    "one_of",
    "processes_launched",
    "real_number",
    "true_or_false",
    "whole_number",
    "whole_seed",
]

_SEEDS = 2**64


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse an option that doesn't exist, naming those that do."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """The integer that a Python, numpy or tensor scalar holds; bools and fractions are refused.

    Example: ``whole_number("n_ctx", np.int64(512), 2)`` is 512; 512.0 and True raise TypeError.
    """
    try:
        if _is_bool(value):
            raise TypeError("a bool is no number")
        number = index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, got {value!r}") from error
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def whole_seed(seed: Any) -> int:
    """The seed as an int that a generator takes.

    Example: ``whole_seed(np.int64(3))`` is 3; -1 and ``2**64`` raise ValueError.
    """
    number = whole_number("seed", seed, 0)
    if number >= _SEEDS:
        raise ValueError(f"seed must be less than 2**64, got {number}")
    return number


def real_number(name: str, value: Any) -> float:
    """The number that a Python, numpy or tensor scalar holds; bools and strings are refused."""
    if (
        _is_bool(value)
        or isinstance(value, str)
        or "complex" in str(getattr(value, "dtype", ""))
        or getattr(value, "ndim", 0) > 0
        or not hasattr(value, "__float__")
    ):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def true_or_false(name: str, value: Any) -> bool:
    """The truth value itself: a word such as "no" would count as true.

    Example: ``true_or_false("cross", np.True_)`` is True; 1 and None raise TypeError.
    """
    if not _is_bool(value) or getattr(value, "ndim", 0) > 0:
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def confidence_level(value: Any) -> float:
    """How often an interval holds what it estimates, strictly between 0 and 1."""
    level = real_number("confidence", value)
    if not 0 < level < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {value!r}")
    return level


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


def processes_launched() -> int:
    """How many processes a launcher such as torchrun has started, of which this is one, by its environment."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
