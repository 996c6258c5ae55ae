"""The examples in the documentation of the measures do what they say."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from tl_geometry import measures

MODULES = sorted(module.name for module in pkgutil.iter_modules(measures.__path__))
FUNCTIONS = [name for name in measures.__all__ if inspect.isroutine(getattr(measures, name))]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def doctests(module):
    """One for each docstring with examples.

    They are read from the source, because the standard finder passes over decorated functions.
    """
    path = Path(module.__file__)
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, DOCUMENTED):
            continue
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        name = f"{module.__name__}.{getattr(node, 'name', '')}"
        line = getattr(node, "lineno", 1)
        parsed = doctest.DocTestParser().get_doctest(docstring, vars(module), name, str(path), line)
        if parsed.examples:
            found.append(parsed)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"{measures.__name__}.{name}")
    tests, printed = doctests(module), []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    for test in tests:
        runner.run(test, out=printed.append)
    assert runner.failures == 0, "".join(printed)
    assert runner.tries == sum(len(test.examples) for test in tests)
    assert (runner.tries > 0) == (">>> " in inspect.getsource(module))
    standard = doctest.testmod(module)
    assert standard.failed == 0
    assert standard.attempted <= runner.tries


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_has_an_example(name):
    examples = doctest.DocTestParser().get_examples(getattr(measures, name).__doc__)
    assert any(name in example.source for example in examples)
