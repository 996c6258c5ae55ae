"""A fingerprint of a user's function: what its numbers depend on, as far as Python shows it."""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["UndescribedError", "function_digest"]

_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), slice, range)
_PRINTED = (torch.dtype, torch.device, enum.Enum, np.generic)
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


class UndescribedError(ValueError):
    """Something that a function uses can't be told from another of its kind."""


def function_digest(function: Callable[..., Any], known: Mapping[int, str] | None = None) -> str:
    """Hexadecimal digest of a function's code and of the values that it uses.

    >>> function_digest(lambda g: g.pattern) == function_digest(lambda g: -g.pattern)
    False

    What counts: bytecode, constants, names, defaults, variables of enclosing functions and of the
    module, and functions of the same module in turn. Classes, and functions of other modules, count
    by name. Another version of Python gives another digest.

    Args:
        known: names of objects by their ``id`` that are fingerprinted elsewhere, such as the model.

    Raises:
        UndescribedError: a value that is no plain one, such as a tensor or an object with state.
    """
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    description = _Description(getattr(inner, "__module__", None), dict(known or {}))
    return hashlib.sha256(repr(description.of(function, "it")).encode()).hexdigest()


class _Description:
    """Turns values into nested tuples of strings and numbers, whose repr is the same in every process."""

    def __init__(self, module: str | None, known: dict[int, str]) -> None:
        self.module = module
        self.known = known  # and functions that are being described: they may call themselves

    def of(self, value: Any, name: str) -> Any:
        """The description of a value; ``name`` says in an error where it was found."""
        if id(value) in self.known:
            return "known", self.known[id(value)]
        if isinstance(value, _PRINTED):
            return type(value).__name__, repr(value)
        if type(value) in _ATOMS:
            return type(value).__name__, repr(value)
        if type(value) in (tuple, list):
            return type(value).__name__, tuple(self.of(item, name) for item in value)
        if type(value) in (set, frozenset):
            return type(value).__name__, tuple(sorted(repr(self.of(x, name)) for x in value))
        if type(value) is dict:
            pairs = ((self.of(k, name), self.of(x, name)) for k, x in value.items())
            return "dict", tuple(pairs)
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        if isinstance(value, types.CodeType):
            return self._code(value, name)
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return "partial", tuple(self.of(part, name) for part in parts)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type) or (
            isinstance(value, _BUILT_IN) and _stateless(getattr(value, "__self__", None))
        ):
            return "named", f"{value.__module__}.{value.__qualname__}"
        raise UndescribedError(f"{name} is a {type(value).__name__}")

    def _function(self, function: types.FunctionType) -> Any:
        path = f"{function.__module__}.{function.__qualname__}"
        library = path.partition(".")[0] == "tl_geometry"  # its version is known already
        if (library or function.__module__ != self.module) and "<" not in path:
            return "named", path
        self.known[id(function)] = path
        code = function.__code__
        free = {
            name: _contents(cell)
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
        }
        names = {
            name: function.__globals__[name]
            for name in _global_names(code)
            if name in function.__globals__
        }
        parts = {
            "code": code,
            "defaults": function.__defaults__,
            "keyword defaults": function.__kwdefaults__,
        }
        used = {**parts, **{f"variable {k}": v for k, v in {**names, **free}.items()}}
        return tuple((what, self.of(value, f"its {what}")) for what, value in used.items())

    def _code(self, code: types.CodeType, name: str) -> Any:
        constants = tuple(self.of(constant, name) for constant in code.co_consts)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        return code.co_code, constants, names, counts, getattr(code, "co_exceptiontable", b"")


def _global_names(code: types.CodeType) -> list[str]:
    """Names that the code, and functions inside it, look up in their module."""
    found = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found.update(_global_names(constant))
    return sorted(found)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return ("empty",)


def _stateless(owner: Any) -> bool:
    return owner is None or isinstance(owner, (types.ModuleType, type))
