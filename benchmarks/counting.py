"""What hooks allocate and compute, counted instead of timed: the same on every machine.

Bytes are those of live tensor storages that operators inside the hooks made, from the moment they are made
until they are freed, wherever that is. Scratch memory inside a kernel (packed operands of a matrix product,
the buffers of a sort) is not seen, nor are the model's own tensors. Operations are those of matrix products,
as torch's FlopCounterMode counts them: it knows nothing else, so sums, norms and sorting are not among them.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

Hooks = Sequence[tuple[Any, Callable[..., Any]]]


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that were made while this mode was on, and their peak.

    >>> live = LiveBytes()
    >>> with live:
    ...     x = torch.zeros(256)
    >>> live.now, live.peak
    (1024, 1024)
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, tuple[int, Any]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        given = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if _is_tensor(x)}
        result = func(*args, **kwargs)
        for x in filter(_is_tensor, tree_leaves(result)):
            storage = x.untyped_storage()
            if id(storage) not in given and id(storage) not in self._alive:
                self._add(storage)
        return result

    def _add(self, storage: Any) -> None:
        # The Python object of a storage lives exactly as long as the storage itself.
        key, size = id(storage), storage.nbytes()
        self._alive[key] = size, weakref.ref(storage, partial(self._drop, key))
        self.now += size
        self.peak = max(self.peak, self.now)

    def _drop(self, key: int, _: object) -> None:
        self.now -= self._alive.pop(key)[0]


def _is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def around(hooks: Hooks, region: Any) -> list[tuple[Any, Callable[..., Any]]]:
    """The same hooks, each of them run inside a context manager that can be entered again and again."""

    def run(function: Callable[..., Any], tensor: Tensor, hook: Any) -> Any:
        with region:
            return function(tensor, hook)

    return [(name, partial(run, function)) for name, function in hooks]


class Stopwatch:
    """Seconds spent inside a region, added up.

    >>> watch = Stopwatch()
    >>> with watch:
    ...     work()
    >>> watch.seconds
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start


@torch.no_grad()
def peak_of_hooks(model: Any, tokens: Tensor, hooks: Hooks, **arguments: Any) -> int:
    """Peak, in bytes, of what the hooks allocate in one forward; ``arguments`` go to the model."""
    live = LiveBytes()
    model.run_with_hooks(tokens, fwd_hooks=around(hooks, live), return_type=None, **arguments)
    return live.peak


@torch.no_grad()
def flops_of_hooks(model: Any, tokens: Tensor, hooks: Hooks) -> int:
    """Operations of the matrix products inside the hooks: those of a run with them less those of one without."""
    counts = []
    for fwd_hooks in (hooks, []):
        with FlopCounterMode(display=False) as counter:
            model.run_with_hooks(tokens, fwd_hooks=list(fwd_hooks), return_type=None)
        counts.append(counter.get_total_flops())
    return counts[0] - counts[1]


def least_contribution_flops(
    layers: int, heads: int, d_head: int, d_model: int, tokens: int, batch: int = 1
) -> int:
    """What contribution weights of both modes can't do without, if every query sees every key.

    Per head and mode one product T x T x d_head; in inter mode also z W_O, and the layer's output back through W_O^T.
    """
    products = 2 * 2 * tokens * tokens * d_head
    projections = 2 * 2 * tokens * d_model * d_head
    return layers * batch * heads * (products + projections)
