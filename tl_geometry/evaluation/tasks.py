"""Tasks of the evaluation harness: found, loaded, and their accuracies in one dataset.

Imported only where `lm_eval` is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from lm_eval.tasks import TaskManager

__all__ = ["accuracies", "load_tasks"]

_CW = "Cunningham & Muca Cirone, arXiv 2606.07604"


def load_tasks(names: Sequence[str], include_path: str | Path | None = None) -> dict[str, Any]:
    """The tasks, from the user's files if they are all there, else from all that `lm_eval` knows.

    >>> load_tasks(["boolq"])["tasks"].keys()
    dict_keys(['boolq'])

    Raises:
        ValueError: no task, an unknown one, or no such directory.
        ConnectionError: data that can't be reached.
    """
    if not names:
        raise ValueError("tasks is empty: name at least one")
    manager: Any = None
    if include_path is not None:
        path = Path(include_path).expanduser()
        if not path.is_dir():
            raise ValueError(f"include_path: there is no directory {path}")
        manager = TaskManager(include_path=str(path), include_defaults=False)
    if manager is None:
        manager = _known_tasks()
    elif not set(names) <= set(manager.all_tasks):
        manager = TaskManager(include_path=str(path))
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise ValueError(
            f"tasks: lm_eval knows no {', '.join(map(repr, unknown))}; `lm_eval ls tasks` lists its own, "
            "include_path= adds a directory of task files"
        )
    try:
        loaded: dict[str, Any] = manager.load(list(names))
    except ConnectionError as error:
        raise ConnectionError(
            f"tasks: the data of {', '.join(names)} can't be reached ({error}). They come from the "
            "Hugging Face hub: go online once to fill its cache, or give local tasks with include_path="
        ) from error
    return loaded


@cache
def _known_tasks() -> Any:
    """The tasks of `lm_eval` itself: thousands of files are read, so once is enough."""
    return TaskManager()


def accuracies(results: Mapping[str, Any], names: Sequence[str]) -> xr.Dataset:
    """Accuracies of the named tasks, or of all members where no name has results of its own.

    ``results`` holds what `lm_eval` returned, by variant.

    Raises:
        ValueError: a task without accuracy.
    """
    first = next(iter(results.values()))["results"]
    rows = [name for name in names if name in first] or list(first)
    shape = (len(rows), len(results))
    accuracy, error = np.full(shape, np.nan), np.full(shape, np.nan)
    for column, result in enumerate(results.values()):
        for row, name in enumerate(rows):
            found = result["results"][name]
            if "acc,none" not in found:
                given = sorted(key.partition(",")[0] for key in found if "," in key)
                raise ValueError(f"tasks: {name!r} has no accuracy (acc) but {given}")
            accuracy[row, column] = found["acc,none"]
            spread = found.get("acc_stderr,none")
            error[row, column] = spread if isinstance(spread, float) else np.nan
    samples = next(iter(results.values()))["n-samples"]
    questions = [_questions(name, samples, results) for name in rows]
    axes = ("task", "variant")
    named = {"units": "share of questions", "source": _CW}
    return xr.Dataset(
        {
            "accuracy": (axes, accuracy, {"long_name": "accuracy", **named}),
            "accuracy_se": (
                axes,
                error,
                {"long_name": "standard error over questions of: accuracy", **named},
            ),
            "questions": (
                ("task",),
                np.array(questions),
                {"long_name": "questions that were asked", "units": "questions", "source": ""},
            ),
        },
        coords={"task": rows, "variant": list(results)},
    )


def _questions(name: str, samples: Mapping[str, Any], results: Mapping[str, Any]) -> int:
    if name in samples:
        return int(samples[name]["effective"])
    members = next(iter(results.values())).get("group_subtasks", {}).get(name, [])
    return sum(_questions(member, samples, results) for member in members)
