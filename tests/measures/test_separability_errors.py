"""Wrong arguments of separability and its certificate: the message names the argument."""

from __future__ import annotations

import pytest
import torch
from literal.masks import causal
from literal.problems import problem, without_shape_checks

PATTERN, V, W_O = problem(available=causal(6)[None], seed=1).tensors
YES = torch.ones(2, 6, 6, dtype=torch.bool)

# What is changed, the argument that the message must name, and what it must repeat (any of).
COMMON = {
    "no sizes": ({"top_n": ()}, "top_n", ["()"]),
    "size of zero": ({"top_n": 0}, "top_n", ["0"]),
    "one size of zero": ({"top_n": (2, 0)}, "top_n", ["2, 0"]),
    "negative size": ({"top_n": (-3,)}, "top_n", ["-3"]),
    "size of a half": ({"top_n": (1.5,)}, "top_n", ["1.5"]),
    "space": ({"space": "key"}, "space", ["key"]),
    "no W_O in model space": ({"space": "model", "W_O": None}, "W_O", ["model"]),
    "queries by name": ({"queries": "first"}, "queries", ["first"]),
    "no queries": ({"queries": 0}, "queries", ["0"]),
    "negative number of queries": ({"queries": -1}, "queries", ["-1"]),
    "query beyond the end": ({"queries": torch.tensor([0, 6])}, "queries", ["6"]),
    "query before the start": ({"queries": torch.tensor([-1])}, "queries", ["-1"]),
    "queries of floats": ({"queries": torch.tensor([1.0])}, "queries", ["float32"]),
    "queries as a mask": ({"queries": YES[0, 0]}, "queries", ["bool"]),
    "queries of rank 3": ({"queries": YES.long()}, "queries", ["2, 6, 6"]),
    "queries of another batch": (
        {"queries": torch.zeros(3, 2, dtype=torch.long)},
        "queries",
        ["3, 2"],
    ),
    "pattern without batch": ({"pattern": PATTERN[0]}, "pattern", ["4, 6, 6"]),
    "v with few keys": ({"v": V[:, :5]}, "v", ["2, 5, 2, 3"]),
    "W_O with few heads": ({"W_O": W_O[:3], "space": "model"}, "W_O", ["3, 3, 7"]),
    "available too short": ({"available": YES[:, :5]}, "available", ["2, 5, 6"]),
}
SEPARABILITY = {
    "rank_by": ({"rank_by": "largest"}, "rank_by", ["largest"]),
    "distance": ({"distance": "manhattan"}, "distance", ["manhattan"]),
    "no repeats": ({"rank_by": "random", "repeats": 0}, "repeats", ["0"]),
    "sink rule": ({"sink": "last", "exclude_sink": True}, "sink", ["last"]),
    "sink beyond the end": ({"sink": 9, "exclude_sink": True}, "sink", ["9"]),
}
CERTIFICATE = {
    "reversed cosines": ({"cosine": (0.5, 0.2)}, "cosine", ["0.5, 0.2"]),
    "cosine above one": ({"cosine": (0.0, 1.2)}, "cosine", ["1.2"]),
    "sink cosine below minus one": ({"sink_cosine": (-1.5, 0)}, "sink_cosine", ["-1.5"]),
    "cosine that is no number": ({"cosine": (float("nan"), 1)}, "cosine", ["nan"]),
    "negative ratio": ({"sink_norm_ratio": -0.1}, "sink_norm_ratio", ["-0.1"]),
    "ratio that is no number": ({"sink_norm_ratio": float("nan")}, "sink_norm_ratio", ["nan"]),
    "sink rule": ({"sink": "last"}, "sink", ["last"]),
    "two sinks": ({"sink": [0, 2]}, "sink", ["0, 2"]),
    "two sinks in a mask": ({"sink": YES[:, 0]}, "sink", ["one sink"]),
}
CASES = [
    *[("separability", case, change) for case, change in (COMMON | SEPARABILITY).items()],
    *[("certificate", case, change) for case, change in (COMMON | CERTIFICATE).items()],
]


@pytest.fixture(scope="module")
def unchecked():
    """The functions as users have them, without the shape checks of the test suite."""
    with without_shape_checks("tl_geometry.measures.separability") as plain:
        found = {"separability": plain.separability, "bounds": plain.inversion_bounds}
    with without_shape_checks("tl_geometry.measures.certificate") as plain:
        return found | {"certificate": plain.sink_aware_certificate}


@pytest.mark.parametrize(
    ("function", "change"), [(f, c) for f, _, c in CASES], ids=[f"{f}: {c}" for f, c, _ in CASES]
)
def test_wrong_argument(function, change, unchecked):
    changed, argument, given = change
    good = {"pattern": PATTERN, "v": V, "W_O": W_O, "top_n": (1, 2)}
    unchecked[function](**good)
    with pytest.raises((ValueError, TypeError), match=rf"\b{argument}\b") as caught:
        unchecked[function](**good | changed)
    assert any(part in str(caught.value) for part in given), str(caught.value)


def test_bounds_need_one_size_per_entry(unchecked):
    with pytest.raises(ValueError, match=r"\binversions\b.*\(4, 3\).*2"):
        unchecked["bounds"](torch.zeros(4, 3), (1, 2))
    with pytest.raises(ValueError, match=r"\btop_n\b"):
        unchecked["bounds"](torch.zeros(4, 1), (0,))
