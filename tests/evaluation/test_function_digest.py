"""Functions are told apart by all that changes their numbers, and are the same where nothing did."""

from __future__ import annotations

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch

from tl_geometry.evaluation.function_digest import UndescribedError, function_digest
from tl_geometry.measures.importances import value_weighted

FACTOR = 2.0


def helper(x):
    return x + 1


def made(source, name="f", **given):
    """A function of a new module."""
    module = {"__name__": "users_module", "torch": torch, "np": np, **given}
    exec(source, module)  # noqa: S102 - a module whose text the test varies
    return module[name]


def closing_over(value):
    return lambda g: value * g


def with_default(value):
    def f(g, w=value):
        return w * g

    return f


def by_keyword(value):
    def f(g, *, w=value):
        return w * g

    return f


def nested(value):
    def f(g):
        return [x * value for x in g], (lambda x: x + value)

    return f


DIFFERENT = {
    "sign": (lambda g: g, lambda g: -g),
    "constant": (lambda g: g * 2, lambda g: g * 3),
    "constant's type": (lambda g: g * 2, lambda g: g * 2.0),
    "sign of zero": (lambda g: g + 0.0, lambda g: g + -0.0),
    "attribute": (lambda g: g.pattern, lambda g: g.values),
    "operation": (lambda g: g + 1, lambda g: g - 1),
    "closure": (closing_over(1.0), closing_over(1.5)),
    "closure of a list": (closing_over([1, 2]), closing_over([2, 1])),
    "closure of a function": (closing_over(lambda x: x), closing_over(lambda x: -x)),
    "default": (with_default(1), with_default(2)),
    "keyword default": (by_keyword(1), by_keyword(2)),
    "inner function": (nested(1), nested(2)),
    "constant of an inner function": (
        lambda g: (lambda x: x + 1)(g),
        lambda g: (lambda x: x + 2)(g),
    ),
    "global": (made("def f(g): return W * g", W=1), made("def f(g): return W * g", W=2)),
    "global of an inner function": (
        made("def f(g): return [(lambda: W)() for x in g]", W=1),
        made("def f(g): return [(lambda: W)() for x in g]", W=2),
    ),
    "helper": (
        made("def h(x): return x\ndef f(g): return h(g)"),
        made("def h(x): return -x\ndef f(g): return h(g)"),
    ),
    "helper's helper": (
        made("def k(x): return x\ndef h(x): return k(x)\ndef f(g): return h(g)"),
        made("def k(x): return 2 * x\ndef h(x): return k(x)\ndef f(g): return h(g)"),
    ),
    "partial": (functools.partial(with_default(1), w=3), functools.partial(with_default(1), w=4)),
    "function in a partial": (
        functools.partial(made("def f(g, w): return w * g"), w=3),
        functools.partial(made("def f(g, w): return w - g"), w=3),
    ),
    "data type": (closing_over(torch.float32), closing_over(torch.float64)),
    "number of numpy": (closing_over(np.float64(1)), closing_over(np.float64(2))),
    "library function": (closing_over(torch.exp), closing_over(torch.log)),
    "set": (closing_over({"a", "b"}), closing_over({"a", "c"})),
    "mapping": (closing_over({"a": 1}), closing_over({"a": 2})),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_told_apart(name):
    first, second = DIFFERENT[name]
    assert function_digest(first) != function_digest(second)
    assert function_digest(first) == function_digest(first)


@pytest.mark.parametrize(
    "make",
    [
        lambda: closing_over((1.0, "a", None, {"k": [2]})),
        lambda: with_default(frozenset({"a", "b", "c"})),
        lambda: made("def f(g): return torch.relu(g).abs() + np.pi + W", W=3),
        lambda: made("def f(g): return f(g[1:]) if len(g) else 0"),  # calls itself
        lambda: made(
            "def a(g): return f(g[1:])\ndef f(g): return a(g) if len(g) else 0"
        ),  # in a circle
        lambda: functools.partial(value_weighted, 3),
        lambda: lambda g: value_weighted(g) * FACTOR + helper(g.norm),
        lambda: torch.abs,
    ],
)
def test_made_anew_it_is_the_same(make):
    assert function_digest(make()) == function_digest(make())


def test_places_in_files_do_not_count():
    source = "def f(g):\n    return g * 2"
    assert function_digest(made(source)) == function_digest(made("\n\n# moved\n" + source))


def test_another_process_finds_the_same(tmp_path):
    """Whatever its hashes of strings are."""
    (tmp_path / "mine.py").write_text(
        "W = {'a', 'b', 'c'}\ndef h(x): return x in W or x in {'p', 'q', 'r'}\ndef f(g, *, k=('x', 2.5)): return h(g)"
    )
    code = "import mine; from tl_geometry.evaluation.function_digest import function_digest as d; print(d(mine.f))"
    found = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env={
                "PYTHONPATH": f"{tmp_path}:{':'.join(filter(None, sys.path))}",
                "PYTHONHASHSEED": s,
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for s in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


class Scorer:
    def __call__(self, geometry):
        return geometry.pattern

    def method(self, geometry):
        return geometry.pattern


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Scorer(), "it is a Scorer"),
        (Scorer().method, "it is a method"),
        (closing_over(torch.ones(2)), "its variable value is a Tensor"),
        (closing_over([1, {"a": Scorer()}]), "its variable value is a Scorer"),
        (functools.partial(helper, torch.ones(2)), "it is a Tensor"),
        (with_default(np.ones(2)), "its defaults is a ndarray"),
        (made("def f(g): return W @ g", W=torch.ones(2)), "its variable W is a Tensor"),
        (closing_over(torch.nn.Linear(2, 2)), "its variable value is a Linear"),
    ],
)
def test_what_cannot_be_described_is_named(function, said):
    with pytest.raises(UndescribedError, match=said):
        function_digest(function)


def test_what_is_known_already_counts_by_its_name():
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    one, other = (
        function_digest(closing_over(model), {id(model): "model"}) for model in (first, second)
    )
    assert one == other != function_digest(closing_over("model"))


def test_an_attribute_is_no_variable_of_the_module():
    """``pattern`` is looked up on the geometry; a tensor of that name in the module is not used."""
    source = "def f(g): return g.pattern"
    assert function_digest(made(source, pattern=torch.ones(2))) == function_digest(made(source))
