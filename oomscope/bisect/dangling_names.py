"""Names that a piece of Python needs and that nothing in its file gives it: a cheap sign that hunks need each other.

A commit that threads one argument through several functions changes each of them; with half of its hunks made, a
function uses a name that it was never handed, and raises NameError when it is called. The compiler's own symbol table
(:mod:`symtable`) tells which names are bound where. In doubt a name counts as bound: where it is used only under a
condition or in a decorated function, and in files that bind names by other means (``from x import *``, ``globals()``,
``exec``).
"""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections.abc import Iterator
from importlib.util import decode_source
from typing import Final

_BY_OTHER_MEANS: Final = {"globals", "locals", "vars", "exec", "eval", "builtins", "__builtins__", "setattr", "modules"}
_OF_MODULES: Final = frozenset(dir(builtins)) | {"__file__", "__path__", "__class__", "__annotations__"}
_CONDITIONAL: Final = (
    *(ast.If, ast.IfExp, ast.While, ast.For, ast.AsyncFor, ast.Try, ast.TryStar, ast.Match, ast.With, ast.AsyncWith),
    *(ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Compare, ast.Assert),
)
"""What runs some of its parts only now and then, or catches what they raise."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


Needed = frozenset[tuple[str, str]]
"""Functions, by qualified name, each with a name that it needs."""


def dangling(source: bytes) -> Needed:
    """Return each function of ``source`` (its qualified name) with each name that it needs and nothing binds.

    Raises:
        SyntaxError: it is no Python.
        ValueError: it holds null bytes.
    """
    with warnings.catch_warnings(action="ignore"):
        tree = ast.parse(source)
        if _binds_by_other_means(tree):
            return frozenset()
        table = symtable.symtable(decode_source(source), "<mixture>", "exec")
    bound = _OF_MODULES | {name for scope in _scopes(table) for name in _bound_in_module(scope)}
    found: set[tuple[str, str]] = set()
    for name, function, scope in _functions(tree, table, ""):
        free = {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        found |= {(name, used) for used in (free - bound) & set(_surely_used(function))}
    return frozenset(found)


def _binds_by_other_means(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return True
        if isinstance(node, ast.Name) and node.id in _BY_OTHER_MEANS:
            return True
        if isinstance(node, ast.Attribute) and node.attr in _BY_OTHER_MEANS:
            return True
    return False


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _bound_in_module(scope: symtable.SymbolTable) -> Iterator[str]:
    """Yield what ``scope`` binds in the module: its own names if it is that, else those that it declares global."""
    is_module = scope.get_type() == "module"
    for symbol in scope.get_symbols():
        is_bound = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        if is_bound and (is_module or symbol.is_declared_global()):
            yield symbol.get_name()


def _functions(
    body: ast.AST, table: symtable.SymbolTable, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, symtable.SymbolTable]]:
    """Yield the functions and methods that are defined once, unconditionally, each with its table of symbols."""
    for node in ast.iter_child_nodes(body):
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue
        tables = [child for child in table.get_children() if child.get_name() == node.name]
        if len(tables) != 1:
            continue
        name = f"{prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, tables[0], f"{name}.")
        elif not node.decorator_list:
            yield name, node, tables[0]


def _surely_used(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the names that ``function`` looks up whenever it runs to its first ``return``."""
    for statement in function.body:
        yield from _looked_up(statement)
        if isinstance(statement, (ast.Return, ast.Raise)) or _may_leave(statement):
            return


def _may_leave(statement: ast.stmt) -> bool:
    """Whether a function may end inside ``statement``, so that nothing after it surely runs."""
    return isinstance(statement, _CONDITIONAL) and any(
        isinstance(node, (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)) for node in ast.walk(statement)
    )


def _looked_up(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in _parts_that_run(node):
        yield from _looked_up(child)


def _parts_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of ``node`` that run whenever it does."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.iter
    elif isinstance(node, ast.Match):
        yield node.subject
    elif isinstance(node, ast.BoolOp):
        yield node.values[0]
    elif isinstance(node, ast.Compare):
        yield from (node.left, node.comparators[0])
    elif not isinstance(node, (*_CONDITIONAL, ast.AnnAssign)):
        yield from ast.iter_child_nodes(node)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.value
