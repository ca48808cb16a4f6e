"""What a function takes and returns, read from its annotations."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from llvmlite import ir

from oomscope.allocator.memory import Memory

INT = ir.IntType(64)


@dataclass(frozen=True)
class Array:
    """Where an array begins, and how many int64 it has."""

    first: ir.Value
    length: ir.Value


@dataclass(frozen=True)
class Parameter:
    """A parameter: a number, one array (``""``) or the arrays of a named tuple, by the names of its fields."""

    name: str
    fields: tuple[str, ...] = ()

    @property
    def kinds(self) -> list[ir.Type]:
        """What LLVM passes for it: an array as its place and its length."""
        return [INT.as_pointer(), INT] * len(self.fields) or [INT]


@cache
def tree_of(function: FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of a function at the top level of its module.

    Raises:
        SyntaxError: it is none.
    """
    (tree,) = ast.parse(inspect.getsource(function)).body
    if not isinstance(tree, ast.FunctionDef):
        raise refusal(function, tree)
    return tree


def parameters_of(function: FunctionType) -> list[Parameter]:
    """Return the parameters, in order.

    Raises:
        SyntaxError: one is of another kind, or may be left out.
    """
    arguments = tree_of(function).args
    for several in (arguments.posonlyargs, arguments.kwonlyargs, arguments.defaults):
        for node in several:
            raise refusal(function, node)
    return [Parameter(each.arg, _fields(function, each)) for each in arguments.args]


def type_of(function: FunctionType) -> ir.FunctionType:
    """Return its type: what returns nothing returns 0, and a pair is a structure."""
    returns = tree_of(function).returns
    returned = INT
    if isinstance(returns, ast.Subscript) and isinstance(returns.slice, ast.Tuple):
        returned = ir.LiteralStructType([INT] * len(returns.slice.elts))
    return ir.FunctionType(returned, [kind for each in parameters_of(function) for kind in each.kinds])


def symbol_of(function: FunctionType) -> str:
    """Return the name under which machine code has it."""
    return f"{function.__module__}.{function.__qualname__}"


def refusal(function: FunctionType, node: ast.AST) -> SyntaxError:
    """Return the error that says that ``node`` is outside the part of Python that is lowered."""
    return SyntaxError(f"{symbol_of(function)} cannot be compiled: {ast.unparse(node)!r} has no lowering")


def _fields(function: FunctionType, parameter: ast.arg) -> tuple[str, ...]:
    name = ast.unparse(parameter.annotation) if parameter.annotation else ""
    if name in {"int", "bool"}:
        return ()
    kind: Any = function.__globals__.get(name)
    if kind == Memory:
        return ("",)
    if not hasattr(kind, "_fields"):
        raise refusal(function, parameter)
    return tuple(kind._fields)
