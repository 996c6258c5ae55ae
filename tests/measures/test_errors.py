"""Wrong arguments are refused by a message that names the argument and what was given."""

from __future__ import annotations

import inspect

import pytest
import torch
from literal.masks import causal
from literal.problems import problem, without_shape_checks

from tl_geometry.measures import contributions, regimes, sinks

FUNCTIONS = {
    function.__name__: function
    for function in (
        contributions.contribution_weights,
        contributions.contribution_factors,
        contributions.value_weighted_attention,
        contributions.suppression,
        contributions.importance,
        regimes.source_winners,
        regimes.head_regimes,
        sinks.sink_rate,
        sinks.sink_metric,
        sinks.sink_geometry,
    )
}
MADE = problem(available=causal(6)[None], seed=1)  # 2 documents, 4 heads, 2 kv heads, 6 tokens
GOOD = {"pattern": MADE.pattern, "v": MADE.v, "W_O": MADE.W_O}
PATTERN, V, W_O = MADE.tensors
YES = torch.ones(2, 6, 6, dtype=torch.bool)

# What is changed, the argument that the message must name, and what it must repeat (any of).
WRONG = {
    "pattern without batch": ({"pattern": PATTERN[0]}, "pattern", ["4, 6, 6"]),
    "pattern of integers": ({"pattern": PATTERN.long()}, "pattern", ["int64"]),
    "v without batch": ({"v": V[0]}, "v", ["6, 2, 3"]),
    "v with few keys": ({"v": V[:, :5]}, "v", ["2, 5, 2, 3"]),
    "v of another batch": ({"v": V[:1]}, "v", ["1, 6, 2, 3"]),
    "v of integers": ({"v": V.long()}, "v", ["int64"]),
    "kv heads that do not divide": ({"v": V[:, :, [0, 0, 0]]}, "v", ["3 kv heads", "2, 6, 3, 3"]),
    "W_O of one head": ({"W_O": W_O[0]}, "W_O", ["3, 7"]),
    "W_O with few heads": ({"W_O": W_O[:3]}, "W_O", ["3, 3, 7"]),
    "W_O of another d_head": ({"W_O": W_O[:, :2]}, "W_O", ["4, 2, 7"]),
    "available too short": ({"available": YES[:, :5]}, "available", ["2, 5, 6"]),
    "available of another batch": ({"available": YES[[0, 0, 0]]}, "available", ["3, 6, 6"]),
    "available of other heads": (
        {"available": YES[:, None].expand(-1, 3, -1, -1)},
        "available",
        ["2, 3, 6, 6"],
    ),
    "available per token": ({"available": YES[0, 0]}, "available", ["(6,)", "[6]"]),
    "available of floats": ({"available": YES.float()}, "available", ["float32"]),
    "available of integers": ({"available": YES.long()}, "available", ["int64"]),
    "mode": ({"mode": "outer"}, "mode", ["outer"]),
    "kind": ({"kind": "largest"}, "kind", ["largest"]),
    "value_bias": ({"value_bias": "drop"}, "value_bias", ["drop"]),
    "no b_V": ({"value_bias": "remove"}, "b_V", ["remove"]),
    "b_V of other heads": ({"value_bias": "remove", "b_V": torch.ones(3, 3)}, "b_V", ["3, 3"]),
    "b_V of another d_head": ({"value_bias": "remove", "b_V": torch.ones(2, 5)}, "b_V", ["2, 5"]),
    "output": ({"output": "scaled"}, "output", ["scaled"]),
    "no norm_weight": ({"output": "normed"}, "norm_weight", ["normed"]),
    "norm_weight too short": (
        {"output": "normed", "norm_weight": torch.ones(3)},
        "norm_weight",
        ["(3,)", "[3]"],
    ),
    "space": ({"space": "key"}, "space", ["key"]),
    "no W_O in model space": ({"space": "model", "W_O": None}, "W_O", ["model"]),
    "queries": ({"queries": "first"}, "queries", ["first"]),
    "sink rule": ({"sink": "last"}, "sink", ["last"]),
    "sink beyond the end": ({"sink": 6}, "sink", ["6"]),
    "sink below zero": ({"sink": -1}, "sink", ["-1"]),
    "one sink beyond the end": ({"sink": [0, 9]}, "sink", ["9"]),
    "sink mask too short": ({"sink": YES[:, 0, :5]}, "sink", ["2, 5"]),
    "sink mask without batch": ({"sink": YES[0, 0]}, "sink", ["(6,)", "[6]"]),
    "sink mask of other heads": ({"sink": YES[:, :3]}, "sink", ["2, 3, 6"]),
    "sink mask of floats": ({"sink": YES[:, 0].float()}, "sink", ["float32"]),
    "epsilon": ({"epsilon": -0.1}, "epsilon", ["-0.1"]),
}


@pytest.fixture(scope="module")
def unchecked():
    """The functions as users have them, without the shape checks of the test suite."""
    found = {}
    for module in (contributions, regimes, sinks):
        with without_shape_checks(module.__name__) as plain:
            found |= {name: getattr(plain, name) for name in FUNCTIONS if hasattr(plain, name)}
    return found


def accepts(function, names) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("function", "case"),
    [
        (name, case)
        for name, function in FUNCTIONS.items()
        for case, (change, _, _) in WRONG.items()
        if accepts(function, change)
    ],
)
def test_wrong_argument(function, case, unchecked):
    change, argument, given = WRONG[case]
    kwargs = {k: x for k, x in GOOD.items() if accepts(FUNCTIONS[function], [k])}
    unchecked[function](**kwargs)  # without the change there is nothing to refuse
    expected = TypeError if "integers" in case or "floats" in case else ValueError
    with pytest.raises((ValueError, expected), match=rf"\b{argument}\b") as caught:
        unchecked[function](**kwargs | change)
    message = str(caught.value)
    assert any(part in message for part in given), message


def test_every_case_is_used():
    for change, _, _ in WRONG.values():
        assert any(accepts(function, change) for function in FUNCTIONS.values())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_shape_checks_are_off_in_the_copy_only(function, unchecked):
    """Were the copy instrumented, the tests above would test jaxtyping instead of the package."""
    assert unchecked[function] is not FUNCTIONS[function]
    plain = getattr(
        unchecked[function], "__wrapped__", unchecked[function]
    )  # behind full_precision
    assert not hasattr(plain, "__wrapped__")
