"""Scalars of numpy and torch are taken for the numbers they are; what is none is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tl_geometry.arguments import confidence_level, real_number, whole_number, whole_seed


@pytest.mark.parametrize("two", [2, np.int64(2), np.uint8(2), torch.tensor(2), np.array(2)])
def test_integers_of_every_kind(two):
    assert whole_number("n", two, 2) == 2
    assert type(whole_number("n", two)) is int
    with pytest.raises(ValueError, match="n must be at least 3, got 2"):
        whole_number("n", two, 3)


@pytest.mark.parametrize(
    "wrong", [2.0, True, np.bool_(True), torch.tensor(True), "2", None, np.float64(2), [2]]
)
def test_no_integer(wrong):
    with pytest.raises(TypeError, match="n must be an integer, got"):
        whole_number("n", wrong)


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), torch.tensor(0.5), np.array(0.5)])
def test_numbers_of_every_kind(half):
    assert real_number("x", half) == 0.5
    assert type(real_number("x", half)) is float


@pytest.mark.parametrize(
    "wrong",
    [
        True,
        np.True_,
        torch.tensor(True),
        np.array(True),
        "0.5",
        None,
        [0.5],
        np.ones(1),
        torch.ones(2),
        1j,
        np.complex128(1),
    ],
)
def test_no_number(wrong):
    with pytest.raises(TypeError, match="x must be a number, got"):
        real_number("x", wrong)


def test_seeds():
    assert type(whole_seed(np.int64(3))) is int
    for wrong in (True, 1.0, np.float64(1), "1"):
        with pytest.raises(TypeError, match="seed must be an integer"):
            whole_seed(wrong)
    for wrong, message in ((-1, "at least 0, got -1"), (2**64, "less than 2\\*\\*64")):
        with pytest.raises(ValueError, match=f"seed must be {message}"):
            whole_seed(wrong)


@pytest.mark.parametrize("wrong", [0, 1, -0.5, 2.0, float("nan")])
def test_confidence(wrong):
    assert confidence_level(np.float32(0.5)) == 0.5
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got"):
        confidence_level(wrong)
