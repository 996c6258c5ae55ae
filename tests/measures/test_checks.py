"""Masks and sinks of numpy and torch are taken for what they are; what is none is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal.masks import causal
from literal.problems import problem, without_shape_checks

from tl_geometry.measures.checks import check_bool

MADE = problem(available=causal(6)[None], seed=2)
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def call(module, function, *arguments, **options):
    """The function as users have it."""
    with without_shape_checks(f"tl_geometry.measures.{module}") as plain:
        return getattr(plain, function)(*arguments, **options)


def test_masks_that_are_no_tensors():
    for mask, given in ((np.ones(3, dtype=bool), "ndarray"), ([True], "list")):
        with pytest.raises(
            TypeError, match=rf"m must be a bool torch.Tensor \(kept\), got {given}"
        ):
            check_bool("m", mask, "kept")
    with pytest.raises(TypeError, match=r"dtype torch.int64: convert a 0/1 mask with .bool\(\)"):
        check_bool("m", torch.ones(3).long(), "kept")
    check_bool("m", torch.ones(3).bool(), "kept")


@pytest.mark.parametrize(
    ("module", "function", "arguments", "name"),
    [
        ("sinks", "sink_rate", (MADE.pattern,), "available"),
        ("switches", "switch_rates", MADE.tensors, "available"),
        ("similarity", "token_similarity", (X[None],), "mask"),
        ("halfspace", "halfspace_margins", (X[None],), "mask"),
    ],
)
def test_masks_of_numpy_are_told_how_to_become_tensors(module, function, arguments, name):
    for mask in (np.ones((6, 6), dtype=bool), [[True]]):
        with pytest.raises(TypeError, match=f"{name} must be a bool torch.Tensor.*from_numpy"):
            call(module, function, *arguments, **{name: mask})


@pytest.mark.parametrize("one", [np.int64(1), torch.tensor(1), [np.int64(1)]])
def test_a_sink_may_be_any_integer(one):
    for module, function in (
        ("sinks", "sink_geometry"),
        ("sink_curve", "sink_norm_curve"),
        ("switches", "switch_rates"),
        ("dormant", "dormant_heads"),
        ("mixing", "mixing_ratio"),
    ):
        found, usual = (call(module, function, *MADE.tensors, sink=sink) for sink in (one, 1))
        if isinstance(usual, torch.Tensor):
            assert torch.equal(found, usual)
        for name, value in getattr(usual, "__dict__", {}).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(
                    getattr(found, name), value, rtol=0, atol=0, equal_nan=True
                )


def test_seeds_and_sinks_of_half_spaces_and_costs():
    usual = call("halfspace", "halfspace_margins", X, 1, seed=2)
    found = call("halfspace", "halfspace_margins", X, np.int64(1), seed=np.int64(2))
    assert vars(found) == vars(usual)
    options = {"tokens": "random", "norm": "frobenius"}
    usual = call("cost_scaling", "cost_scaling", (2, 3), seeds=(0, 1), d=4, **options)
    found = call(
        "cost_scaling",
        "cost_scaling",
        np.array([2, 3]),
        seeds=np.arange(2),
        d=np.int64(4),
        **options,
    )
    assert torch.equal(found.sink, usual.sink)
    assert found.lengths == (2, 3)
    cost = call("cost", "representation_cost", torch.eye(4), sink=1).cost
    for options in ({"sink": np.int64(1)}, {"sink": 1, "margin": torch.tensor(1.0)}):
        assert call("cost", "representation_cost", torch.eye(4), **options).cost == cost


@pytest.mark.parametrize(
    ("module", "function", "arguments", "options", "message"),
    [
        ("halfspace", "halfspace_margins", (X,), {"seed": -1}, "seed must be at least 0, got -1"),
        ("halfspace", "halfspace_margins", (X,), {"seed": 0.5}, "seed must be an integer"),
        (
            "contributions", "importance", MADE.tensors,
            {"kind": "random", "seed": -1}, "seed must be at least 0, got -1",
        ),
        (
            "separability", "separability", MADE.tensors,
            {"rank_by": "random", "seed": 1.5}, "seed must be an integer, got 1.5",
        ),
        ("halfspace", "halfspace_margins", (X, True), {}, "sink must be an integer, got True"),
        ("halfspace", "halfspace_margins", ([[1.0]],), {}, "x must be a tensor .* got list"),
        ("cost", "representation_cost", (X,), {"sink": True}, "sink must be an integer, got True"),
        ("cost", "representation_cost", (X,), {"sink": 1.0}, "sink must be an integer, got 1.0"),
        ("cost", "representation_cost", (X,), {"margin": "1"}, "margin must be a number, got '1'"),
        ("cost", "representation_cost", (X,), {"max_iterations": 9.5}, "max_iterations must be an"),
        ("cost_scaling", "cost_scaling", ((4.0, 8.0),), {}, "lengths must be an integer, got 4.0"),
        (
            "cost_scaling", "cost_scaling", ((2, 3),),
            {"tokens": "random", "seeds": (1, 1)}, r"seeds must differ.*\(1, 1\)",
        ),
        (
            "cost_scaling", "cost_scaling", ((2, 3),),
            {"tokens": "random", "seeds": (-1,)}, "seeds must be at least 0, got -1",
        ),
        ("mixing", "mixing_ratio", MADE.tensors, {"without_sink": 2}, "True or False, got 2"),
        ("mixing", "mixing_ratio", MADE.tensors, {"without_sink": "no"}, "True or False, got 'no'"),
        ("dormant", "dormant_heads", MADE.tensors, {"norm": "0.5"}, "norm must be a number"),
        ("dormant", "dormant_heads", MADE.tensors, {"rate": "0.5"}, "rate must be a number"),
        ("switches", "switch_rates", MADE.tensors, {"sink": True}, "sink must be .* got True"),
    ],
)  # fmt: skip
def test_refusals(module, function, arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(module, function, *arguments, **options)
