"""The smallest W whose bilinear scores put one key of each row ahead of the others, between two bounds.

The problem is min |W| over q_i^T W (k_t(i) - k_j) >= m_i, in the Frobenius or the nuclear norm. The
alternating direction method of multipliers splits it into the scores S = Q W K^T, which are projected
row by row on "the target leads by the margin", and a copy P of W, whose singular values are shrunk
(nuclear norm only); W itself then has a closed form in the singular bases of Q and K. Along the way

- a W whose smallest lead is mu > 0 becomes feasible by division by mu: its norm bounds the cost from above;
- the multipliers of the leads, lambda_ij >= 0 at every step, bound it from below by
  sum_ij lambda_ij m_i / |sum_ij lambda_ij q_i (k_t(i) - k_j)^T| in the dual norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Norm = Literal["frobenius", "nuclear"]

_RELAXATION = 1.7
_FAR = 1e9
_CHECK_EVERY = 10
_PENALTY_SCORES, _PENALTY_COPY = 1.5, 0.3
_PENALTY_RANGE, _PENALTY_STEP = (0.02, 2e4), 1.5


@dataclass(frozen=True)
class Leads:
    """Rows of scores in which a target must lead.

    Attributes:
        queries: one vector per row, ``row d``.
        keys: one vector per column, ``key d``; a shift common to all of them changes nothing.
        target: the column that must lead, per row.
        rivals: bool ``row key``, the columns that it must lead; at least one in each row.
        margin: by how much, ``row 1``.
    """

    queries: NDArray[Any]
    keys: NDArray[Any]
    target: NDArray[Any]
    rivals: NDArray[Any]
    margin: NDArray[Any]

    def smallest(self, scores: NDArray[Any]) -> float:
        """The smallest lead, in units of its row's margin."""
        own = np.take_along_axis(scores, self.target[:, None], 1)
        return float(((own - scores) / self.margin)[self.rivals].min())

    def project(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The nearest scores in which every target leads by its margin.

        In a row the target rises to tau, and the rivals above tau - m fall to it: tau is the mean
        of the target's score and of those rivals' plus m, the highest rivals first.
        """
        own = np.take_along_axis(scores, self.target[:, None], 1)
        raised = -np.sort(np.where(self.rivals, -scores - self.margin, np.inf), axis=1)
        means = np.cumsum(np.concatenate([own, raised], 1), 1) / np.arange(1, raised.shape[1] + 2)
        above = (raised > means[:, :-1]).sum(1, keepdims=True)
        tau = np.take_along_axis(means, above, 1)
        projected = np.where(self.rivals, np.minimum(scores, tau - self.margin), scores)
        np.put_along_axis(projected, self.target[:, None], tau, 1)
        return projected


@dataclass(frozen=True)
class Bracket:
    """What a search has found: bounds of the smallest norm, and a feasible W of norm ``upper``.

    Attributes:
        upper: infinite while no feasible W is known.
        rivals: bool ``row key``, where the last multipliers were positive.
    """

    upper: float
    lower: float
    W: NDArray[Any] | None
    iterations: int
    rivals: NDArray[Any]

    def closed(self, tolerance: float | int) -> bool:
        """Whether the bounds differ by at most this share of the upper one."""
        return self.W is not None and self.upper - self.lower <= tolerance * self.upper


def smallest_form(
    leads: Leads, norm: Norm, *, tolerance: float | int, max_iterations: int
) -> Bracket:
    """Search until the bounds agree to ``tolerance``, relative to the upper one, or iterations run out.

    >>> leads = Leads(np.eye(2)[1:], np.eye(2), np.array([0]), np.array([[False, True]]), np.ones((1, 1)))
    >>> round(smallest_form(leads, "frobenius", tolerance=1e-4, max_iterations=100).upper, 3)
    0.707
    """
    # Matrices are small: more threads gain nothing, and cost a hundredfold where cores are taken.
    with threadpool_limits(1, user_api="blas"):
        search = _Search(leads, norm == "nuclear")
        for iteration in range(1, max_iterations + 1):
            search.step()
            if iteration % _CHECK_EVERY == 0 or iteration == max_iterations:
                found = search.bracket(iteration)
                if found.closed(tolerance):
                    break
                search.balance()
    return found


class _Search:
    """State of the iteration, in the singular bases of queries and keys and at scales of order one."""

    def __init__(self, leads: Leads, nuclear: bool) -> None:
        self.nuclear = nuclear
        self.A, a, self.query_basis = _thin(leads.queries)
        self.B, b, self.key_basis = _thin(leads.keys)
        size = math.sqrt(float(np.mean(a**2) * np.mean(b**2)))
        unit = float(leads.margin.mean())
        self.unit = unit / size
        self.leads = Leads(
            leads.queries, leads.keys, leads.target, leads.rivals, leads.margin / unit
        )
        self.gains = a[:, None] * b / size
        self.W = np.zeros_like(self.gains)
        self.scores = np.zeros((len(leads.queries), len(leads.keys)))
        self.S = self.leads.project(self.scores)
        self.V = np.zeros_like(self.S)
        self.P, self.U = np.zeros_like(self.W), np.zeros_like(self.W)
        self.last_S, self.last_P = self.S, self.P
        self.penalty_S, self.penalty_P = _Penalty(_PENALTY_SCORES), _Penalty(_PENALTY_COPY)
        self.upper, self.lower = math.inf, 0.0
        self.lead = 0.0
        self.best: NDArray[Any] | None = None

    def step(self) -> None:
        """One iteration; S - V and P - U are what W is fitted to."""
        scores, copy = self.penalty_S.value, self.penalty_P.value
        pull = scores * self.gains * self._inwards(self.S - self.V)
        if self.nuclear:
            pull += copy * (self.P - self.U)
        stiffness = copy if self.nuclear else 1.0  # of |W|^2 / 2, which takes the place of |W|
        self.W = pull / (stiffness + scores * self.gains**2)
        self.scores = self._scores_of(self.W)
        relaxed = _RELAXATION * self.scores + (1 - _RELAXATION) * self.S
        self.last_S, self.S = self.S, self.leads.project(relaxed + self.V)
        self.V = self.V + relaxed - self.S
        if self.nuclear:
            relaxed = _RELAXATION * self.W + (1 - _RELAXATION) * self.P
            self.last_P, self.P = self.P, _shrink(relaxed + self.U, 1 / copy)
            self.U = self.U + relaxed - self.P

    def bracket(self, iteration: int) -> Bracket:
        """Improve both bounds by what the iterates prove."""
        self.lead = self.leads.smallest(self.scores)
        candidates = [(self.W, self.lead)]
        if self.nuclear:  # P has exact zeros among its singular values
            candidates.append((self.P, self.leads.smallest(self._scores_of(self.P))))
        for W, lead in candidates:
            if lead > 0 and (upper := self._norm(W) / lead) < self.upper:
                self.upper, self.best = upper, W / lead
        multipliers = np.where(self.leads.rivals, self.V, 0)
        total = float((multipliers * self.leads.margin).sum())
        against = np.linalg.norm(self.gains * self._inwards(self.V), 2 if self.nuclear else "fro")
        if against > 0:  # the bounds may cross by rounding
            self.lower = min(max(self.lower, total / float(against)), self.upper)
        W = None if self.best is None else self.query_basis.T @ self.best @ self.key_basis
        return Bracket(
            self.upper * self.unit,
            self.lower * self.unit,
            None if W is None else W * self.unit,
            iteration,
            multipliers > 0,
        )

    def balance(self) -> None:
        """Move the penalties to where neither feasibility nor optimality lags behind.

        That is to say, primal and dual residuals. For the Frobenius norm both are relative (the
        scores' unit is the margin) and the worst lead counts too, which is what decides in the end.
        """
        primal = float(np.linalg.norm(self.scores - self.S))
        dual = float(np.linalg.norm(self.gains * self._inwards(self.S - self.last_S)))
        dual *= self.penalty_S.value
        if not self.nuclear:
            shortfall = abs(1 / self.lead - 1) if self.lead > 0 else _FAR
            primal = max(shortfall, primal / math.sqrt(self.leads.rivals.sum()))
            self.V = self.V / self.penalty_S.adapt(primal * self._norm(self.W), dual, 10)
            return
        self.V = self.V / self.penalty_S.adapt(primal, dual, 5)
        primal, dual = (float(np.linalg.norm(self.P - X)) for X in (self.W, self.last_P))
        self.U = self.U / self.penalty_P.adapt(primal, self.penalty_P.value * dual, 5)

    def _inwards(self, scores: NDArray[Any]) -> NDArray[Any]:
        inner: NDArray[Any] = self.A.T @ scores @ self.B
        return inner

    def _scores_of(self, W: NDArray[Any]) -> NDArray[Any]:
        scores: NDArray[Any] = self.A @ (self.gains * W) @ self.B.T
        return scores

    def _norm(self, W: NDArray[Any]) -> float:
        return float(np.linalg.norm(W, "nuc" if self.nuclear else "fro"))


@dataclass
class _Penalty:
    """Weight of a constraint, and how it changes: by less and less each time that it turns back."""

    value: float
    step: float = _PENALTY_STEP
    rising: bool | None = None

    def adapt(self, primal: float, dual: float, imbalance: float | int) -> float:
        """Raise it where feasibility lags so many times behind optimality, lower it in the other case.

        Returns:
            The factor by which it changed.
        """
        if max(primal, dual) <= imbalance * min(primal, dual):
            return 1.0
        rising = primal > dual
        if self.rising not in (None, rising):
            self.step = math.sqrt(self.step)
        self.rising = rising
        low, high = _PENALTY_RANGE
        before = self.value
        self.value = min(max(before * (self.step if rising else 1 / self.step), low), high)
        return self.value / before


def _thin(X: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Singular value decomposition of the rows' own span."""
    left, values, right = np.linalg.svd(X, full_matrices=False)
    rank = int((values > 1e-13 * values[0]).sum())
    return left[:, :rank], values[:rank], right[:rank]


def _shrink(X: NDArray[Any], amount: float) -> NDArray[Any]:
    """Lessen all singular values by an amount, to zero at least.

    They come from X^T X, which is twice as fast as the decomposition of X and exact enough above
    the amount.
    """
    squares, right = np.linalg.eigh(X.T @ X)
    values = np.sqrt(np.maximum(squares, 0))
    kept = values > amount
    right, values = right[:, kept], values[kept]
    shrunk: NDArray[Any] = (X @ (right * (1 - amount / values))) @ right.T
    return shrunk
