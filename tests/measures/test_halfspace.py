"""Half-space conditions against linear programs, their margins against quadratic ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from literal.masks import token_mask
from literal.problems import assert_same, without_shape_checks
from scipy.optimize import linprog, minimize, nnls

from tl_geometry.measures import min_norm
from tl_geometry.measures.halfspace import FEASIBLE_ABOVE, HalfspaceMargins, halfspace_margins
from tl_geometry.measures.min_norm import hull_distance

SHAPES = [(4, 3), (6, 2), (9, 4), (12, 8), (20, 10), (7, 12)]


def tokens(length, d, *, shift=0.0, seed=0, dtype=torch.float64):
    """Random tokens around a common direction, the first on the other side."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, d, generator=generator, dtype=torch.float64)
    direction = torch.randn(d, generator=generator, dtype=torch.float64)
    x = x + shift * direction / direction.norm() * d**0.5
    x[0] = -x[0]
    return x.to(dtype)


def in_hull(point, points) -> bool:
    """A linear program: is the point a convex combination?"""
    equations = np.vstack([np.asarray(points).T, np.ones(len(points))])
    found = linprog(np.zeros(len(points)), A_eq=equations, b_eq=[*np.asarray(point), 1.0])
    assert found.status in (0, 2)  # solved, or infeasible
    return found.status == 0


def form_exists(x) -> bool:
    """A linear program over all d^2 entries of W: the sink wins every row by at least 1."""
    x = np.asarray(x)
    pairs = [np.outer(xi, x[0] - xj).ravel() for xi in x[1:] for xj in x[1:]]
    free = [(None, None)] * x.shape[1] ** 2
    found = linprog(
        np.zeros(len(free)), A_ub=-np.array(pairs), b_ub=-np.ones(len(pairs)), bounds=free
    )
    assert found.status in (0, 2)
    return found.status == 0


def best_margin(point, points) -> float:
    """A quadratic program: the widest slab with the point on one side and the points on the other."""
    rows = np.asarray(points) - np.asarray(point)
    free = [(None, None)] * rows.shape[1]
    some = linprog(np.zeros(len(free)), A_ub=-rows, b_ub=-np.ones(len(rows)), bounds=free).x
    size = np.linalg.norm(some)  # the best normal is shorter, and about as long
    found = minimize(
        lambda w: w @ w / 2, some / size, jac=lambda w: w, method="SLSQP",
        constraints={"type": "ineq", "fun": lambda w: size * rows @ w - 1,
                     "jac": lambda _: size * rows},
        options={"ftol": 1e-12, "maxiter": 1000},
    )  # fmt: skip
    assert found.success
    return 1 / float(size * np.linalg.norm(found.x))


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.8, 2.0])
@pytest.mark.parametrize(("length", "d"), SHAPES)
def test_conditions_and_margins(length, d, shift):
    for seed in range(6):
        x = tokens(length, d, shift=shift, seed=seed)
        found = halfspace_margins(x, control=False)
        for margin, point in ((found.origin_margin, torch.zeros(d)), (found.sink_margin, x[0])):
            assert bool(margin > 0) == (not in_hull(point, x[1:]))
            if margin > 0:
                assert float(margin) == pytest.approx(best_margin(point, x[1:]), rel=1e-5)
            else:
                assert margin == 0


@pytest.mark.parametrize(("length", "d"), [(4, 2), (5, 3), (8, 3), (8, 4)])
def test_together_they_decide_whether_a_form_exists(length, d):
    seen = set()
    for seed in range(20):
        x = tokens(length, d, shift=[0.0, 0.5, 1.0, 2.0][seed % 4], seed=seed)
        found = bool(halfspace_margins(x, control=False).feasible)
        assert found == form_exists(x)
        seen.add(found)
    assert seen == {True, False}


def test_the_normals_of_the_margins_make_such_a_form():
    """From the nearest points of the hulls: W = a b^T."""
    x = tokens(12, 6, shift=1.0, seed=1).numpy()
    assert bool(halfspace_margins(torch.tensor(x), control=False).feasible)

    def nearest(points):
        columns = np.vstack([points.T, np.ones(len(points))])
        weights = nnls(columns, np.eye(len(columns))[-1])[0]
        return weights / weights.sum() @ points

    a, b = nearest(x[1:]), -nearest(x[1:] - x[0])
    scores = np.einsum("id,d,e,je->ij", x[1:], a, b, x[0] - x[1:])
    assert scores.min() > 0


def test_by_hand():
    x = torch.tensor([[-1.0, 0.0], [2.0, 1.0], [2.0, -1.0]])
    found = halfspace_margins(x, control=False)
    assert found.origin_margin.item() == pytest.approx(2)
    assert found.sink_margin.item() == pytest.approx(3)
    assert found.longest.item() == pytest.approx(5**0.5)
    assert found.cosine_mean.item() == pytest.approx(-2 / 5**0.5)
    assert found.rank.item() == 2
    around = torch.tensor([[0.0, 5.0], [1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
    found = halfspace_margins(around, control=False)
    assert found.origin_margin.item() == 0
    assert found.sink_margin.item() == pytest.approx(nearest_of_segment((0, 5), (1, 0), (-1, 1)))
    assert not found.feasible


def nearest_of_segment(point, start, end) -> float:
    p, a, b = (np.array(v, dtype=float) for v in (point, start, end))
    t = np.clip((p - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)
    return float(np.linalg.norm(a + t * (b - a) - p))


def test_negative_cosines_are_enough():
    for seed in range(10):
        x = tokens(30, 8, seed=seed)
        x[1:, 0] = x[1:, 0].abs() + 0.1
        x[0] = torch.tensor([-3.0, *[0.0] * 7])
        found = halfspace_margins(x, control=False)
        assert found.cosine_max < 0
        assert found.feasible
        expected = [x[0] @ v / (x[0].norm() * v.norm()) for v in x[1:]]
        assert_same(found.cosine_max, float(max(expected)), 1e-12)
        assert_same(found.cosine_mean, float(sum(expected) / 29), 1e-12)


def test_few_random_tokens_are_always_separable():
    """T <= d points in general position: nothing is learned without the control beside it."""
    for seed in range(5):
        found = halfspace_margins(tokens(20, 24, seed=seed), seed=seed + 1)
        assert found.origin_margin > 0
        assert found.control_origin_margin > 0
        assert found.rank == 19
    many = halfspace_margins(tokens(100, 24), control=True)
    assert many.origin_margin == many.control_origin_margin == 0
    assert many.rank == 24


def test_the_control():
    x = tokens(15, 10, shift=0.5)
    found = halfspace_margins(x, seed=3)
    generator = torch.Generator().manual_seed(3)
    random = torch.randn(15, 10, generator=generator, dtype=torch.float64)
    random = random * (x.square().sum() / random.square().sum()).sqrt()
    alone = halfspace_margins(random, control=False)
    torch.testing.assert_close(found.control_origin_margin, alone.origin_margin)
    torch.testing.assert_close(found.control_sink_margin, alone.sink_margin)
    assert halfspace_margins(x, seed=4).control_origin_margin != found.control_origin_margin
    assert halfspace_margins(x, control=False).control_sink_margin.isnan()
    state = torch.random.get_rng_state()
    halfspace_margins(tokens(5, 4), seed=9)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["none", "left", "right", "both", "gaps"])
def test_documents_of_a_batch(kind):
    x = torch.stack([tokens(9, 5, shift=s, seed=seed) for seed, s in enumerate((0.3, 1.0, 0.0))])
    mask = token_mask(kind, 3, 9)
    spoilt = torch.where(mask[..., None], x, torch.nan)
    found = halfspace_margins(spoilt, mask=mask, sink=1)
    for row in range(3):
        alone = halfspace_margins(x[row][mask[row]], sink=1)
        for field, value in vars(alone).items():
            torch.testing.assert_close(getattr(found, field)[row], value, msg=field)


def test_another_sink_is_the_same_as_another_order():
    x = tokens(8, 5, shift=0.6)
    order = [3, 0, 1, 2, 4, 5, 6, 7]
    found, expected = halfspace_margins(x, 3), halfspace_margins(x[order])
    for field, value in vars(expected).items():
        torch.testing.assert_close(getattr(found, field), value, msg=field)


def test_values_without_a_sink():
    """The margin is the shortest output that any attention can give."""
    for seed, shift in ((0, 0.0), (1, 0.6), (2, 1.5)):
        v = tokens(12, 5, shift=shift, seed=seed)
        found = halfspace_margins(v, None)
        assert found.sink_margin.isnan()
        assert found.cosine_mean.isnan()
        assert not found.feasible
        assert bool(found.origin_margin > 0) == (not in_hull(np.zeros(5), v))
        generator = torch.Generator().manual_seed(0)
        logits = 3 * torch.randn(20000, 12, generator=generator, dtype=torch.float64)
        shortest = (logits.softmax(-1) @ v).norm(dim=-1).min()
        assert shortest >= found.origin_margin
        if found.origin_margin > 0:
            assert float(found.origin_margin) == pytest.approx(
                best_margin(np.zeros(5), v), rel=1e-5
            )


# -- degenerate documents ----------------------------------------------------------------------------


def test_one_token_has_nothing_to_compare():
    found = halfspace_margins(tokens(1, 4))
    for field in set(vars(found)) - {"rank", "longest"}:
        assert getattr(found, field).isnan(), field
    assert found.rank == 0
    assert not found.feasible
    assert halfspace_margins(tokens(1, 4), None, control=False).origin_margin > 0


def test_a_sink_equal_to_another_token_can_not_win():
    for dtype in (torch.float32, torch.float64):
        x = tokens(12, 6, shift=1.0, dtype=dtype)
        x[5] = x[0]
        found = halfspace_margins(x, control=False)
        assert found.sink_margin == 0
        assert not found.feasible
        assert not form_exists(x[[0, 4, 5, 6]])


def test_equal_tokens():
    same = torch.ones(7, 4) * 0.3
    found = halfspace_margins(same)
    assert found.origin_margin.item() == pytest.approx(0.6)
    assert found.sink_margin == 0
    assert found.rank == 1
    same[0] = torch.tensor([1.0, 0, 0, 0])
    found = halfspace_margins(same)
    assert found.sink_margin.item() == pytest.approx((0.49 + 3 * 0.09) ** 0.5)
    assert found.feasible


def test_zero_vectors():
    x = tokens(8, 5, shift=2.0)
    x[3] = 0
    assert halfspace_margins(x, control=False).origin_margin == 0
    zero = halfspace_margins(torch.zeros(5, 3))
    assert zero.origin_margin == zero.sink_margin == zero.control_origin_margin == 0
    assert zero.cosine_max.isnan()
    assert zero.rank == 0
    x = tokens(8, 5, shift=2.0)
    x[0] = 0
    found = halfspace_margins(x, control=False)
    torch.testing.assert_close(found.origin_margin, found.sink_margin)
    assert found.cosine_mean.isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_margin_below_the_tolerance_is_none(dtype):
    exact = torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]], dtype=dtype)
    assert halfspace_margins(exact, control=False).origin_margin == 0
    for share, positive in ((0.5, False), (2.0, True)):
        x = exact.clone()
        x[:, 1] += share * FEASIBLE_ABOVE
        assert bool(halfspace_margins(x, control=False).origin_margin > 0) == positive


def test_the_rank_ignores_rounding():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(40, 5, generator=generator) @ torch.randn(5, 30, generator=generator)
    assert halfspace_margins(flat, control=False).rank == 5
    assert halfspace_margins(flat.double(), control=False).rank == 30  # rounding noise of float32


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_extreme_scales(scale):
    x = tokens(10, 6, shift=1.0, dtype=torch.float32)
    usual, scaled = halfspace_margins(x), halfspace_margins(x * scale)
    lengths = [name for name in vars(usual) if name.endswith("margin")] + ["longest"]
    for name, value in vars(usual).items():
        expected = value * scale if name in lengths else value
        torch.testing.assert_close(getattr(scaled, name), expected, msg=name, rtol=1e-5, atol=0)


def test_precision_and_inputs():
    x = tokens(10, 6, shift=1.0)
    copy = x.clone()
    wide = halfspace_margins(x)
    assert torch.equal(x, copy)
    assert wide.origin_margin.dtype == torch.float64
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        found = halfspace_margins(x.to(dtype))
        assert found.origin_margin.dtype == torch.float32
        assert found.rank.dtype == torch.int64
        for name in ("origin_margin", "sink_margin", "cosine_mean"):
            assert_same(getattr(found, name), getattr(wide, name).numpy(), tolerance * 3)


def test_wrong_arguments():
    with without_shape_checks("tl_geometry.measures.halfspace") as plain:
        margins = plain.halfspace_margins
        x = tokens(6, 3)[None]
        for arguments, options, message in (
            ((x[0, 0],), {}, r"x must have the axes batch pos d_model.*\(3,\)"),
            ((x.long(),), {}, "x must be a floating point.*int64"),
            ((x, 6), {}, r"sink=6.*documents \[0\]"),
            ((x, -1), {}, "from 0 on, or None; got -1"),
            ((x[0],), {"mask": torch.ones(6, dtype=torch.bool)}, "mask needs x with a batch axis"),
            ((x,), {"mask": torch.ones(1, 6)}, "mask must be a bool tensor.*float32"),
            ((x,), {"mask": torch.zeros(1, 6, dtype=torch.bool)}, r"documents \[0\]"),
            ((x / 0,), {}, "NaN or infinite"),
        ):
            with pytest.raises((ValueError, TypeError), match=message):
                margins(*arguments, **options)


# -- the distance of a hull --------------------------------------------------------------------------


def by_least_squares(points) -> float:
    points = points.numpy()
    columns = np.vstack([points.T, np.ones(len(points))])
    weights = nnls(columns, np.eye(len(columns))[-1], maxiter=10**5)[0]
    return float(np.linalg.norm(weights / weights.sum() @ points))


@pytest.fixture(params=["solver", "one point"])
def start(request, monkeypatch):
    """The method has to arrive from a solver's points, and by itself from a single one."""

    def fail(*arguments):
        raise RuntimeError("too many iterations")

    if request.param == "one point":
        monkeypatch.setattr(min_norm, "nnls", fail)


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("kind", ["normal", "signs", "shifted", "grid", "flat", "repeated"])
def test_hull_distance(kind):
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        n, d = (int(torch.randint(1, top, (), generator=generator)) for top in (30, 12))
        points = torch.randn(n, d, generator=generator)
        if kind == "signs":
            points = torch.randint(-1, 2, (n, d), generator=generator)
        elif kind == "grid":
            points = torch.randint(0, 3, (n, d), generator=generator)
        elif kind == "shifted":
            points = points + 1
        elif kind == "flat":
            points = points[:, :2] @ torch.randn(min(2, d), d, generator=generator) + 0.3
        elif kind == "repeated":
            points = points[torch.randint(n, (2 * n,), generator=generator)] + 0.5
        points = points.double() / points.double().norm(dim=-1).max().clamp(min=1)
        assert hull_distance(points) == pytest.approx(by_least_squares(points), abs=2e-9)


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-8, 1e-10, 1e-14])
def test_almost_equal_points(noise):
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(30, 12, generator=generator, dtype=torch.float64) / 5 + 0.1
    copies = [base + noise * torch.randn(base.shape, generator=generator) for _ in range(4)]
    points = torch.cat(copies)
    assert hull_distance(points) == pytest.approx(by_least_squares(points), abs=2e-9)


def test_points_that_depend_on_each_other(monkeypatch):
    """A solver may name more points than there are dimensions."""
    points = tokens(40, 8, shift=0.6, seed=3) / 5
    expected = hull_distance(points)
    monkeypatch.setattr(min_norm, "nnls", lambda A, b: (np.ones(A.shape[1]), 0.0))
    assert hull_distance(points) == pytest.approx(expected, abs=2e-9)
    assert expected > 0


@pytest.mark.usefixtures("start")
def test_a_small_distance_is_relatively_exact():
    """Where a solver's own tolerance is as large as the squared distance."""
    for height in (1e-4, 3e-6):
        points = torch.tensor([[1.0, height, 0.0], [-1.0, height, 0.0], [0.0, 2 * height, 1.0]])
        assert hull_distance(points.double()) == pytest.approx(height, rel=1e-6)
        generator = torch.Generator().manual_seed(0)
        around = torch.randn(200, 20, generator=generator, dtype=torch.float64) / 5
        around[:, 0] = around[:, 0].abs() + height
        around[0] = around[:, 0].min() * torch.eye(20)[0]
        found = hull_distance(around)
        assert height <= found <= float(around[0].norm()) + 1e-12


def test_more_points_never_move_the_hull_away():
    points = tokens(40, 8, shift=0.4, seed=5) / 5
    distances = [hull_distance(points[:n]) for n in range(1, 41)]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(distances))
    assert distances[0] == pytest.approx(float(points[0].norm()))
    assert distances[-1] == 0
    assert isinstance(halfspace_margins(points), HalfspaceMargins)
