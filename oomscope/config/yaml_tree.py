"""YAML as a tree of plain values that remember their line: the safe subset, bounded in size, depth and aliases.

Values are resolved as ``yaml.safe_load`` resolves them, with three differences that keep configurations honest: a
duplicate key is an error, ``1e-4`` is a number (YAML 1.2), and dates, ``12:30`` and octal numbers stay text: ``010``
is 8 in YAML 1.1 and 10 in YAML 1.2. No tag makes an object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from oomscope.config.problems import InvalidConfigError, Problem, shown

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_NODES = 5_000
"""Keys and values of a document, also after its aliases are expanded: a few nested aliases can stand for billions."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How large a document may be."""

    bytes: int = MAX_BYTES
    depth: int = MAX_DEPTH
    nodes: int = MAX_NODES


CONFIGURATION = Bounds()
_TOO_MUCH = "write a plain configuration, without nested aliases"
_MERGE = "tag:yaml.org,2002:merge"
_STRING = "tag:yaml.org,2002:str"
_NUMBERS = {
    "int": r"[-+]?(?:0b[01]+|0x[0-9a-fA-F]+|0|[1-9][\d_]*)",
    "float": r"[-+]?(?:\d[\d_]*\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf)|\.nan",
}


@dataclass(frozen=True)
class Scalar:
    """A single value."""

    value: Any
    text: str
    """Text as written, without quotes."""
    line: int


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Tree, ...]
    line: int

    @property
    def value(self) -> list[Any]:
        """The plain list."""
        return [item.value for item in self.items]


@dataclass(frozen=True)
class Mapping:
    """A mapping with text keys."""

    entries: dict[str, tuple[int, Tree]]
    """Key to the key's line and its value."""
    line: int

    @property
    def value(self) -> dict[str, Any]:
        """The plain mapping."""
        return {key: tree.value for key, (_, tree) in self.entries.items()}


Tree = Scalar | Items | Mapping


def tree_of(value: Any) -> Tree:
    """Return the tree of a plain value that no line holds."""
    if isinstance(value, dict):
        return Mapping({str(key): (0, tree_of(inner)) for key, inner in value.items()}, 0)
    if isinstance(value, list | tuple):
        return Items(tuple(map(tree_of, value)), 0)
    return Scalar(value, str(value), 0)


class _ExcessError(yaml.MarkedYAMLError):
    """The document is YAML, and passes a bound."""


class _Loader(yaml.SafeLoader):
    """The safe loader, which refuses deep nesting and endless lists while it composes."""

    def __init__(self, stream: str, bounds: Bounds) -> None:
        super().__init__(stream)
        self.bounds = bounds
        self.depth = 0
        self.composed = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        self.composed += 1
        excess = _excess(self.depth, self.composed, self.bounds)
        if excess:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _ExcessError(problem=excess, problem_mark=mark)
        try:
            return Composer.compose_node(self, parent, index)
        finally:
            self.depth -= 1


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Return the implicit resolvers of the safe loader, with YAML 1.2 numbers and without dates and base 60."""
    replaced = {"int", "float", "timestamp"}
    kept = {
        first: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] not in replaced]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "+-.0123456789":
        for tag, pattern in _NUMBERS.items():
            kept.setdefault(first, []).append((f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z")))
    return kept


_Loader.yaml_implicit_resolvers = _resolvers()


class Dumper(yaml.SafeDumper):
    """Writes text without quotes only where both :func:`read_yaml` and PyYAML read it back as that text."""


Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *pairs]
    for first, pairs in _Loader.yaml_implicit_resolvers.items()
}


@dataclass
class _Reader:
    """Turns composed nodes into a tree, counting what it makes."""

    source: str
    loader: _Loader
    problems: list[Problem] = field(default_factory=list)
    made: int = 0

    def where(self, node: Node) -> str:
        return f"{self.source}:{_line(node)}"

    def tree(self, node: Node, depth: int = 1) -> Tree:
        self.made += 1
        excess = _excess(depth, self.made, self.loader.bounds)
        if excess:
            raise InvalidConfigError([Problem(excess, self.where(node), _TOO_MUCH)])
        if isinstance(node, MappingNode):
            return self.mapping(node, depth)
        if isinstance(node, SequenceNode):
            self.check_tag(node, "seq")
            return Items(tuple(self.tree(item, depth + 1) for item in node.value), _line(node))
        return self.scalar(node)

    def check_tag(self, node: Node, *allowed: str) -> bool:
        if node.tag.removeprefix("tag:yaml.org,2002:") in allowed:
            return True
        self.problems.append(
            Problem(f"the tag {shown(node.tag)} is not allowed", self.where(node), "write plain values")
        )
        return False

    def scalar(self, node: Node) -> Scalar:
        text = str(node.value)
        if not self.check_tag(node, "null", "bool", "int", "float", "str"):
            return Scalar(text, text, _line(node))
        try:
            value = self.loader.construct_object(node)
        except (ValueError, OverflowError, KeyError, IndexError, yaml.YAMLError):
            self.problems.append(Problem(f"{shown(text)} cannot be read as a number", self.where(node)))
            value = text
        return Scalar(value, text, _line(node))

    def mapping(self, node: MappingNode, depth: int) -> Mapping:
        self.check_tag(node, "map")
        entries: dict[str, tuple[int, Tree]] = {}
        merged: dict[str, tuple[int, Tree]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged = {**self.merge(value_node, depth), **merged}
                continue
            if not isinstance(key_node, ScalarNode) or key_node.tag != _STRING:
                what = shown(key_node.value) if isinstance(key_node, ScalarNode) else "a list or mapping"
                self.problems.append(Problem(f"{what} is no key", self.where(key_node), "keys are names"))
                continue
            key = key_node.value
            if key in entries:
                message = f"{shown(key)} is given twice (first in line {entries[key][0]})"
                self.problems.append(Problem(message, self.where(key_node), "keep one of them"))
                continue
            entries[key] = (_line(key_node), self.tree(value_node, depth + 1))
        return Mapping({**merged, **entries}, _line(node))

    def merge(self, node: Node, depth: int) -> dict[str, tuple[int, Tree]]:
        """Return the entries that ``<<`` brings in; of several mappings the earlier wins (YAML 1.1 merge key)."""
        trees = self.tree(node, depth + 1)
        sources = trees.items if isinstance(trees, Items) else (trees,)
        merged: dict[str, tuple[int, Tree]] = {}
        for source in sources:
            if not isinstance(source, Mapping):
                self.problems.append(Problem("<< needs a mapping", self.where(node)))
                continue
            merged = {**source.entries, **merged}
        return merged


def read_yaml(data: bytes | str, source: str, bounds: Bounds = CONFIGURATION) -> tuple[Tree, list[Problem]]:
    """Return the tree of the one document in ``data``, and what is wrong in it; an empty document is a null scalar.

    Raises:
        InvalidConfigError: it is not YAML, or beyond the bounds.
    """
    text = _decoded(data, source, bounds)
    loader: _Loader | None = None
    try:
        loader = _Loader(text, bounds)
        node = loader.get_single_node()
        if node is None:
            return Scalar(None, "", 1), []
        reader = _Reader(source, loader)
        return reader.tree(node), reader.problems
    except yaml.YAMLError as error:
        raise InvalidConfigError([_syntax_problem(error, text, source)]) from None
    finally:
        if loader is not None:
            loader.dispose()


def _excess(depth: int, nodes: int, bounds: Bounds) -> str | None:
    """Return which bound is passed, if any."""
    if depth > bounds.depth:
        return f"nested more than {bounds.depth} deep"
    return f"more than {bounds.nodes} keys and values" if nodes > bounds.nodes else None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _decoded(data: bytes | str, source: str, bounds: Bounds) -> str:
    if len(data) > bounds.bytes:
        message = f"larger than {bounds.bytes // 1024} KiB, too large for a configuration"
        raise InvalidConfigError([Problem(message, source, "give a YAML file of sections and keys")])
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = f"not text: byte 0x{data[error.start]:02x} is not UTF-8"
        raise InvalidConfigError([Problem(message, f"{source}:{line}", "give a YAML file in UTF-8")]) from None


def _syntax_problem(error: yaml.YAMLError, text: str, source: str) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        line = text[: error.position].count("\n") + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        return Problem(f"not text: control character U+{code:04X}", f"{source}:{line}", "give a YAML file in UTF-8")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem("not YAML", source, "give a YAML file of sections and keys")
    mark = error.problem_mark or error.context_mark
    where = source if mark is None else f"{source}:{mark.line + 1}"
    if error.problem is None or "but found another document" in error.problem:
        return Problem("more than one YAML document", where, "keep one")
    if isinstance(error, _ExcessError):
        return Problem(error.problem, where, _TOO_MUCH)
    context = f" {error.context}" if error.context else ""
    return Problem(f"not YAML: {error.problem}{context}", where, "fix the line")
