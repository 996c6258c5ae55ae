"""Measures of tokens, scores and moments on random inputs, and the two that rank keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.reference import plain_package
from hypothesis import assume, given, strategies as st
from literal import (
    certificate as literal_certificate,
    cost as literal_cost,
    separability as literal_separability,
    similarity as literal_similarity,
    switches as literal_switches,
)
from literal.masks import sink_mask

import tl_geometry as tlg
from fuzzing.measures import MEASURES, call, fields, given as reference_arguments
from fuzzing.profile import examples
from fuzzing.refusals import SINKS, no_masks, no_tensors, refuses, wrong_scalars
from fuzzing.registry import OTHERS
from fuzzing.strategies import DTYPES, layers, layouts, literal_sink, normal, sinks


def eps_of(x) -> float:
    return 2.0**-52 if x.dtype == torch.float64 else 2.0**-23


@st.composite
def tokens(draw, dtypes=DTYPES, axes=3):
    """Vectors of documents, some of them zero or repeated."""
    batch, length, d = draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    x = normal(generator, batch, length, d)
    kind = draw(st.sampled_from(("usual", "zeros", "repeated", "one side")))
    if kind == "zeros":
        x[:, ::2] = 0
    elif kind == "repeated":
        x = x[:, :1].expand(x.shape)
    elif kind == "one side":
        x[..., 0] = x[..., 0].abs() + 0.1
    x = x.to(draw(st.sampled_from(dtypes)))
    mask = torch.rand(batch, length, generator=generator) < 0.7
    return (x, mask) if axes == 3 else x[0]


@examples(30)
@given(tokens(), st.booleans(), layouts())
def test_token_similarity(made, skip_first, layout):
    x, mask = made
    for given_mask in (None, mask):
        moved = layout("x", x), None if given_mask is None else layout("mask", given_mask)
        found = tlg.token_similarity(*moved, skip_first=skip_first)
        wide = torch.where((x != 0).any(-1, keepdim=True), x.double(), 1)  # zero vectors apart
        if (x != 0).any(-1).all():
            expected = literal_similarity.token_similarity(wide, given_mask, skip_first=skip_first)
            np.testing.assert_allclose(found.detach(), expected, atol=64 * eps_of(x), rtol=0)
        known = found[~found.isnan()]
        assert ((known >= -1) & (known <= 1)).all()
        scaled = tlg.token_similarity(2.0**-4 * x, given_mask, skip_first=skip_first)
        assert torch.equal(
            scaled.nan_to_num(9),
            tlg.token_similarity(x, given_mask, skip_first=skip_first).nan_to_num(9),
        )


@examples(20)
@given(tokens((torch.float64, torch.float32)), st.data())
def test_halfspace_margins(made, data):
    x, mask = made
    mask[:, 0] |= ~mask.any(-1)
    counts = mask.sum(-1)
    sink = data.draw(st.sampled_from((None, *range(int(counts.min())))))
    found = tlg.halfspace_margins(x, sink, mask=mask, control=False)
    for b, (row, keep) in enumerate(zip(x, mask, strict=True)):
        points = row[keep].double().numpy()
        others = points if sink is None else np.delete(points, sink, 0)
        longest = np.linalg.norm(points, axis=1).max() if len(points) else 0
        allowed = 2.0**-19 * longest + 1e-7
        for field, shifted in (
            ("origin_margin", others),
            ("sink_margin", None if sink is None else others - points[sink]),
        ):
            value = getattr(found, field)[b]
            if shifted is None or not len(shifted):
                assert value.isnan()
            else:
                assert abs(float(value) - literal_cost.hull_distance(shifted)) <= allowed
        assert found.rank[b] == (np.linalg.matrix_rank(others, rtol=1e-5) if len(others) else 0)


@examples(25)
@given(st.data(), layers(long=True), layouts())
def test_sink_logit_margin(data, layer, layout):
    assume(layer.available is not None)
    sink = data.draw(sinks(layer))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    scores = normal(generator, *layer.pattern.shape).to(layer.pattern.dtype)
    smallest, mean = tlg.sink_logit_margin(
        layout("pattern", scores), available=layer.available, sink=sink
    )
    if isinstance(sink, str) and sink == "auto":
        return  # found from the softmax of the scores
    expected = literal_switches.sink_logit_margin(
        scores, available=layer.available, sink=literal_sink(sink, layer)
    )
    for found, values in zip((smallest, mean), expected, strict=True):
        np.testing.assert_allclose(found.detach(), values, atol=64 * eps_of(scores), rtol=0)


@examples(25)
@given(
    tokens((torch.float64, torch.float32), axes=2),
    st.sampled_from(("sink", "diagonal")),
    st.sampled_from(("frobenius", "nuclear")),
    st.booleans(),
)
def test_representation_cost(x, target, norm, causal):
    """The W that is handed out serves every constraint, has that norm, and exists exactly if some W does."""
    found = tlg.representation_cost(x, target, norm, causal=causal, tolerance=1e-3)
    rows = literal_cost.constraints(x.double().numpy(), target, causal=causal)
    if not len(rows):
        assert found.cost == 0
        return
    if found.feasible:
        leads = rows @ found.W.numpy().ravel()
        assert (leads >= 1 - 1e-6).all()
        size = torch.linalg.matrix_norm(found.W, "fro" if norm == "frobenius" else "nuc")
        assert float(size) == pytest.approx(found.upper, rel=1e-6)
        assert found.lower <= found.upper * (1 + 1e-9)
    elif found.infeasible:
        assert found.reason
        assert not literal_cost.is_feasible(rows) or (x.double().norm(dim=-1) < 1e-3).any()


@examples(6)
@given(
    st.lists(st.integers(2, 6), min_size=2, max_size=3, unique=True).map(sorted),
    st.sampled_from(("frobenius", "nuclear")),
    st.integers(0, 99),
)
def test_cost_scaling(lengths, norm, seed):
    """Its table is made of the costs of its samples."""
    x = normal(torch.Generator().manual_seed(seed), 7, 6)
    x[:, 0] = x[:, 0].abs() + 1
    found = tlg.cost_scaling(lengths, tokens=x, norm=norm, seeds=(seed,))
    order = 1 + torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    for k, length in enumerate(lengths):
        chosen = torch.cat([torch.zeros(1, dtype=torch.long), order])[:length].sort().values
        for target in ("sink", "diagonal"):
            cost = tlg.representation_cost(x[chosen], target, norm, tolerance=1e-3)
            np.testing.assert_equal(float(getattr(found, target)[0, k]), cost.cost)
            assert float(getattr(found, f"{target}_infeasible")[k]) == float(cost.infeasible)


@examples(20)
@given(
    st.integers(1, 5), st.integers(1, 6), st.floats(0, 1), st.booleans(), st.booleans(),
    st.integers(0, 2**32), st.sampled_from((torch.float64, torch.float32)),
)  # fmt: skip
def test_one_step_similarity(d, length, mixing, causal, normed, seed, dtype):
    """The expectations of every pair, written out token by token."""
    generator = torch.Generator().manual_seed(seed)
    root = normal(generator, 2 * d, 2 * d)
    joint = root @ root.T  # of x and u together
    W = 0.5 * normal(generator, d, d)
    mu_x, mu_u = 2 * normal(generator, d), 2 * normal(generator, d)
    sigma_x, cross, sigma_u = joint[:d, :d], joint[:d, d:], joint[d:, d:]
    options = {"normed_mean": mu_u, "normed_covariance": sigma_u, "cross_covariance": cross}
    if not normed:
        mu_u, cross, sigma_u, options = mu_x, sigma_x, sigma_x, {}
    A = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        seen = i + 1 if causal else length
        A[i, :seen] = mixing / seen
        A[i, i] += 1 - mixing
    step = torch.eye(length, dtype=torch.float64)
    level = (mu_x + mu_u @ W).square().sum()
    k, b = (cross * W.T).sum(), (W.T @ sigma_u @ W).trace()
    products = level + step * sigma_x.trace() + (A + A.T) * k + A @ A.T * b
    lengths = products.diagonal().sqrt()
    cosines = products / lengths[:, None] / lengths
    pairs = cosines[torch.ones(length, length).triu(1).bool()]
    given_options = {name: value.to(dtype) for name, value in options.items()}
    found = tlg.one_step_similarity(
        W.to(dtype), mu_x.to(dtype), sigma_x.to(dtype), length,
        mixing=mixing, causal=causal, **given_options,
    )  # fmt: skip
    assert found.dtype == dtype
    if length == 1:
        assert found.isnan()
    else:
        assert float(found) == pytest.approx(float(pairs.mean()), abs=3e4 * eps_of(found))


@examples(20)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=6), layouts()
)
def test_inversion_bounds(made, layout):
    counts, sizes = (list(x) for x in zip(*made, strict=True))
    bounds = tlg.inversion_bounds(layout("x", torch.tensor(counts, dtype=torch.float64)), sizes)
    for k, (count, size) in enumerate(made):
        expected = literal_separability.inversion_bounds(count, size)
        assert [bound[k].item() for bound in bounds] == pytest.approx(expected)


@examples(25)
@given(st.data(), layers(dtypes=(torch.float64,)))
def test_separability(data, layer):
    options = MEASURES["separability"].options(data.draw, layer)
    top_n = (1, 2, 4)
    distance = data.draw(st.sampled_from(("euclidean", "cosine")))
    found = call("separability", layer, options | {"top_n": top_n, "distance": distance})
    tensors, keywords = reference_arguments(layer, options)
    del keywords["top_n"]
    for (b, h, i), row in literal_separability.rows(*tensors, **keywords).items():
        for k, n in enumerate(top_n):
            actual = {
                name: float(getattr(found, name)[b, h, i, k])
                for name in literal_separability.FIELDS
            }
            exact, best, worst = row.scores_of(n, distance=distance)
            if np.isnan(exact.f_score):
                assert np.isnan(list(actual.values())).all()
            elif not row.uncertain(n, 2.0**-52):
                for name in ("precision", "recall", "f_score"):
                    assert getattr(worst, name) - 1e-9 <= actual[name] <= getattr(best, name) + 1e-9
                assert best.inversions <= actual["inversions"] <= worst.inversions
                assert abs(actual["margin"] - exact.margin) <= exact.margin_error


@examples(25)
@given(st.data(), layers(dtypes=(torch.float64,)))
def test_certificate(data, layer):
    options = MEASURES["sink_aware_certificate"].options(data.draw, layer)
    sink = literal_sink(options["sink"], layer)
    assume(sink_mask(sink, layer.pattern, layer.available).sum(-1).max() <= 1)
    options["top_n"] = (1, 2, 4)
    found = fields(call("sink_aware_certificate", layer, options))
    tensors, keywords = reference_arguments(layer, options)
    expected = literal_certificate.certificate(*tensors, **keywords)
    counts = found["inversions"].numpy()
    np.testing.assert_array_equal(np.isnan(counts), np.isnan(expected["inversions"]))
    known = ~np.isnan(counts)
    assert (expected["fewest"][known] <= counts[known]).all()
    if (layer.mask == layer.mask[:, :1]).all():  # cosines are bounded over the keys of all heads
        assert (counts[known] <= expected["most"][known]).all()
    scores = call("separability", layer, options)
    for name in ("precision", "recall", "f_score"):
        assert (found[name][known] <= getattr(scores, name)[known] + 1e-9).all()


X = normal(torch.Generator().manual_seed(1), 2, 5, 4).float()
SQUARE = normal(torch.Generator().manual_seed(2), 4, 4).float()
GOOD = {
    "token_similarity": {"x": X, "mask": torch.ones(2, 5, dtype=torch.bool)},
    "halfspace_margins": {"x": X, "mask": torch.ones(2, 5, dtype=torch.bool)},
    "sink_logit_margin": {"scores": X[None], "available": torch.ones(1, 2, 5, 4, dtype=torch.bool)},
    "representation_cost": {"x": X[0]},
    "cost_scaling": {"lengths": (2, 3), "tokens": X[0]},
    "one_step_similarity": {
        "W": SQUARE,
        "mean": SQUARE[0],
        "covariance": SQUARE @ SQUARE.T,
        "length": 3,
    },
    "inversion_bounds": {"inversions": torch.tensor([0.0, 1.0]), "top_n": (1, 2)},
}
FREE = {  # tensors of another shape that are as good
    "x": lambda wrong: wrong.is_floating_point() and wrong.ndim == 3 and wrong.numel(),
    "tokens": lambda wrong: wrong.is_floating_point() and wrong.ndim == 2 and wrong.numel(),
    "scores": lambda wrong: wrong.is_floating_point() and wrong.ndim == 4 and wrong.numel(),
    "inversions": lambda wrong: wrong.is_floating_point() and wrong.shape[-1:] == (2,),
}


@pytest.fixture(scope="module")
def plain():
    with plain_package() as package:
        yield {name: getattr(package, name) for name in OTHERS}


@pytest.mark.parametrize("name", OTHERS)
def test_refusals(name, plain):
    good, function = GOOD[name], plain[name]
    function(**good)
    bare = {k: x for k, x in good.items() if k not in ("mask", "available")}
    for part, x in good.items():
        if part in ("mask", "available"):
            for wrong in no_masks(x[None, None] if x.ndim == 2 else x):
                wrong = (
                    wrong[0, 0]
                    if isinstance(wrong, torch.Tensor) and x.ndim == 2 and wrong.ndim == 4
                    else wrong
                )
                if not (
                    isinstance(wrong, torch.Tensor)
                    and wrong.shape == x.shape
                    and wrong.dtype == x.dtype
                ):
                    refuses(name, function, good | {part: wrong}, part)
        elif isinstance(x, torch.Tensor):
            for wrong in no_tensors(x):
                free = isinstance(wrong, torch.Tensor) and part in FREE and FREE[part](wrong)
                alone = (
                    name == "representation_cost"
                    and isinstance(wrong, torch.Tensor)
                    and wrong.ndim == 2
                )
                two_axes = (
                    name == "halfspace_margins"
                    and isinstance(wrong, torch.Tensor)
                    and wrong.ndim == 2
                )
                if not (
                    free or two_axes or (alone and wrong.is_floating_point() and wrong.numel())
                ):
                    refuses(name, function, bare | {part: wrong}, part)
    for option, value in wrong_scalars(function):
        if name in ("representation_cost", "cost_scaling") and option == "norm":
            value = "max"
        refuses(name, function, bare | {option: value}, option)
    if name == "sink_logit_margin":
        for value in SINKS:
            refuses(name, function, bare | {"sink": value}, "sink")
