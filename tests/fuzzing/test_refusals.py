"""What can't be is refused by TypeError or ValueError with the argument's name, never by a number.

On a copy of the package without run-time shape checks: what users see.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from analysis_data.reference import plain_package
from hypothesis import given

from fuzzing.measures import MEASURES
from fuzzing.profile import examples
from fuzzing.refusals import SINKS, no_masks, no_tensors, refuses, wrong_scalars
from fuzzing.strategies import layers


@pytest.fixture(scope="module")
def plain():
    with plain_package() as package:
        yield {name: getattr(package, name) for name in MEASURES}


def good(name, layer):
    arguments = {part: getattr(layer, part) for part in MEASURES[name].arguments}
    return arguments | {"available": layer.mask}


@pytest.mark.parametrize("name", MEASURES)
def test_tensors(name, plain):
    @examples(3)
    @given(layers(dtypes=(torch.float32,), masks=("left", "causal"), least=4))
    def run(layer):
        arguments = good(name, layer)
        plain[name](**arguments)
        for part in MEASURES[name].arguments:
            for wrong in no_tensors(arguments[part]):
                if not fits(part, wrong, arguments[part], plain[name]):
                    refuses(name, plain[name], arguments | {part: wrong}, part)
        for wrong in no_masks(layer.mask):
            refuses(name, plain[name], arguments | {"available": wrong}, "available")

    run()


def fits(part, wrong, x, function) -> bool:
    """Whether it is another good argument: no projection in head space, or one to another width."""
    if part != "W_O":
        return False
    if wrong is None:
        return "space" in inspect.signature(function).parameters
    tensor = isinstance(wrong, torch.Tensor) and wrong.is_floating_point() and wrong.numel() > 0
    return tensor and wrong.shape[:2] == x.shape[:2]


@pytest.mark.parametrize("name", MEASURES)
def test_options(name, plain):
    @examples(2)
    @given(layers(dtypes=(torch.float32,), masks=("right", "causal"), least=4))
    def run(layer):
        arguments = good(name, layer)
        options = inspect.signature(plain[name]).parameters
        for option, value in wrong_scalars(plain[name]):
            if option == "seed" or option == "repeats" or option == "generator":
                random = {"importance": {"kind": "random"}, "separability": {"rank_by": "random"}}
                refuses(name, plain[name], arguments | random[name] | {option: value}, option)
            else:
                refuses(name, plain[name], arguments | {option: value}, option)
        if "sink" in options:
            for value in SINKS:
                refuses(name, plain[name], arguments | {"sink": value}, "sink")
        for option, setting in (
            ("b_V", {"value_bias": "remove"}),
            ("norm_weight", {"output": "normed"}),
        ):
            if option in options:
                for wrong in no_tensors(getattr(layer, option)):
                    refuses(name, plain[name], arguments | setting | {option: wrong}, option)

    run()


def test_a_bias_that_differs_within_a_group(plain):
    """One value is shared by the heads of a group, so it has one bias."""
    pattern, v, W_O = torch.ones(1, 4, 3, 3), torch.ones(1, 3, 2, 2), torch.ones(4, 2, 5)
    b_V = torch.arange(8.0).view(4, 2)
    with pytest.raises(ValueError, match="b_V differs between query heads that share a value"):
        plain["contribution_weights"](pattern, v, W_O, value_bias="remove", b_V=b_V)
