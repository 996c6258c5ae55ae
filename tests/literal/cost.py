"""The least norm of a representing W by general solvers, constraint by constraint."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog, nnls


def constraints(x, target, *, causal=True, sink=0):
    """Rows vec(x_i (x_t - x_j)^T), one for each query i and each rival j of its target t."""
    rows = []
    for i in range(len(x)):
        t = sink if target == "sink" else i
        keys = range(i + 1 if causal else len(x))
        if t in keys:
            rows += [np.outer(x[i], x[t] - x[j]).ravel() for j in keys if j != t]
    return np.array(rows).reshape(len(rows), x.shape[1] ** 2)


def least_norm(x, target, norm, **options):
    """By cvxpy: SCS, and for the Frobenius norm of small problems Clarabel."""
    import cvxpy as cp

    rows = constraints(x, target, **options)
    W = cp.Variable((x.shape[1], x.shape[1]))
    nuclear = norm == "nuclear"
    goal = cp.Minimize(cp.normNuc(W) if nuclear else cp.norm(W, "fro"))
    problem = cp.Problem(goal, [rows @ cp.reshape(W, x.shape[1] ** 2, order="C") >= 1])
    if nuclear:
        problem.solve(solver=cp.SCS, eps=1e-5, max_iters=50_000)
    else:
        problem.solve(solver=cp.CLARABEL)
    assert problem.status == "optimal", problem.status
    return float(problem.value)


def hull_distance(points):
    """Distance of the origin from a convex hull: non-negative least squares with the sum as a row."""
    system = np.concatenate([points.T, np.ones((1, len(points)))])
    weights, _ = nnls(system, np.eye(len(system))[-1])
    return float(np.linalg.norm(points.T @ weights) / weights.sum())


def is_feasible(rows):
    """Whether some vector has a positive product with every row, by a linear program."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-300)
    n, d = rows.shape
    found = linprog(
        np.r_[np.zeros(d), -1],
        A_ub=np.c_[-rows, np.ones(n)],
        b_ub=np.zeros(n),
        bounds=[(-1, 1)] * d + [(None, 1)],
    )
    assert found.status == 0, found.message
    return -found.fun > 1e-7


def project_row(scores, target, rivals, margin):
    """The nearest row in which the target leads, by trying every number of rivals that give way."""
    best = None
    order = sorted(rivals, key=lambda j: -scores[j])
    for count in range(len(order) + 1):
        moved = [scores[target], *(scores[j] + margin for j in order[:count])]
        row = scores.copy()
        row[target] = np.mean(moved)
        row[order[:count]] = row[target] - margin
        if all(row[target] - row[j] >= margin - 1e-12 for j in rivals):
            distance = np.linalg.norm(row - scores)
            if best is None or distance < best[0]:
                best = distance, row
    return best[1]
