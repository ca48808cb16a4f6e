"""What hunks need of each other, by the name that a failed run of a Python program lacked.

Names are looked for in the syntax trees of the files before and after: neither prose nor another kind of file counts.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.vcs.patches import Hunk

Sources = Callable[[str], tuple[bytes | None, bytes | None]]
"""Returns, for a path, the file before and after the change; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A name that a run lacked."""

    name: str
    owner: tuple[str, ...]
    """The module, class or function that lacked it, outermost first; only what the error names."""
    uses: frozenset[str]
    """The kinds of places that want the name."""
    binds: frozenset[str]
    """The kinds of places that provide it."""


@dataclass(frozen=True)
class _Place:
    """Where a name occurs."""

    kind: str
    where: tuple[str, ...]
    """The module, and the classes and functions around the name."""


@dataclass(frozen=True)
class _Found:
    """A name that a hunk brings or takes away."""

    hunk: int
    path: str
    place: _Place


_PARAMETER: Final = frozenset({"parameter", "field"})
_BOUND: Final = frozenset({"global", "local", "field", "parameter"})
_DEFINED: Final = _BOUND | {"member", "module"}
_ERRORS: Final = (
    (
        r"(?:(?P<owner>[\w.<>]+)\(\) )?got an unexpected keyword argument '(?P<name>\w+)'",
        frozenset({"keyword", "text"}),
        _PARAMETER,
    ),
    (
        r"(?:(?P<owner>[\w.<>]+)\(\) )?missing \d+ required [a-z -]*arguments?: '(?P<name>\w+)'",
        _PARAMETER,
        frozenset({"keyword", "text", "name", "attribute"}),
    ),
    (
        r"(?:'(?P<owner>[\w.]+)'(?: object)? )?has no attribute '(?P<name>\w+)'",
        frozenset({"attribute", "text"}),
        frozenset({"global", "field", "member"}),
    ),
    (r"No module named '(?P<owner>(?:\w+\.)*(?P<name>\w+))'", frozenset({"import"}), frozenset({"module"})),
    (
        r"cannot import name '(?P<name>\w+)'(?: from [a-z ]*'(?P<owner>[\w.]+)')?",
        frozenset({"import"}),
        frozenset({"global"}),
    ),
    (r"(?:name|variable) '(?P<name>\w+)'(?P<owner>)", frozenset({"name"}), _BOUND),
)
"""Errors that say which name was missing, and the kinds of places that want it and that provide it."""


def missing_name(reason: str) -> Missing | None:
    """Return the name that a run lacked, by its last error; None where that names none."""
    for pattern, uses, binds in _ERRORS:
        if found := re.search(pattern, reason):
            owner = tuple(part for part in (found["owner"] or "").split(".") if part not in ("", "<locals>"))
            return Missing(name=found["name"], owner=owner, uses=uses, binds=binds)
    return None


def needs_by_name(hunks: Sequence[Hunk], missing: Missing, sources: Sources) -> dict[int, Changes]:
    """Return, by number, the hunks that each of ``hunks`` needs for one name.

    Hunks that bring a use need those that bring what it refers to. Hunks that take that away need those that take uses
    away.
    """
    gained, lost = _gained_and_lost(hunks, missing.name, sources)
    needs = defaultdict[int, set[int]](set)
    for use, bind in _pairs(gained, missing):
        needs[use].add(bind)
    for use, bind in _pairs(lost, missing):
        needs[bind].add(use)
    return {hunk: frozenset(needed) for hunk, needed in needs.items()}


def _pairs(found: Sequence[_Found], missing: Missing) -> Iterator[tuple[int, int]]:
    """Yield the hunks of each use with those of what it may refer to."""
    uses, binds = (_chosen(found, kinds, missing.owner) for kinds in (missing.uses, missing.binds))
    for use in uses:
        for bind in _nearest(use, binds) if use.place.kind == "name" else binds:
            yield use.hunk, bind.hunk


def _nearest(use: _Found, binds: Sequence[_Found]) -> list[_Found]:
    """Return what binds the name in the innermost scope around ``use``; where its file does not, what others may."""
    around = [bind for bind in binds if _sees(use, bind)]
    depth = max((len(bind.place.where) for bind in around), default=0)
    nearest = [bind for bind in around if len(bind.place.where) == depth]
    return nearest or [bind for bind in binds if bind.place.kind == "global"]


def _chosen(found: Sequence[_Found], kinds: frozenset[str], owner: tuple[str, ...]) -> list[_Found]:
    """Return what is of ``kinds``; of definitions only those in ``owner``, if it has any."""
    chosen = [each for each in found if each.place.kind in kinds]
    return [each for each in chosen if each.place.kind in _DEFINED and _is_of(each.place, owner)] or chosen


def _is_of(place: _Place, owner: tuple[str, ...]) -> bool:
    """Whether ``place`` lies in ``owner``; the fields of a dataclass are what its ``__init__`` takes."""
    return any(where[-len(owner) :] == owner for where in (place.where, (*place.where, "__init__")))


def _sees(use: _Found, bind: _Found) -> bool:
    return use.path == bind.path and use.place.where[: len(bind.place.where)] == bind.place.where


def _gained_and_lost(hunks: Sequence[Hunk], name: str, sources: Sources) -> tuple[list[_Found], list[_Found]]:
    """Return the places of ``name`` that each hunk of a Python file brings, and those that it takes away."""
    word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
    trees = dict[str, tuple[list[tuple[int, _Place]], ...]]()
    gained, lost = list[_Found](), list[_Found]()
    for number, hunk in enumerate(hunks):
        module = _module(hunk.path)
        if not hunk.path.endswith(".py") or not (word.search(hunk.body) or (hunk.is_whole and name in module)):
            continue
        if hunk.path not in trees:
            trees[hunk.path] = tuple(list(_places(source, name, module)) for source in sources(hunk.path))
        old, new = (
            {place for line, place in places if hunk.is_whole or line in lines}
            for places, lines in zip(trees[hunk.path], (hunk.removed, hunk.added), strict=True)
        )
        gained += [_Found(number, hunk.path, place) for place in new - old]
        lost += [_Found(number, hunk.path, place) for place in old - new]
    return gained, lost


def _module(path: str) -> tuple[str, ...]:
    parts = PurePosixPath(path).with_suffix("").parts
    return parts[:-1] if parts[-1:] == ("__init__",) else parts


def _places(source: bytes | None, name: str, module: tuple[str, ...]) -> Iterator[tuple[int, _Place]]:
    """Yield every line of ``source`` with what ``name`` is there; nothing where the source does not parse."""
    if source is None:
        return
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    if name in module:
        yield 0, _Place("module", module)
    todo: list[tuple[ast.AST, tuple[str, ...], str]] = [(tree, module, "global")]
    while todo:
        node, where, bound = todo.pop()
        for own, kind in _named(node, bound):
            if own == name:
                around = where[:-1] if kind == "member" else module if kind == "global" else where
                yield getattr(node, "lineno", 0), _Place(kind, around)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            where, bound = (*where, node.name), "field" if isinstance(node, ast.ClassDef) else "local"
        todo.extend((child, where, bound) for child in ast.iter_child_nodes(node))


def _named(node: ast.AST, bound: str) -> list[tuple[str, str]]:
    """Return the names in ``node`` itself, each with its kind; what is bound there is of the kind ``bound``."""
    match node:
        case ast.Name():
            found = [(node.id, "name" if isinstance(node.ctx, ast.Load) else bound)]
        case ast.Attribute():
            found = [(node.attr, "attribute" if isinstance(node.ctx, ast.Load) else "member")]
        case ast.arg():
            found = [(node.arg, "parameter")]
        case ast.keyword(arg=str(name)):
            found = [(name, "keyword")]
        case ast.Constant(value=str(text)):
            found = [(text, "text")]
        case ast.alias():
            parts = node.name.split(".")
            found = [*((part, "import") for part in parts), (node.asname or parts[0], bound)]
        case ast.ImportFrom(module=str(module)):
            found = [(part, "import") for part in module.split(".")]
        case ast.Global():
            found = [(name, "global") for name in node.names]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            found = [(node.name, bound)]
        case _:
            found = []
    return found
