"""How the cost of a sink and of the diagonal grows with the number of tokens.

Sukenik et al., arXiv 2605.08453, find T for the sink against T^(3/2) for the diagonal. With the cost
of :mod:`tl_geometry.measures.cost` the gap of 1/2 shows on orthonormal tokens in the nuclear norm,
while the Frobenius costs of both are the same; on tokens that fill their space (T near 2d) the sink
becomes the dearer one, and then infeasible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from tl_geometry.arguments import confidence_level, one_of, whole_number
from tl_geometry.measures.checks import check_axes
from tl_geometry.measures.cost import RepresentationCost, representation_cost
from tl_geometry.measures.cost_solver import Norm
from tl_geometry.measures.devices import check_numbers

TokenKind = Literal["orthonormal", "random"]


@dataclass(frozen=True)
class Exponent:
    """Slope of log cost over log T with its interval; NaN where there are too few costs."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CostScaling:
    """Costs of both targets at each length, and how they grow.

    Attributes:
        lengths: numbers of tokens T.
        sink, diagonal: costs; NaN where infeasible, or where the solver did not finish.
        sink_infeasible, diagonal_infeasible: share of the samples in which no W represents the
            target.
        sink_exponent, diagonal_exponent: of T, from the lengths at which a sample has both costs.
        gap: exponent of the diagonal less that of the sink, sample by sample.
        turns_round: the length from which on the sink is dearer than the diagonal, or infeasible
            where the diagonal is not, in more than half of the samples; None if it never is.
    """

    lengths: tuple[int, ...]
    sink: Float[Tensor, "sample length"]
    diagonal: Float[Tensor, "sample length"]
    sink_infeasible: Float[Tensor, " length"]
    diagonal_infeasible: Float[Tensor, " length"]
    sink_exponent: Exponent
    diagonal_exponent: Exponent
    gap: Exponent
    turns_round: int | None

    @property
    def infeasible(self) -> dict[str, tuple[int, ...]]:
        """Lengths at which some sample is infeasible, by target."""
        shares = {"sink": self.sink_infeasible, "diagonal": self.diagonal_infeasible}
        return {
            target: tuple(T for T, s in zip(self.lengths, share.tolist(), strict=True) if s > 0)
            for target, share in shares.items()
        }


def cost_scaling(
    lengths: Sequence[int] = (8, 16, 32, 64),
    *,
    tokens: TokenKind | Float[Tensor, "pos d"] = "orthonormal",
    d: int | None = None,
    norm: Norm = "nuclear",
    margin: float | int = 1.0,
    causal: bool = True,
    seeds: Sequence[int] = (0, 1, 2, 3),
    confidence: float | int = 0.95,
    tolerance: float | int = 1e-3,
    max_iterations: int = 5000,
) -> CostScaling:
    """Fit cost ~ T^exponent for the sink and for the diagonal, and the gap between the exponents.

    >>> scaling = cost_scaling((4, 8, 16), norm="frobenius")
    >>> scaling.turns_round is None, abs(scaling.gap.value) < 0.02
    (True, True)

    Args:
        lengths: numbers of tokens, at least 2 each.
        tokens: "orthonormal"; "random", Gaussian with variance 1/d; or your own, the sink first, of
            which every sample draws its others, in their order.
        d: dimensions of random tokens, the largest length by default.
        seeds: one sample each; the shorter ones of a sample are the beginnings of the longer ones.
            Orthonormal tokens are one sample.
        confidence: coverage of the intervals. They are Student's: over the exponents of the
            samples, or of a single sample from the residuals of its fit.

    Other arguments as in :func:`tl_geometry.representation_cost`. Slopes are least squares on logs,
    equally weighted.

    Raises:
        TypeError: a length, d or seed that is no integer.
        ValueError: fewer than two lengths, a length below 2 or beyond the tokens (or d of
            orthonormal ones), no seed, a negative or repeated one, a confidence outside (0, 1).
    """
    sizes = tuple(whole_number("each of lengths", T) for T in lengths)
    d, confidence = None if d is None else whole_number("d", d), confidence_level(confidence)
    if len(set(sizes)) < 2 or list(sizes) != sorted(set(sizes)) or sizes[0] < 2:
        raise ValueError(
            f"lengths must be two or more increasing numbers of at least 2 tokens, got {sizes}"
        )
    samples = _samples(tokens, sizes, d, tuple(whole_number("each of seeds", k, 0) for k in seeds))
    found = {
        target: [
            [
                representation_cost(
                    x,
                    target,
                    norm,
                    margin,
                    causal=causal,
                    tolerance=tolerance,
                    max_iterations=max_iterations,
                )
                for x in sample
            ]
            for sample in samples
        ]
        for target in ("sink", "diagonal")
    }
    costs = {target: _table(rows, "cost") for target, rows in found.items()}
    impossible = {
        target: torch.tensor([[cost.infeasible for cost in row] for row in rows])
        for target, rows in found.items()
    }
    # Bounds decide, so that equal costs are not told apart by what the solver left open.
    dearer = _table(found["sink"], "lower") > _table(found["diagonal"], "upper")
    dearer |= impossible["sink"] & ~impossible["diagonal"]
    exponents = _exponents(sizes, costs, confidence)
    return CostScaling(
        lengths=sizes,
        sink=costs["sink"],
        diagonal=costs["diagonal"],
        sink_infeasible=impossible["sink"].double().mean(0),
        diagonal_infeasible=impossible["diagonal"].double().mean(0),
        sink_exponent=exponents[0],
        diagonal_exponent=exponents[1],
        gap=exponents[2],
        turns_round=_start_of_tail(sizes, (dearer.double().mean(0) > 0.5).tolist()),
    )


def _samples(
    tokens: TokenKind | Float[Tensor, "pos d"],
    lengths: tuple[int, ...],
    d: int | None,
    seeds: tuple[int, ...],
) -> list[list[Float[Tensor, "_ _"]]]:
    """For each sample its tokens of each length."""
    if isinstance(tokens, str):
        one_of("tokens", tokens, ("orthonormal", "random"))
        width = lengths[-1] if d is None else d
        if width < 1 or (tokens == "orthonormal" and width < lengths[-1]):
            raise ValueError(
                f"d={d} is too small: {lengths[-1]} {tokens} tokens need at least "
                f"{lengths[-1] if tokens == 'orthonormal' else 1}"
            )
        if tokens == "orthonormal":
            return [[torch.eye(T, width, dtype=torch.float64) for T in lengths]]
    else:
        check_axes("tokens", tokens, "pos d")
        check_numbers("tokens", tokens, "the costs depend on them")
        if d is not None:
            raise ValueError(f"d={d} is for drawn tokens; yours have {tokens.shape[1]} dimensions")
        if len(tokens) < lengths[-1]:
            raise ValueError(f"lengths go up to {lengths[-1]}, but tokens holds {len(tokens)}")
    if not seeds:
        raise ValueError("seeds is empty: give one or more")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ, since each is one sample, got {seeds}")
    samples = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        if isinstance(tokens, str):
            drawn = torch.randn(lengths[-1], width, generator=generator, dtype=torch.float64)
            samples.append([drawn[:T] / width**0.5 for T in lengths])
        else:
            order = 1 + torch.randperm(len(tokens) - 1, generator=generator)
            order = torch.cat([torch.zeros(1, dtype=order.dtype), order]).to(tokens.device)
            samples.append([tokens[order[:T].sort().values] for T in lengths])
    return samples


def _table(rows: list[list[RepresentationCost]], field: str) -> Float[Tensor, "sample length"]:
    return torch.tensor(
        [[getattr(cost, field) for cost in row] for row in rows], dtype=torch.float64
    )


def _exponents(
    lengths: tuple[int, ...], costs: dict[str, Tensor], confidence: float | int
) -> tuple[Exponent, Exponent, Exponent]:
    """Of the sink, of the diagonal, and their gap."""
    sink, diagonal = (costs[target].log().numpy() for target in ("sink", "diagonal"))
    known = ~np.isnan(diagonal - sink)
    logs = np.log(lengths)
    first, second, gap = (
        _pooled([_line(logs[k], y[k]) for k, y in zip(known, rows, strict=True)], confidence)
        for rows in (sink, diagonal, diagonal - sink)
    )
    return first, second, gap


def _line(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float, int]:
    """Least-squares slope, its standard error and the degrees of freedom; NaN where undetermined."""
    freedom = len(x) - 2
    if freedom < 0:
        return float("nan"), float("nan"), 0
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    if freedom == 0:
        return slope, float("nan"), 0
    residual = y - y.mean() - slope * x
    return slope, float(np.sqrt(residual @ residual / freedom / (x @ x))), freedom


def _pooled(lines: list[tuple[float, float, int]], confidence: float | int) -> Exponent:
    """The mean slope of the samples that have one, with Student's interval."""
    lines = [line for line in lines if not np.isnan(line[0])]
    if not lines:
        return Exponent(float("nan"), float("nan"), float("nan"))
    slopes = np.array([slope for slope, _, _ in lines])
    error, freedom = lines[0][1:]
    if len(lines) > 1:
        error, freedom = float(slopes.std(ddof=1) / np.sqrt(len(lines))), len(lines) - 1
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error if freedom else float("nan")
    value = float(slopes.mean())
    return Exponent(value, value - reach, value + reach)


def _start_of_tail(lengths: tuple[int, ...], flags: list[bool]) -> int | None:
    """The first length from which on all flags are set."""
    start = None
    for T, flag in zip(reversed(lengths), reversed(flags), strict=True):
        if not flag:
            break
        start = T
    return start
