"""What it costs to attend to a sink, or to oneself: the smallest bilinear form that does it.

Sukenik et al., arXiv 2605.08453, compare the norms of weights that represent a sink and a diagonal;
the program below is our reconstruction. It asks for the least norm of W with

    x_i^T W (x_t(i) - x_j) >= margin    for all i and all other j that i may attend to,

where t(i) is the sink, or i itself. Rows with nothing to compete are left out. The nuclear norm of W is
the least (|W_Q|_F^2 + |W_K|_F^2) / 2 over W_Q W_K^T = W, what weight decay on both factors charges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tl_geometry.arguments import one_of, real_number, true_or_false, whole_number
from tl_geometry.measures.checks import check_axes
from tl_geometry.measures.cost_solver import Bracket, Leads, Norm, smallest_form
from tl_geometry.measures.devices import check_numbers
from tl_geometry.measures.halfspace import FEASIBLE_ABOVE
from tl_geometry.measures.min_norm import hull_distance
from tl_geometry.measures.scaling import power_of_two, scale, work_dtype

Target = Literal["sink", "diagonal"]

_TRIAL_ITERATIONS = 300
_LARGEST_EXACT = 2**24
_LARGEST_EXPONENT = 500


@dataclass(frozen=True)
class RepresentationCost:
    """The least norm of a W that represents a target, between two bounds.

    Attributes:
        cost: the upper bound once both agree to the tolerance, else NaN.
        upper: norm of `W`; NaN if none is known.
        lower: what every W costs at least; NaN if there is none.
        feasible: a W that satisfies every constraint is known.
        reason: why there is no cost: what makes it infeasible, or that the iterations ran out.
        iterations: of the solver.
        rank: dimensions that the tokens span, in which the solver works.
        basis: orthonormal vectors that span them.
        core: the feasible W in this basis, of margin `margin`; None if none is known.
    """

    cost: float
    upper: float
    lower: float
    feasible: bool
    reason: str
    iterations: int
    rank: int
    basis: Float[Tensor, "rank d"]
    core: Float[Tensor, "rank rank"] | None

    @property
    def infeasible(self) -> bool:
        """Whether no W at all represents the target; then there are no bounds either."""
        return self.lower != self.lower

    @property
    def W(self) -> Float[Tensor, "d d"] | None:  # noqa: N802
        """The feasible W of norm `upper`, in float64 on the CPU; None if none is known."""
        return None if self.core is None else self.basis.T @ self.core @ self.basis


def representation_cost(
    x: Float[Tensor, "pos d"],
    target: Target = "sink",
    norm: Norm = "frobenius",
    margin: float | int = 1.0,
    *,
    causal: bool = True,
    sink: int = 0,
    tolerance: float | int = 1e-4,
    max_iterations: int = 5000,
) -> RepresentationCost:
    """Norm of the smallest W whose scores x_i^T W x_j put the target ahead of all others by a margin.

    >>> found = representation_cost(torch.eye(8), "sink", "nuclear")
    >>> round(found.cost, 1), found.feasible                 # (T - 1) / sqrt(T)
    (2.5, True)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> representation_cost(x, "diagonal").reason
    'tokens 0 and 2 are equal'

    For T orthonormal tokens, causal, margin 1: Frobenius sqrt(T - 1/1 - 1/2 - ... - 1/T) for both
    targets; nuclear (T - 1) / sqrt(T) for the sink and about T for the diagonal.

    Args:
        x: what the queries and keys are made from, the inputs of an attention layer after its norm.
        target: "sink", the same key for every query, or "diagonal", each query's own position.
        norm: "frobenius" or "nuclear".
        margin: the least lead, in units of the scores. The cost is proportional to it, and to
            1 / |x|^2.
        causal: only keys up to the query compete; a sink is out of reach for the queries before it.
        sink: its position.
        tolerance: largest difference of the bounds, relative to the upper one.
        max_iterations: when to give up.

    Returns:
        Bounds and the W of the upper one, computed in float64 on the CPU. A sink is representable
        exactly if (a) the origin is not in the convex hull of the queries' tokens and (b) the sink
        is not in that of the others; distances below 2^-20 of the longest token count as none. The
        time for T tokens grows like T^3: with 64 below a second.

    Raises:
        TypeError: ``x`` is not floating point; a sink or number of iterations that is no integer.
        ValueError: ``x`` is empty, not finite, or so long or short that 1 / |x|^2 leaves float64;
            an unknown target or norm; a margin, tolerance or number of iterations that is not
            positive; a sink outside the sequence.
    """
    check_axes("x", x, "pos d")
    check_numbers("x", x, "the cost depends on them")
    one_of("target", target, ("sink", "diagonal"))
    one_of("norm", norm, ("frobenius", "nuclear"))
    margin, tolerance = real_number("margin", margin), real_number("tolerance", tolerance)
    max_iterations, sink = (
        whole_number("max_iterations", max_iterations),
        whole_number("sink", sink),
    )
    for name, value in (
        ("margin", margin),
        ("tolerance", tolerance),
        ("max_iterations", max_iterations),
    ):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {value}")
    if not 0 <= sink < len(x):
        raise ValueError(f"sink={sink}, but x {tuple(x.shape)} has the tokens 0 to {len(x) - 1}")
    if not bool(x.isfinite().all()):
        raise ValueError("x holds NaN or infinite values")
    tokens, basis, exponent = _span(x)
    rivals = torch.ones(len(x), len(x), dtype=torch.bool)
    goal = torch.full((len(x),), sink) if target == "sink" else torch.arange(len(x))
    if true_or_false("causal", causal):
        rivals = rivals.tril() & (goal <= torch.arange(len(x)))[:, None]
    rivals[torch.arange(len(x)), goal] = False
    rows = rivals.any(-1)
    if not bool(rows.any()):
        nothing = torch.zeros(len(basis), len(basis), dtype=torch.float64)
        return RepresentationCost(0.0, 0.0, 0.0, True, "", 0, len(basis), basis, nothing)
    if not len(basis):
        reason = "all tokens are zero"
    elif target == "sink":
        reason = _no_sink(tokens, rows, sink)
    else:
        reason = _no_diagonal(tokens, rivals)
    nan = float("nan")
    if reason:
        return RepresentationCost(nan, nan, nan, False, reason, 0, len(basis), basis, None)
    leads = _leads(tokens[rows], tokens, goal[rows], rivals[rows])
    found = smallest_form(leads, norm, tolerance=tolerance, max_iterations=max_iterations)
    return _result(found, basis, margin * 2.0 ** (-2 * exponent), tolerance)


def _result(
    found: Bracket, basis: Float[Tensor, "rank d"], unit: float, tolerance: float | int
) -> RepresentationCost:
    """The bracket in the units of the tokens as they were given."""
    upper = float("nan") if found.W is None else found.upper * unit
    lower = found.lower * unit
    reason = ""
    if found.W is None:
        reason = f"undecided: no feasible W after {found.iterations} iterations"
    elif not found.closed(tolerance):
        reason = f"the bounds are still apart after {found.iterations} iterations"
    return RepresentationCost(
        cost=float("nan") if reason else upper,
        upper=upper,
        lower=lower,
        feasible=found.W is not None,
        reason=reason,
        iterations=found.iterations,
        rank=len(basis),
        basis=basis,
        core=None if found.W is None else torch.from_numpy(found.W * unit),
    )


def _span(
    x: Float[Tensor, "pos d"],
) -> tuple[Float[Tensor, "pos rank"], Float[Tensor, "rank d"], int]:
    """Coordinates of the tokens in the space that they span, its basis, and log2 of the coordinates' unit."""
    accuracy = max(x.shape) * torch.finfo(work_dtype(x)).eps
    wide = x.detach().to("cpu", torch.float64)
    exponent = power_of_two(wide, (0, 1))
    left, values, basis = torch.linalg.svd(scale(wide, -exponent), full_matrices=False)
    rank = int((values > accuracy * values[0]).sum())
    if abs(int(exponent)) > _LARGEST_EXPONENT:
        raise ValueError(
            f"x has entries up to {float(wide.abs().max()):.1e}, and the cost goes like 1 / |x|^2, "
            "which float64 can't hold: scale x towards 1 first"
        )
    return left[:, :rank] * values[:rank], basis[:rank], int(exponent)


def _leads(
    queries: Float[Tensor, "row rank"],
    keys: Float[Tensor, "key rank"],
    target: Int[Tensor, " row"],
    rivals: Bool[Tensor, "row key"],
) -> Leads:
    """The constraints with queries of length one and centred keys, which the solver likes best."""
    length = queries.norm(dim=-1, keepdim=True)
    arrays = (queries / length, keys - keys.mean(0), target, rivals, 1 / length)
    return Leads(*(array.numpy() for array in arrays))


def _no_sink(tokens: Float[Tensor, "pos rank"], rows: Bool[Tensor, " pos"], sink: int) -> str:
    """Which half-space condition fails; nothing if both hold."""
    none = _resolution(tokens)
    others = torch.arange(len(tokens)) != sink
    failing = []
    if not hull_distance(tokens[rows], none) > 0:
        failing.append("(a) the origin is in the convex hull of the tokens that attend")
    if not hull_distance(tokens[others] - tokens[sink], none) > 0:
        failing.append("(b) the sink is in the convex hull of the other tokens")
    return "; ".join(failing)


def _no_diagonal(tokens: Float[Tensor, "pos rank"], rivals: Bool[Tensor, "pos pos"]) -> str:
    """What makes the diagonal infeasible; nothing if it is feasible, or can't be decided."""
    none = _resolution(tokens)
    near = torch.cdist(tokens, tokens, compute_mode="donot_use_mm_for_euclid_dist") <= none
    pairs = (near & (rivals | rivals.T)).nonzero().tolist()
    if pairs:
        return f"tokens {pairs[0][0]} and {pairs[0][1]} are equal"
    rows = rivals.any(-1)
    zeros = ((tokens.norm(dim=-1) <= none) & rows).nonzero().flatten().tolist()
    if zeros:
        return f"token {zeros[0]} is zero"
    # Independent tokens can have any scores; W = 1 serves tokens that differ in direction only.
    scores = tokens @ tokens.T
    lead = (scores.diagonal()[:, None] - scores)[rivals].min()
    if tokens.shape[0] == tokens.shape[1] or float(lead) > none:
        return ""
    for i in rows.nonzero().flatten().tolist():
        if not hull_distance(tokens[rivals[i]] - tokens[i], none) > 0:
            return f"token {i} is in the convex hull of those that it competes with"
    target = torch.arange(len(tokens))[rows]
    leads = _leads(tokens[rows], tokens, target, rivals[rows])
    trial = smallest_form(leads, "frobenius", tolerance=1, max_iterations=_TRIAL_ITERATIONS)
    if trial.W is not None or trial.rivals.sum() * tokens.shape[1] ** 2 > _LARGEST_EXACT:
        return ""
    # Sums of these, with the solver's multipliers, nearly vanish: do some vanish exactly?
    row, rival = np.nonzero(trial.rivals)
    keys = tokens - tokens.mean(0)
    steps = keys[target[row]] - keys[rival]
    forms = (tokens[rows][row, :, None] * steps[:, None, :]).flatten(1)
    forms = forms / forms.norm(dim=-1, keepdim=True)
    return "" if hull_distance(forms, FEASIBLE_ABOVE) > 0 else "no W serves all tokens at once"


def _resolution(tokens: Float[Tensor, "pos rank"]) -> float:
    return FEASIBLE_ABOVE * float(tokens.norm(dim=-1).max())
