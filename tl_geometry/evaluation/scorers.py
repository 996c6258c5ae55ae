"""Importances as users give them: by name or as functions, and what a checkpoint says of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tl_geometry.ablations.entries import EntryScores
from tl_geometry.evaluation.function_digest import UndescribedError, function_digest
from tl_geometry.measures.importances import IMPORTANCES

__all__ = ["Importances", "described", "described_scorers", "named_scorers"]

Importances: TypeAlias = Iterable[str] | Mapping[str, EntryScores]


def named_scorers(importances: Importances) -> dict[str, EntryScores]:
    """What scores entries, by the name of the importance.

    >>> named_scorers(["attention", "random"])
    {'attention': 'attention', 'random': 'random'}

    Raises:
        ValueError: no importance, an unknown name, or one twice.
    """
    if isinstance(importances, Mapping):
        scorers = dict(importances)
        names = list(scorers)
    else:
        names = [importances] if isinstance(importances, str) else list(importances)
        scorers = {name: name for name in names}
    unknown = [
        scorer for scorer in scorers.values() if not (callable(scorer) or scorer in IMPORTANCES)
    ]
    if unknown or not names or len(scorers) < len(names):
        raise ValueError(
            f"importances must be one or more of {', '.join(map(repr, IMPORTANCES))}, each once, or a mapping of "
            f"names to functions; got {unknown or names}"
        )
    return scorers


def described_scorers(
    scorers: Mapping[str, EntryScores], checkpoint: str | Path | None, model: Any
) -> dict[str, str]:
    """What a result and its checkpoint say of each importance: its name, or a function's name and digest.

    Raises:
        ValueError: a function that can't be described, where there is a checkpoint.
    """
    return {
        name: described(f"importances[{name!r}]", scorer, checkpoint, model=model)
        if callable(scorer)
        else scorer
        for name, scorer in scorers.items()
    }


def described(
    argument: str,
    function: Callable[..., Any],
    checkpoint: str | Path | None,
    *,
    model: Any,
    instead: str = "give importances by name",
) -> str:
    """Name and digest of a user's function, such that another one is described otherwise.

    Without a checkpoint, what can't be described goes by its name or type.

    Args:
        argument: which one it is, for the error.
        model: the model, which a checkpoint knows already.

    Raises:
        ValueError: it can't be described, and there is a checkpoint.
    """
    name: str = getattr(function, "__qualname__", type(function).__name__)
    try:
        return f"{name} {function_digest(function, {id(model): 'model'})[:16]}"
    except UndescribedError as error:
        if checkpoint is None:
            return name
        raise ValueError(
            f"checkpoint: {argument} can't be told from another function when the run is resumed, since {error}. Use "
            f"a function of plain values (numbers, strings, lists of them), {instead}, or run without checkpoint="
        ) from error
