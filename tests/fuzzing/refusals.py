"""What no measure may take, by the name of the parameter, and the check that it says so."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

NAN, INF = float("nan"), float("inf")
WORDS = ("last", "", None, 3, ["intra"], {})
NO_BOOL = ("no", 1, None, [True], np.array([True]))
NO_COUNT = (0, -1, 1.5, "1", True, None, [2], NAN)
NO_SEED = (-1, 1.5, "1", True, None, 2**64, [1])
NO_INTEGERS = (
    None,
    1.5,
    "3",
    [1.5],
    [0],
    [],
    True,
    [True],
    ["1"],
    [[1]],
    np.array([1.0]),
    {"a": 1},
)
NO_SHARE = (-0.1, 1.1, NAN, "0.5", None, [0.5], True, 1j)
NO_RANGE = ((0.5, -0.5), (-2, 0), (0, NAN), "ab", (0,), (0, 0.5, 1), 3, [None, 1], ("0", "1"))

SCALARS: dict[str, tuple[Any, ...]] = {
    "mode": WORDS,
    "kind": WORDS,
    "space": ("key", None, 3, ["head"]),
    "rank_by": WORDS,
    "distance": WORDS,
    "value_bias": WORDS,
    "output": WORDS,
    "target": WORDS,
    "queries": ("first", 0, -3, 1.5, None, [1], torch.tensor([0.5]), torch.tensor([99])),
    "normalized": NO_BOOL,
    "absolute": NO_BOOL,
    "cross": NO_BOOL,
    "without_sink": NO_BOOL,
    "exclude_sink": NO_BOOL,
    "skip_first": NO_BOOL,
    "control": NO_BOOL,
    "causal": NO_BOOL,
    "top_n": NO_INTEGERS,
    "repeats": NO_COUNT,
    "max_iterations": NO_COUNT,
    "length": NO_COUNT,
    "seed": NO_SEED,
    "epsilon": NO_SHARE,
    "rate": NO_SHARE,
    "mixing": NO_SHARE,
    "norm": ("0.5", [0.5, -1], [], NAN, ["1"], True, {}),
    "fractions": ("0.5", None, [NAN], [INF], [-1], [], [0], 0.5, ["0.1"], [None], [True]),
    "cosine": NO_RANGE,
    "sink_cosine": NO_RANGE,
    "sink_norm_ratio": (-1, NAN, INF, "1", [1], True),
    "margin": (0, -1, NAN, INF, "1", None, True),
    "tolerance": (0, -1, NAN, INF, "1", None, True),
    "generator": (3, "cpu"),
}
SINKS = (
    "last", -1, 10**6, 1.5, None, True, [0, -1], [0.5], [True], [], {}, ["0"],
    torch.tensor(0.5), torch.tensor([[0]]), torch.ones(1, dtype=torch.bool),
    torch.ones(9, 9, 9, dtype=torch.bool), np.array([0.5]), object(),
)  # fmt: skip


def no_tensors(x: Tensor) -> Iterator[Any]:
    """What can't take the place of a floating point tensor of this shape."""
    yield from (x[0], x[None], x.long(), x.bool(), x.to(torch.complex64), x.float().numpy())
    yield from (x.tolist(), None, "x", 1.0, x[:0], x.narrow(-1, 0, 0))
    yield torch.cat([x, x], -1)[..., : x.shape[-1] + 1]


def no_masks(mask: Tensor) -> Iterator[Any]:
    """What can't take the place of a mask ``batch head query key``."""
    yield from (mask.float(), mask.int(), mask.numpy(), mask.tolist(), "causal", 1, True)
    yield from (mask[0, 0, 0], mask[None], torch.cat([mask, mask], -1)[..., : mask.shape[-1] + 1])
    yield from (mask[:, :, :0], torch.ones(7, *mask.shape[1:], dtype=torch.bool))


def refuses(name: str, function: Callable[..., Any], arguments: dict[str, Any], wrong: str) -> None:
    """Calling must raise TypeError or ValueError with the argument's name in the message."""
    value = arguments[wrong]
    shown = f"{name}({wrong}={_shown(value)})"
    try:
        found = function(**arguments)
    except (TypeError, ValueError) as error:  # any other one fails the test by itself
        if re.search(rf"\b{wrong}\b", str(error)):
            return
        raise AssertionError(f"{shown} raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{shown} was taken and gave {str(found)[:200]}")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"{type(value).__name__} {str(value)[:60]}"


def wrong_scalars(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Every parameter of the function in the table above with every value that it must refuse."""
    for name, parameter in inspect.signature(function).parameters.items():
        for value in SCALARS.get(name, ()):
            if value is None and parameter.default is None:
                continue
            yield name, value
