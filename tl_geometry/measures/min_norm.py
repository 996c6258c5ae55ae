"""How far the origin is from a convex hull, by an exact active-set method.

Wolfe's method ("Finding the nearest point in a polytope", Mathematical Programming 11, 1976) keeps a
few affinely independent points and the point p of their affine hull that is nearest to the origin. It
ends after finitely many steps with a certificate: the distance lies between min_j <p, x_j> / |p| and |p|.
A non-negative least-squares solver finds nearly all of those points much faster; where the distance is
small it stops too early, and the steps that are left matter.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor

_GAP = 2.0**-30
_ZERO = 2.0**-46


def hull_distance(points: Float[Tensor, "point d"], tolerance: float | int = 0) -> float:
    """Distance of the origin from the convex hull of at least one point, computed in float64 on the CPU.

    >>> round(hull_distance(torch.tensor([[2.0, 1.0], [2.0, -1.0]])), 9)
    2.0

    Args:
        points: vectors that are of order one in length.
        tolerance: distances up to this are 0: the origin counts as inside.

    Returns:
        The distance within 2^-30, or 0. NaN where points are so nearly equal or dependent that
        rounding leaves it uncertain.
    """
    points = points.detach().to("cpu", torch.float64)
    if points.shape[1] > points.shape[0]:  # distances are the same within the points' own span
        points = points @ torch.linalg.qr(points.T).Q
    corral = _Corral(points)
    for _ in range(10 * (len(points) + points.shape[1]) + 100):
        nearest = corral.nearest()
        length = float(nearest.norm())
        if length <= max(tolerance, _ZERO):
            return 0.0
        along = points @ nearest
        farthest_back = int(along.argmin())
        if length - float(along[farthest_back]) / length <= _GAP:
            return length
        if not corral.add(farthest_back):
            break
        corral.settle()
    return float("nan")


class _Corral:
    """Affinely independent points: the QR factors of their columns (x, 1), and weights that sum to 1."""

    def __init__(self, points: Float[Tensor, "point d"]) -> None:
        self._columns = torch.cat([points, torch.ones_like(points[:, :1])], 1)
        room = min(points.shape[0], points.shape[1] + 1)
        self._Q = torch.zeros(points.shape[1] + 1, room, dtype=points.dtype)
        self._R = torch.zeros(room, room, dtype=points.dtype)
        weights = _least_squares(self._columns)
        chosen = weights.nonzero().flatten()
        Q, R = torch.linalg.qr(self._columns[chosen].T)
        if len(chosen) > len(R) or float(R.diagonal().abs().min()) <= _ZERO:
            # They depend on each other: start from one instead.
            chosen = points.square().sum(-1).argmin()[None]
            weights = torch.ones_like(weights)
            Q, R = torch.linalg.qr(self._columns[chosen].T)
        k = len(chosen)
        self._Q[:, :k], self._R[:k, :k] = Q, R
        self._chosen: list[int] = chosen.tolist()
        self._weights = weights[chosen] / weights[chosen].sum()
        self.settle()

    def nearest(self) -> Float[Tensor, " d"]:
        """The point nearest to the origin of the affine hull: (0, 1) projected on the columns, last entry made 1."""
        Q = self._Q[:, : len(self._chosen)]
        projected = Q @ Q[-1]
        return projected[:-1] / projected[-1]

    def add(self, index: int) -> bool:
        """Append a point with weight 0; False where it depends on the others."""
        k = len(self._chosen)
        if index in self._chosen or k == self._Q.shape[1]:
            return False
        Q = self._Q[:, :k]
        along, rest = torch.zeros(k, dtype=Q.dtype), self._columns[index]
        for _ in range(2):  # the second time removes what rounding left of the first
            part = Q.T @ rest
            along, rest = along + part, rest - Q @ part
        height = rest.norm()
        if float(height) <= _ZERO:
            return False
        self._R[:k, k], self._R[k, :k], self._R[k, k] = along, 0, height
        self._Q[:, k] = rest / height
        self._chosen.append(index)
        self._weights = torch.cat([self._weights, torch.zeros(1, dtype=Q.dtype)])
        return True

    def settle(self) -> None:
        """Move towards the affine hull's nearest point; a point whose weight runs out on the way leaves."""
        while True:
            k = len(self._chosen)
            last_row = self._Q[-1, :k, None]
            target = torch.linalg.solve_triangular(self._R[:k, :k], last_row, upper=True)[:, 0]
            target = target / target.sum()
            leaving = target <= 0
            if not bool(leaving.any()):
                self._weights = target
                return
            steps = self._weights / (self._weights - target)
            steps = torch.where(self._weights > 0, steps, 0).masked_fill(~leaving, torch.inf)
            place = int(steps.argmin())
            moved = self._weights + steps[place] * (target - self._weights)
            self._weights = moved.clamp(min=0)
            self._drop(place)

    def _drop(self, place: int) -> None:
        k = len(self._chosen)
        kept = [i for i in range(k) if i != place]
        del self._chosen[place]
        self._weights = self._weights[kept] / self._weights[kept].sum()
        R = self._R[:k, kept]  # upper Hessenberg from the dropped column on
        rotation, triangle = torch.linalg.qr(R[place:, place:])
        self._Q[:, place : k - 1] = self._Q[:, place:k] @ rotation
        self._R[:place, : k - 1] = R[:place]
        self._R[place : k - 1, place : k - 1] = triangle


def _least_squares(columns: Float[Tensor, "point row"]) -> Float[Tensor, " point"]:
    """Weights, up to a factor, of points whose combination is nearest to the origin, or at least of one point."""
    target = torch.zeros_like(columns[0])
    target[-1] = 1
    try:
        weights = torch.from_numpy(nnls(columns.T.numpy(), target.numpy())[0])
    except RuntimeError:  # it ran out of iterations
        weights = torch.zeros_like(columns[:, 0])
    if not bool((weights > 0).any()):
        weights[columns.square().sum(-1).argmin()] = 1
    return weights
