"""One attention layer as measures see it: its tensors, the rows and entries that count, its sinks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tl_geometry.arguments import one_of, true_or_false
from tl_geometry.measures.checks import check_layer, check_norm_weight, kv_bias
from tl_geometry.measures.devices import check_devices, check_numbers
from tl_geometry.measures.frame import OutputFrame
from tl_geometry.measures.masks import (
    SinkRule,
    mask_of,
    resolve_available,
    resolve_sinks,
    sink_ordinals,
)
from tl_geometry.measures.memory import default_budget
from tl_geometry.measures.scaling import work_dtype

_Found = TypeVar("_Found")

ValueBias: TypeAlias = Literal["as_hooked", "remove"]
Output: TypeAlias = Literal["raw", "normed"]

BLOCK_ELEMENTS = 2**22
"""Numbers that a host works on at once at most: few enough to stay in a processor's cache."""

DEVICE_ELEMENTS = 2**26
"""The same on an accelerator, which larger pieces keep busy."""


class AttentionLayer:
    """Pattern, values and output projection of one layer, with everything that follows from masks alone.

    Args:
        pattern: attention weights after the softmax.
        v: value vectors as hooked, one per key-value head; query head h reads kv head h // (heads /
            kv heads).
        W_O: output projection of each query head.
        available: entries that count (see :func:`tl_geometry.measures.masks.resolve_available`).
        sink: which keys are sinks.
        z: mixed values, if at hand in full precision; else ``pattern @ v`` is computed in float32.
        cross: queries and keys are different sequences, so no query is its own key.
        causal: whether no query may use a later key, where it is known; else it is read off ``available``.
        frame: the factored output projection, where it is at hand already.
        masked: entries of ``pattern`` outside ``available`` are known to be zero already.
        null_sinks: rows may sum to less than 1 by a learned null sink; False where the model has none.
        layer, documents: which layer and documents these are; random controls are seeded by them,
            so that they don't depend on how a corpus is batched.
        memory_budget: bytes that temporaries of the pattern's kind may take together, which decides how many
            rows are worked on at once (one row of all heads at least); by default a quarter of what is free.
        shared: what follows from masks and sinks alone, for layers that have them in common; filled as it is asked
            for. Not where sinks are found in the pattern.

    Raises:
        TypeError: an input is not a floating point tensor.
        ValueError: shapes, devices or options do not fit; the message names the argument.
    """

    def __init__(
        self,
        pattern: Float[Tensor, "batch head query key"],
        v: Float[Tensor, "batch key kv_head d_head"],
        W_O: Float[Tensor, "head d_head d_model"],
        *,
        available: Tensor | None = None,
        sink: SinkRule = "first",
        z: Float[Tensor, "batch query head d_head"] | None = None,
        value_bias: ValueBias = "as_hooked",
        b_V: Float[Tensor, "any_head d_head"] | None = None,
        output: Output = "raw",
        norm_weight: Float[Tensor, " d_model"] | None = None,
        cross: bool = False,
        causal: bool | None = None,
        frame: OutputFrame | None = None,
        masked: bool = False,
        null_sinks: bool = True,
        layer: int = 0,
        documents: Sequence[int] | None = None,
        memory_budget: int | None = None,
        shared: dict[Hashable, Any] | None = None,
    ) -> None:
        check_layer(pattern, v, W_O)
        check_devices(
            pattern=pattern,
            available=available,
            sink=mask_of(sink),
            z=z,
            b_V=b_V,
            norm_weight=norm_weight,
        )
        one_of("value_bias", value_bias, ("as_hooked", "remove"))
        one_of("output", output, ("raw", "normed"))
        self._shared = {} if shared is None else shared
        self.dtype = work_dtype(pattern, v, W_O)
        self.available = resolve_available(pattern, available)
        self.rounded = torch.finfo(pattern.dtype).bits < 32
        """Whether the weights came in half precision, so that rows sum to 1 only by some thousandths."""
        self.pattern = pattern.to(self.dtype)
        if available is not None and not masked:
            self.pattern = self.pattern.masked_fill(~self.available, 0)
        self.v = v.to(self.dtype)
        if available is not None:  # whatever stands at padding, NaN included, takes part in nothing
            self.v = self.v.masked_fill(~self.real_keys.any(1)[..., None, None], 0)
        self.hooked_v = self.v
        self._hooked_z = z
        if value_bias == "remove":
            bias = kv_bias(b_V, v, W_O)
            self.v = self.v - bias
            z = None if z is None or z.dtype != self.dtype else z - self._mixed_bias(bias)
        if output == "normed":
            check_norm_weight(norm_weight, W_O)
        self.W_O = W_O
        self._causal = causal
        self.null_sinks = null_sinks
        self.cross = true_or_false("cross", cross) or pattern.shape[2] != pattern.shape[3]
        self.layer = layer
        self.documents = tuple(range(pattern.shape[0])) if documents is None else tuple(documents)
        self._norm_weight = norm_weight if output == "normed" else None
        self._frame = frame
        self._z = z
        self._sink = sink
        self._budget = memory_budget

    def _mixed_bias(
        self, bias: Float[Tensor, "kv_head d_head"]
    ) -> Float[Tensor, "batch query head d_head"]:
        per_head = bias.repeat_interleave(self.n_heads // bias.shape[0], 0)
        return self.pattern.sum(-1).transpose(1, 2)[..., None] * per_head

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return self.pattern.shape[1]

    @property
    def n_queries(self) -> int:
        """Number of queries, padding included."""
        return self.pattern.shape[2]

    @property
    def n_keys(self) -> int:
        """Number of keys, padding included."""
        return self.pattern.shape[3]

    def per_head(self, x: Tensor, dim: int = 1) -> Tensor:
        """Repeat a kv-head axis for the query heads that read it."""
        group = self.n_heads // x.shape[dim]
        return x if group == 1 else x.repeat_interleave(group, dim)

    def _once(self, name: Hashable, compute: Callable[[], _Found]) -> _Found:
        """What layers with the same masks and sinks have in common, computed for the first of them."""
        if name not in self._shared:
            self._shared[name] = compute()
        found: _Found = self._shared[name]
        return found

    @property
    def rows(self) -> Bool[Tensor, "batch head_or_1 query"]:
        """Rows that count: queries which can see any key."""
        return self._once("rows", lambda: self.available.any(-1))

    @property
    def real_keys(self) -> Bool[Tensor, "batch head_or_1 key"]:
        """Keys that any query can see."""
        return self._once("real_keys", lambda: self.available.any(-2))

    @property
    def first_keys(self) -> Int[Tensor, "batch head_or_1 query"]:
        """The first key that each row may use; 0 for rows without one."""
        return self._once("first_keys", lambda: self.available.to(torch.uint8).argmax(-1))

    @property
    def sinks(self) -> Bool[Tensor, "batch head_or_1 key"]:
        """Keys that are sinks."""
        return self._once("sinks", lambda: resolve_sinks(self._sink, self.available, self.pattern))

    @property
    def sees_sink(self) -> Bool[Tensor, "batch head_or_1 query"]:
        """Queries from which a sink can be seen."""
        return self._once("sees_sink", lambda: (self.available & self.sinks.unsqueeze(-2)).any(-1))

    @property
    def sink_queries(self) -> Bool[Tensor, "batch head_or_1 query"]:
        """Queries that are sinks themselves (never, where queries and keys are different sequences)."""
        return torch.zeros_like(self.rows) if self.cross else self.sinks

    @property
    def sink_rows(self) -> Bool[Tensor, "batch head_or_1 query"]:
        """Rows that sink statistics count: later queries from which a sink can be seen."""
        return self._once("sink_rows", lambda: self.rows & self.sees_sink & ~self.sink_queries)

    @property
    def sink_keys(self) -> tuple[Int[Tensor, "batch head slot"], Bool[Tensor, "batch head slot"]]:
        """Positions of the sinks of each head, padded to the same number, and which of them are real."""
        return self._once("sink_keys", self._find_sink_keys)

    def _find_sink_keys(self) -> tuple[Tensor, Tensor]:
        if isinstance(self._sink, (str, Tensor)):
            first = isinstance(self._sink, str) and self._sink == "first"
            if not first:
                check_numbers("sink", self.sinks, "they decide how many sinks there are")
            slots = 1 if first else int(self.sinks.sum(-1).max())
        else:
            slots = min(len(sink_ordinals(self._sink)), self.n_keys)
        found = self.sinks.expand(-1, self.n_heads, -1).int().topk(slots, dim=-1)
        return found.indices, found.values > 0

    def sink_columns(
        self, x: Shaped[Tensor, "batch head query key"]
    ) -> Shaped[Tensor, "batch head query slot"]:
        """The columns of a quadratic tensor that belong to sinks; 0 in unused slots."""
        index, real = self.sink_keys
        columns = x.gather(-1, index.unsqueeze(-2).expand(-1, -1, x.shape[-2], -1))
        return columns * real.unsqueeze(-2)

    def sink_vectors(
        self, x: Float[Tensor, "batch head key d"]
    ) -> Float[Tensor, "batch head slot d"]:
        """The vectors that belong to sinks."""
        index, _ = self.sink_keys
        return x.gather(-2, index.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1]))

    @property
    def sink_seen(self) -> Bool[Tensor, "batch head query slot"]:
        """Whether a query can see each of its sinks."""
        return self._once(
            "sink_seen", lambda: self.sink_columns(self.available.expand(-1, self.n_heads, -1, -1))
        )

    @cached_property
    def sink_attention(self) -> Float[Tensor, "batch head query"]:
        """Attention of each row to its sinks together: the sink rate of the row."""
        return self.sink_columns(self.pattern).sum(-1)

    @cached_property
    def causal(self) -> bool:
        """Whether no query may use a later key."""
        if self._causal is None:
            unknown = self.cross or self.available.device.type == "meta"
            self._causal = not unknown and not bool(self.available.triu(1).any())
        return self._causal

    def spread_rows(self, n: int) -> tuple[Int[Tensor, "batch row"], Bool[Tensor, "batch row"]]:
        """Up to ``n`` evenly spaced real rows of each document, its last included, and which of them exist.

        Chosen among the real rows only, so that padding doesn't move them.
        """
        return self._once(("spread_rows", n), lambda: self._spread_rows(n))

    def _spread_rows(self, n: int) -> tuple[Tensor, Tensor]:
        real = self.rows.any(1)
        count = real.sum(-1, keepdim=True)
        place = torch.arange(1, n + 1, device=real.device)
        rank = torch.where(count > n, (place * count).div(n, rounding_mode="floor"), place) - 1
        in_order = (~real).to(torch.uint8).sort(dim=-1, stable=True).indices
        return in_order.gather(-1, rank.clamp(max=self.n_queries - 1)), rank < count

    @staticmethod
    def take_rows(
        x: Shaped[Tensor, "batch head query any"], rows: Int[Tensor, "batch row"]
    ) -> Shaped[Tensor, "batch head row any"]:
        """Rows of each document by position."""
        return x.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

    @property
    def block_elements(self) -> int:
        """Numbers that may be worked on at once."""
        device = self.pattern.device
        budget = self._budget or self._once("free memory", lambda: default_budget(device))
        most = BLOCK_ELEMENTS if device.type in ("cpu", "meta") else DEVICE_ELEMENTS
        return min(most, budget // self.pattern.element_size())

    def blocks(self, n_rows: int, copies: int = 2) -> Iterator[slice]:
        """Cut so many chosen rows in slices of which all heads' temporaries stay small.

        ``copies`` is how many of them there are at a time, each of a number per entry of the pattern.
        """
        per_row = self.pattern.shape[0] * self.n_heads * self.n_keys * copies
        step = max(1, self.block_elements // max(1, per_row))
        for start in range(0, n_rows, step):
            yield slice(start, min(start + step, n_rows))

    def spans(self, copies: int = 2) -> Iterator[tuple[slice, slice]]:
        """Slices of all rows, each with the slice of keys that a causal layer's rows can use at most."""
        for rows in self.blocks(self.n_queries, copies):
            yield rows, slice(0, rows.stop if self.causal else self.n_keys)
