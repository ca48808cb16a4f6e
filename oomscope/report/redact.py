"""Remove from a result what its reader must not see: where files lie, what the code is called, what it consists of.

One name stands for one thing throughout a result, so that its tables keep their sense; the numbers stay. PyTorch's own
files and functions are public and keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import singledispatchmethod
from typing import Any, Final, Literal, TypeAlias, TypeVar

from oomscope.snapshot.provenance import Provenance
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import Annotation, Frame

Level: TypeAlias = Literal["paths", "source", "all"]
"""``paths``: the folders of all files. ``source``: file names, functions and line numbers as well. ``all``: also
modules, annotations and the names of the files that were read."""

PUBLIC: Final = re.compile(r"(?:^|/)(?:site|dist)-packages/(torch/.*)")
"""A file of an installed torch; a ``torch/`` that lies anywhere else may be anybody's."""
PUBLIC_NAME: Final = re.compile(r"^\((?!anonymous namespace\))|\((?:autograd|operator), C\+\+\)$")
"""Names that stand for no stack, or that oomscope itself gives to PyTorch's operators."""
PYTORCH: Final = frozenset({"at", "c10", "c10d", "torch", "caffe2"})
"""Namespaces of PyTorch's own C++ code."""
NAMESPACE: Final = re.compile(r"(?<![\w:])(\w+)::")
TEMPLATE_ARGUMENTS: Final = re.compile(r"<[^<>]*>")
UNKNOWN_FILES: Final = frozenset({"", "??"})
"""Names for the unknown file of a function."""
FILE_FIELDS: Final = frozenset({"file", "directory", "before_file", "after_file"})
"""Fields with the name of a file or folder that was read."""
MODULE_FIELDS: Final = frozenset({"module", "modules"})

Value = TypeVar("Value")


def redacted(value: Value, level: Level) -> Value:
    """Return ``value`` (a snapshot, or any result made of dataclasses) without what ``level`` hides.

    Sentences are searched for the names that occur elsewhere in ``value``.
    """
    redactor = _Redactor(level)
    redactor.structure(value)  # names every name once; sentences may stand before what they speak of
    redactor.closed = True
    result: Value = redactor.structure(value)
    return result


class _Names:
    """Replaces each name of one kind by another, always the same: the numbers follow the order of appearance."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._given: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._given.setdefault(name, self._form.format(len(self._given) + 1)) if name else name


class _Basenames:
    """The last component of each path, numbered where two paths share it."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: dict[str, int] = {}

    def __call__(self, path: str) -> str:
        if path not in self._given:
            name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
            number = self._taken[name] = self._taken.get(name, 0) + 1
            self._given[path] = name if number == 1 else f"{name}~{number}"
        return self._given[path]


class _Redactor:
    """Rebuilds a value, with other names."""

    def __init__(self, level: Level) -> None:
        self._hides_source = level != "paths"
        self._hides_all = level == "all"
        self._file: Callable[[str], str] = _Names("file{}.py") if self._hides_source else _Basenames()
        self._read: Callable[[str], str] = _Names("snapshot{}") if self._hides_all else _Basenames()
        self._function = _Names("function{}")
        self._lines: dict[tuple[str, int], int] = {}
        self._line_count: dict[str, int] = {}
        self._module = _Names("module{}")
        self._annotation = _Names("annotation{}")
        self._replacements: dict[str, str] = {}
        """Replacements for texts that a sentence may contain."""
        self._pattern: re.Pattern[str] | None = None
        self.closed = False
        """Whether all names are known, and sentences can be searched for them."""

    @singledispatchmethod
    def structure(self, value: Any, field: str = "") -> Any:
        """Return ``value`` rebuilt; ``field`` is the name of the field that it is in."""
        if not is_dataclass(value) or isinstance(value, type):
            return value
        held = {each.name: getattr(value, each.name) for each in fields(value)}
        return replace(value, **{name: self.structure(each, self._holds(name, field)) for name, each in held.items()})

    @structure.register
    def _(self, value: Site, field: str = "") -> Site:
        file, line, function = self._place(value.file, value.line, value.function)
        new = Site(file=file, line=line, function=function, module=self._module_name(value.module))
        if value.file:
            self._say(str(value), str(new))
            self._say(value.brief, str(new))
        return new

    @structure.register
    def _(self, value: Frame, field: str = "") -> Frame:
        return Frame(*self._place(value.filename, value.line, value.name))

    @structure.register
    def _(self, value: Annotation, field: str = "") -> Annotation:
        return replace(value, name=self._annotation(value.name)) if self._hides_all else value

    @structure.register
    def _(self, value: Provenance, field: str = "") -> Provenance:
        return replace(value, host="")

    @structure.register
    def _(self, value: list, field: str = "") -> list[Any]:  # type: ignore[type-arg] # a class is registered
        return [self.structure(each, field) for each in value]

    @structure.register
    def _(self, value: tuple, field: str = "") -> Any:  # type: ignore[type-arg]
        names = getattr(value, "_fields", None)
        if names is None:
            return tuple(self.structure(each, field) for each in value)
        return type(value)(*(self.structure(each, name) for name, each in zip(names, value, strict=True)))

    @structure.register
    def _(self, value: dict, field: str = "") -> dict[Any, Any]:  # type: ignore[type-arg]
        return {self.structure(key, field): self.structure(each, field) for key, each in value.items()}

    @structure.register
    def _(self, value: str, field: str = "") -> str:
        if field in FILE_FIELDS and value:
            new = self._read(value)
            self._say(value, new)
            return new
        if field in MODULE_FIELDS:
            if PUBLIC_NAME.search(value):
                return value
            return self._place(value, 0, "")[0] if value.endswith(".py") else self._module_name(value)
        return self._sentence(value)

    @staticmethod
    def _holds(name: str, parent: str) -> str:
        """Return what a field holds: the name of a row in a table of modules is a module."""
        return parent if name == "name" and parent in MODULE_FIELDS else name

    def _place(self, file: str, line: int, function: str) -> tuple[str, int, str]:
        if public := PUBLIC.search(file.replace("\\", "/")):
            return public[1], line, function
        if file in UNKNOWN_FILES:
            return file, line, self._function(function) if self._hides_source and not is_public(function) else function
        new = self._file(file)
        self._say(file, new)
        return (new, self._line(file, line), self._function(function)) if self._hides_source else (new, line, function)

    def _line(self, file: str, line: int) -> int:
        """Return a number that distinguishes the lines of a file, and shows no more."""
        if (file, line) not in self._lines:
            self._line_count[file] = self._line_count.get(file, 0) + 1
            self._lines[file, line] = self._line_count[file]
        return self._lines[file, line]

    def _module_name(self, module: str) -> str:
        if not (self._hides_all and module):
            return module
        new = self._module(module)
        if "." in module:
            self._say(module, new)
        return new

    def _say(self, old: str, new: str) -> None:
        if not self.closed:
            self._replacements.setdefault(old, new)

    def _sentence(self, text: str) -> str:
        if not (self.closed and self._replacements):
            return text
        if self._pattern is None:
            longest_first = map(re.escape, sorted(self._replacements, key=len, reverse=True))
            self._pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(longest_first)})(?!\w)")
        return self._pattern.sub(lambda found: self._replacements[found[0]], text)


def is_public(function: str) -> bool:
    """Whether a C++ function is PyTorch's own and its signature names nobody else's types.

    What counts is the namespace of its own name, not those of its arguments.
    """
    if PUBLIC_NAME.search(function):
        return True
    name, shorter = function, TEMPLATE_ARGUMENTS.sub("", function)
    while shorter != name:
        name, shorter = shorter, TEMPLATE_ARGUMENTS.sub("", shorter)
    own = NAMESPACE.match(name.partition("(")[0].strip().rpartition(" ")[2])
    return own is not None and own[1] in PYTORCH and set(NAMESPACE.findall(function)) <= PYTORCH | {"std"}
