"""The maps of single variables: their words, their sources, and how values become colours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tl_geometry.views.null_sinks import RATE
from tl_geometry.views.results import Values, number, significant

CW = "Cunningham & Muca Cirone, “Contribution Weights”, arXiv 2606.07604"
TS = "Mudarisov et al., “Geometric Analysis of Token Selection”, arXiv 2602.01893"
SD = "Sukenik et al., “Sink vs. diagonal patterns”, arXiv 2605.08453"
GU = "Gu et al., “When Attention Sink Emerges in Language Models”, arXiv 2410.10781"

# Cells without a value stay white, so no scale begins at white.
SEQUENTIAL = ("#dde6f0", "#9dbcdb", "#4f87bd", "#1d559a", "#0a2a5c")
DIVERGING = ("#8c3b04", "#d07b2c", "#f0c291", "#e9e9e6", "#a3c1df", "#4480bd", "#123f80")
COVERED = 99.0  # percent of the values that a capped scale spans


@dataclass(frozen=True)
class HeadMap:
    """How one variable is shown.

    Args:
        variable: Name in the result.
        title: Heading of the map.
        quantity: What a number is, for colour bar and hover.
        scale: "share" 0 to 1; "positive" 0 to the largest; "signed" around 0; "ratio" around 1.
        text: A value for the hover.
        reading: How to read the map.
        source: Where the quantity is from.
    """

    variable: str
    title: str
    quantity: str
    scale: Literal["share", "positive", "signed", "ratio"]
    text: Callable[[float], str]
    reading: str
    source: str

    def at(self, size: int) -> HeadMap:
        """The same map at one N, which its title names."""
        return replace(self, title=f"{self.title}, N = {size}")


@dataclass(frozen=True)
class Colours:
    """Values made ready for a colour scale from `low` to `high`."""

    z: Values
    low: float
    high: float
    scale: list[tuple[float, str]]
    title: str
    tick_positions: list[float]
    tick_labels: list[str]
    capped: int


_ALL = (
    HeadMap(
        "sink_rate",
        "Attention to the sink",
        "sink rate",
        "share",
        number,
        "The darker a cell, the larger the share of attention that the head's later tokens give "
        "to the sink.",
        f"Sink rate as in {CW}; attention sinks: {GU}",
    ),
    HeadMap(
        RATE,
        "Attention to the null sink",
        "null sink rate",
        "share",
        number,
        "The darker a cell, the larger the share of attention that the head gives to no token at all: to a learned "
        "null sink, whose value is 0.",
        GU,
    ),
    HeadMap(
        "sink_norm_ratio",
        "Length of the sink's value vector",
        "norm ratio",
        "ratio",
        significant,
        "Brown: the sink's value vector is shorter than the median of the other tokens', blue: "
        "longer, pale: equally long. The scale is logarithmic.",
        TS,
    ),
    HeadMap(
        "contribution_attention_distance",
        "Contribution weights against attention",
        "distance",
        "positive",
        number,
        "Half the summed absolute difference between a query's contribution weights and its "
        "attention, mean over queries: pale heads are told truly by their attention, dark ones "
        "are not.",
        CW,
    ),
    HeadMap(
        "contribution_sink",
        "The sink's contribution",
        "contribution weight",
        "signed",
        number,
        "Mean contribution weight of the sink within its head. Blue: it pushes the output along; "
        "brown: it works against what the other tokens write.",
        CW,
    ),
    HeadMap(
        "contribution_inter",
        "Share of the layer's output",
        "share",
        "signed",
        number,
        "How much of the layer's output a head supplies; the shares of a layer sum to 1. Brown: "
        "the head works against the sum of all heads.",
        f"{CW} (inter-head)",
    ),
    HeadMap(
        "diagonal_attention",
        "Attention to the token itself",
        "attention",
        "share",
        number,
        "The darker a cell, the larger the share of attention that the head's tokens keep to "
        "themselves, the sink's own row left out.",
        SD,
    ),
    HeadMap(
        "mixing_ratio_no_sink",
        "Mixing of tokens, sink left out",
        "mixing ratio",
        "share",
        number,
        "The part of other tokens in a row's output, by length, against that of its own token. "
        "Pale heads let no other token in: they act like an MLP.",
        f"Mixing ratio: Kobayashi et al., arXiv 2109.07152; as a soft switch: {SD}",
    ),
)
MAPS = {spec.variable: spec for spec in _ALL}

# Maps at a chosen N.
F_SCORE = HeadMap(
    "f_score",
    "F of the most attended tokens",
    "F",
    "share",
    number,
    "1 (darkest): the N most attended tokens of a query always form a cluster of their own; 0: "
    "none of them is nearer to their sum than the nearest other token.",
    TS,
)
F_GAIN = HeadMap(
    "f_gain",
    "F above the random control",
    "F − control",
    "signed",
    number,
    "What selecting by attention adds to the F of as many random tokens. Blue: more separable than "
    "chance; brown: less.",
    TS,
)


def coloured(spec: HeadMap, grid: Values) -> Colours:
    """Choose range, ticks and colours; ranges are capped at the 99th percentile where open."""
    finite = grid[np.isfinite(grid)]
    if spec.scale == "share":
        return _linear(spec, grid, 0.0, 1.0, SEQUENTIAL)
    if spec.scale == "ratio":
        return _logarithmic(spec, grid)
    top = float(np.percentile(np.abs(finite), COVERED)) if finite.size else 1.0
    top = nice_limit(top)
    if spec.scale == "positive":
        return _linear(spec, grid, 0.0, top, SEQUENTIAL)
    return _linear(spec, grid, -top, top, DIVERGING)


def _linear(
    spec: HeadMap, grid: Values, low: float, high: float, palette: tuple[str, ...]
) -> Colours:
    ticks = np.linspace(low, high, 5).tolist()
    labels = [f"{tick:.3g}" for tick in ticks]
    slack = 0.002 * high  # as much as `nice_limit` rounds down
    below, above = int((grid < low - slack).sum()), int((grid > high + slack).sum())
    labels[0] = f"≤ {labels[0]}" if below else labels[0]
    labels[-1] = f"≥ {labels[-1]}" if above else labels[-1]
    scale = _even(palette)
    return Colours(grid, low, high, scale, spec.quantity, ticks, labels, below + above)


def _logarithmic(spec: HeadMap, grid: Values) -> Colours:
    z = np.log10(np.where(grid > 0, grid, np.nan))
    finite = np.abs(z[np.isfinite(z)])
    widest = float(np.percentile(finite, COVERED)) if finite.size else 1.0
    ratio = max(2.0, nice_limit(10**widest))
    top = float(np.log10(ratio))
    z = np.where(grid == 0, -top, z)  # a sink of length 0 has the darkest colour, not a blank
    inner = [step for step in (3.0, 10.0, 100.0, 1000.0) if step * 1.7 < ratio]
    inner = inner[-1:] if ratio > 30 else inner[:1]
    ratios = [1 / ratio, *(1 / r for r in inner), 1.0, *inner, ratio]
    labels = [f"{r:.2g}" for r in ratios]
    outside = np.abs(z) > top + 0.001
    labels[0] = f"≤ {labels[0]}" if (outside & (z < 0)).any() or (grid == 0).any() else labels[0]
    labels[-1] = f"≥ {labels[-1]}" if (outside & (z > 0)).any() else labels[-1]
    ticks = [float(np.log10(r)) for r in ratios]
    capped = int(outside.sum() + (grid == 0).sum())
    return Colours(z, -top, top, _even(DIVERGING), spec.quantity, ticks, labels, capped)


def _even(palette: tuple[str, ...]) -> list[tuple[float, str]]:
    return [(k / (len(palette) - 1), colour) for k, colour in enumerate(palette)]


def nice_limit(top: int | float) -> float:
    """The next of 1, 1.5, 2, 3, 5, 8 times a power of ten."""
    if top <= 0:
        return 1.0
    power = float(10 ** np.floor(np.log10(top)))
    return next(step * power for step in (1, 1.5, 2, 3, 5, 8, 10) if step * power >= top * 0.999)
