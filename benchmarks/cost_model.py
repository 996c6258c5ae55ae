"""``python -m benchmarks.cost_model``: what measuring a large model takes, computed from formulas; nothing is run.

Operations are those of matrix products as torch counts them, two per multiplication, of one document and the default
measures after a first batch. Bytes moved are those of whole passes over the pattern and
its temporaries. docs/scaling.md writes the formulas out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tl_geometry.analysis.accumulator import Accumulator
from tl_geometry.analysis.defaults import default_measures
from tl_geometry.analysis.separability import Separability
from tl_geometry.analysis.sinks import Sinks
from tl_geometry.analysis.switches import Switches
from tl_geometry.measures.layer import DEVICE_ELEMENTS

GB = 10**9
CAPACITY = 80 * GB

EAGER_BYTES = 10
"""Per entry of the pattern in bfloat16 at a TransformerBridge's softmax: scores, float32 copy, float32 weights."""

MEASURED_BYTES = 8
"""Per entry while a layer is measured: scores 2, pattern 2, and our float32 copy."""

EAGER_MOVED = 24
"""Bytes moved per entry by eager attention: two products, scale, mask, softmax in float32, rounding."""

OUR_PASSES = 28
"""How often the default measures read the pattern (6) or read or write a temporary of its size (22)."""

OUR_MOVED = OUR_PASSES * 4 // 2 + 10
"""These passes in float32 over the causal half, and what half precision adds (copy, z)."""

BFLOAT16_RATE, FLOAT32_RATE, MEMORY_RATE = 312e12, 19.5e12, 2.0e12
"""Operations and bytes per second, from the data sheet of an A100 with 80 GB."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int
    heads: int
    kv_heads: int
    d_head: int
    d_model: int
    d_mlp: int
    vocabulary: int
    mlp_matrices: int = 3

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of one layer."""
        attention = 2 * self.d_model * self.d_head * (self.heads + self.kv_heads)
        return attention + self.mlp_matrices * self.d_model * self.d_mlp

    @property
    def weights(self) -> int:
        """All matrices, embedding and unembedding included."""
        return self.layers * self.layer_weights + 2 * self.vocabulary * self.d_model


MODELS = {
    "7B, one 80 GB GPU": (Shape(32, 32, 32, 128, 4096, 11008, 32000), 1),
    "70B, eight 80 GB GPUs": (Shape(80, 64, 8, 128, 8192, 28672, 32000), 8),
}


def forward_flops(shape: Shape, tokens: int) -> int:
    """The model's own products: each weight once per token, and two of T x T x d_head per head."""
    weights = shape.layers * shape.layer_weights + shape.vocabulary * shape.d_model
    attention = 2 * tokens * shape.d_head * shape.heads * shape.layers
    return 2 * tokens * (weights + attention)


def rows_at_once(shape: Shape, tokens: int, copies: int, elements: int) -> int:
    """How many rows of all heads are worked on together."""
    return max(1, elements // (shape.heads * tokens * copies))


def pairs(shape: Shape, tokens: int, copies: int, elements: int) -> int:
    """Entries of one head's pattern that blocks of rows of a causal layer take: T^2 / 2, and half a block per row."""
    step = rows_at_once(shape, tokens, copies, elements)
    ends = [min(start + step, tokens) for start in range(0, tokens, step)]
    return sum((end - start) * end for start, end in zip([0, *ends], ends, strict=False))


def layer_flops(
    shape: Shape,
    tokens: int,
    *,
    elements: int = DEVICE_ELEMENTS,
    half: bool = True,
    host: bool = False,
) -> dict[str, int]:
    """The default measures' products in one causal layer of one document, measure by measure.

    ``elements`` are worked on at once. ``half``: the model is in half precision, so z is mixed anew in float32.
    ``host``: on a CPU, where rows are scored against the keys up to the last of a block only.
    """
    T, H, K, d, D = tokens, shape.heads, shape.kv_heads, shape.d_head, shape.d_model
    two, four = (pairs(shape, T, copies, elements) for copies in (2, 4))
    row = 2 * H * T * d  # one vector of d_head numbers for each token and head
    queries = min(Switches().queries, T)
    return {
        "shared": 2 * row * d  # values and outputs in the frame
        + 2 * 5 * H * two  # five sums over each row
        + 2 * K * T * d  # the check of z
        + (row * T if half else 0),
        "contributions": 2 * 2 * H * four * d  # both modes
        + 2 * row * D  # the layer's output, and back to the heads
        + 2 * row + 2 * H * T,
        "regimes": row,
        "sinks": 2 * H * two * (d + 1)  # outputs without their sinks
        + (6 + Sinks().tail_queries) * row + 6 * H * d,
        "separability": _separability(shape, T, elements, host=host)
        + 2 * K * d * (four + T),  # the certificate's cosines
        "switches": queries * (row + 2 * H * d * (d + 1)),
        "smoothing": 2 * T * D,
    }  # fmt: skip


def _separability(shape: Shape, tokens: int, elements: int, *, host: bool) -> int:
    settings = Separability().settings
    sizes, queries = settings["top_n"], settings["queries"]
    control = min(settings["control_queries"], queries)
    total = 0
    for rows, times in ((queries, 2), (control, settings["repeats"])):
        count = min(rows, tokens)
        places = [(place * tokens) // count for place in range(1, count + 1)]
        step = rows_at_once(shape, tokens, 2 * len(sizes) + 4, elements)
        for start in range(0, count, step):
            block = places[start : start + step]
            keys = block[-1] if host else tokens
            total += times * len(block) * (keys + min(max(sizes), keys))
    return 2 * shape.heads * len(sizes) * shape.d_head * total


def measure_flops(shape: Shape, tokens: int) -> int:
    """All layers' default measures on an accelerator, the model in half precision."""
    return shape.layers * sum(layer_flops(shape, tokens).values())


def linear_bytes(shape: Shape, tokens: int) -> int:
    """What one layer's measures hold beside the pattern and blocks of it: an upper bound that the tests hold.

    Values, outputs, duals and the like with the rows that are scored, the layer's output and its direction, W_O in
    float32, and a mask T x T as bool and int32.
    """
    vectors = shape.heads * tokens * (11 * shape.d_head + 160) + 2 * tokens * shape.d_model
    weight = shape.heads * shape.d_head * shape.d_model
    return 4 * (vectors + weight) + 2 * tokens**2


def frame_bytes(shape: Shape) -> int:
    """Factored output projections, all layers."""
    return 4 * shape.layers * shape.heads * shape.d_head**2


def state_numbers(measures: list[Accumulator] | None = None) -> tuple[int, int]:
    """Numbers in the states of measures: per layer and head, and per layer."""
    sizes = []
    for heads in (1, 2):
        bound = default_measures(stream=True) if measures is None else measures
        for measure in bound:
            measure.bind(1, heads)
        sizes.append(sum(getattr(m, name).numel() for m in bound for name in m.variables))
    per_head = sizes[1] - sizes[0]
    return per_head, sizes[0] - per_head


def peak_bytes(shape: Shape, tokens: int, devices: int = 1) -> int:
    """A device's peak in bfloat16: its share of the weights and the worst moment of one layer; no MLP, no logits."""
    entries = shape.heads * tokens**2
    held = 2 * shape.weights // devices + frame_bytes(shape) // devices
    measuring = MEASURED_BYTES * entries + linear_bytes(shape, tokens) + 4 * DEVICE_ELEMENTS
    return held + max(EAGER_BYTES * entries, measuring)


def longest_window(shape: Shape, devices: int = 1, capacity: int = CAPACITY) -> int:
    """Tokens of one document whose peak fits, a multiple of 256."""
    tokens = 0
    while peak_bytes(shape, tokens + 256, devices) <= capacity:
        tokens += 256
    return tokens


def table(tokens: int, shape: Shape, devices: int) -> list[tuple[str, str]]:
    """What to expect, line by line."""
    entries, forward, ours = (
        shape.heads * tokens**2,
        forward_flops(shape, tokens),
        measure_flops(shape, tokens),
    )
    moved = [shape.layers * entries * x for x in (EAGER_MOVED, OUR_MOVED)]
    busy = forward / BFLOAT16_RATE, ours / FLOAT32_RATE
    seconds = [done + bytes_ / MEMORY_RATE for done, bytes_ in zip(busy, moved, strict=True)]
    peak = peak_bytes(shape, tokens, devices)
    return [
        ("operations of the forward", f"{forward / 1e12:,.0f} TFLOP"),
        ("operations of the default measures", f"{ours / 1e12:,.0f} TFLOP"),
        ("their ratio", f"{ours / forward:.2f}"),
        ("bytes moved by eager attention", f"{moved[0] / 1e12:,.2f} TB"),
        ("bytes moved by the default measures", f"{moved[1] / 1e12:,.2f} TB"),
        ("time of the forward at peak rates", f"{seconds[0]:,.1f} s"),
        ("time of the measures at peak rates", f"{seconds[1]:,.1f} s"),
        ("weights on each GPU", f"{2 * shape.weights / devices / GB:.1f} GB"),
        ("factored output projections on each GPU", f"{frame_bytes(shape) / devices / GB:.2f} GB"),
        ("one layer's pattern, bfloat16", f"{2 * entries / GB:.2f} GB"),
        ("the model's eager attention at its peak", f"{EAGER_BYTES * entries / GB:.1f} GB"),
        ("our float32 copy of the pattern", f"{4 * entries / GB:.2f} GB"),
        ("values, outputs, masks of one layer", f"{linear_bytes(shape, tokens) / GB:.2f} GB"),
        ("temporaries", f"{4 * DEVICE_ELEMENTS / GB:.2f} GB"),
        ("peak of a GPU", f"{peak / GB:.1f} GB"),
        ("fits", "yes" if peak <= CAPACITY else "no"),
    ]


def main() -> None:
    print("computed, not measured; bfloat16, one document at a time, every layer")
    for name, (shape, devices) in MODELS.items():
        columns = [table(tokens, shape, devices) for tokens in (4096, 32768)]
        print(f"\n{name:<42}{'T = 4,096':>14}{'T = 32,768':>14}")
        for (what, short), (_, long) in zip(*columns, strict=True):
            print(f"{what:<42}{short:>14}{long:>14}")
        print(f"longest window that fits: {longest_window(shape, devices):,} tokens")
    per_head, per_layer = state_numbers()
    print(f"\nstates: {per_head} float64 numbers per layer and head, {per_layer} per layer")


if __name__ == "__main__":
    main()
