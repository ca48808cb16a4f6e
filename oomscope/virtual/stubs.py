"""Generates the calls of NVIDIA's libraries that need no code of their own, from the tables in ``csrc/names``.

A table holds one library. Its sections say what a call does, each with the reason why it may:

- ``[compute]``: launches a kernel and succeeds. Its outputs are named.
- ``[accept]``: succeeds (or answers what stands behind ``->``), for nothing on the card depends on it.
- ``[estimate]``: succeeds with a size that only the closed library knows; the call is noted as an unknown workspace.
- ``[names]``: all public names. The others answer the status of ``unsupported`` and are noted by name.

A definition in a hand-written source wins over one of ``[names]``, which is weak. Standard library only: the build hook
runs this before anything is installed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

NAMES = Path(__file__).resolve().parent / "csrc" / "names"

Kind = Literal["compute", "accept", "estimate", "names"]
_KINDS: tuple[Kind, ...] = ("compute", "accept", "estimate", "names")
_HEADING = re.compile(r"\[(\w+)\]\s*(.*)")
_FUNCTION = re.compile(r"(?P<name>[\w{},]+)\((?P<parameters>.*)\)(?:\s*->\s*(?P<result>.+))?")
_PARAMETER = re.compile(r"(?P<role>[>@=*]?)(?P<name>\w+)(?::(?P<size>[^=]+))?(?:=(?P<value>.+))?")
_GROUP = re.compile(r"\{([^{}]*)\}")
_TYPES = {"int": "int", "long": "int64_t", "double": "double", "float": "float", "size": "size_t", "pointer": "void *"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a call, and what the call does with it."""

    name: str
    role: str
    """Empty: read. ``>``: a kernel writes there. ``@``: a kernel writes to the array of this descriptor.
    ``=``: zeros are held there. ``*``: the call writes a value there."""
    size: str
    """Read: its C type. ``>`` and ``=``: bytes, a C expression. ``*``: the C type of what it points at."""
    value: str
    """``*``: the value, a C expression over the parameters with a type."""


@dataclass(frozen=True)
class Function:
    """A call of a library as its table describes it."""

    name: str
    kind: Kind
    reason: str
    parameters: tuple[Parameter, ...] = ()
    result: str = "0"


@dataclass(frozen=True)
class Table:
    """The calls of one library."""

    library: str
    unsupported: str
    """What a call returns that the card does not support, a C expression."""
    uninitialised: str
    """What a computing call returns in a process that cannot use the card; empty: it does not ask."""
    functions: tuple[Function, ...]


def read_table(path: Path) -> Table:
    """Read the table of one library.

    Raises:
        ValueError: a line that is none of the forms above, or a name that is described twice; with file and line.
    """
    statuses = {"unsupported": "", "uninitialised": ""}
    kind, reason = None, ""
    functions: dict[str, Function] = {}
    plain: list[str] = []
    for number, line in _lines(path):
        heading = _HEADING.fullmatch(line)
        if heading:
            kind, reason = next((known for known in _KINDS if known == heading[1]), None), heading[2]
            if kind is None or (kind != "names" and not reason):
                raise ValueError(f"{path}:{number}: no such section, or one without a reason: {line}")
        elif line.partition(" ")[0] in statuses:
            name, _, statuses[name] = line.partition(" ")
        elif kind == "names":
            plain += [name for word in line.split() for name, _ in _expand(word, "")]
        elif kind:
            for function in _functions(line, kind, reason, f"{path}:{number}"):
                if function.name in functions:
                    raise ValueError(f"{path}:{number}: {function.name} is described twice")
                functions[function.name] = function
        else:
            raise ValueError(f"{path}:{number}: {line!r} stands before the first section")
    if not statuses["unsupported"]:
        raise ValueError(f"{path}: no line 'unsupported STATUS'")
    for name in plain:
        functions.setdefault(name, Function(name, "names", ""))
    return Table(path.stem, **statuses, functions=tuple(functions[name] for name in sorted(functions)))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines with content, their continuations (deeper indented) joined, without comments."""
    pending, at = "", 0
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.partition("#")[0].rstrip()
        if not line:
            continue
        if pending and line.startswith("    "):
            pending += " " + line.strip()
            continue
        if pending:
            yield at, pending
        pending, at = line.strip(), number
    if pending:
        yield at, pending


def _functions(line: str, kind: Kind, reason: str, where: str) -> Iterator[Function]:
    shape = _FUNCTION.fullmatch(line)
    if shape is None:
        raise ValueError(f"{where}: not a call: {line}")
    for name, rest in _expand(shape["name"], f"{shape['parameters']}->{shape['result'] or '0'}"):
        text, _, result = rest.rpartition("->")
        parameters = []
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            parameter = _PARAMETER.fullmatch(part)
            if parameter is None or (parameter["role"] == "*") != bool(parameter["value"]):
                raise ValueError(f"{where}: not a parameter: {part}")
            size = parameter["size"] or ""
            if parameter["role"] in {"", "*"} and size and size not in _TYPES:
                raise ValueError(f"{where}: no such type: {part}")
            parameters.append(Parameter(parameter["name"], parameter["role"], size, parameter["value"] or ""))
        yield Function(name, kind, reason, tuple(parameters), result.strip())


def _expand(name: str, rest: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a pattern with groups ``{S,D}``, all combinations, and what follows the name.

    A group in what follows takes the choice of the name's group with as many choices.
    """
    groups = [group.split(",") for group in _GROUP.findall(name)]
    for choice in itertools.product(*(range(len(group)) for group in groups)):
        by_length = dict(reversed([(len(group), index) for group, index in zip(groups, choice, strict=True)]))
        expanded = rest
        for match in reversed(list(_GROUP.finditer(rest))):
            options = match[1].split(",")
            expanded = expanded[: match.start()] + options[by_length[len(options)]] + expanded[match.end() :]
        pieces = _GROUP.split(name)[::2]
        chosen = [group[index] for group, index in zip(groups, choice, strict=True)]
        yield "".join(itertools.chain.from_iterable(itertools.zip_longest(pieces, chosen, fillvalue=""))), expanded


def write_stubs(folder: Path) -> list[Path]:
    """Write one C source a table into ``folder`` and return their paths.

    Raises:
        ValueError: as for :func:`read_table`.
    """
    written = []
    for path in sorted(NAMES.glob("*.txt")):
        table = read_table(path)
        source = folder / f"stubs_{table.library}.c"
        source.write_text(_PREAMBLE + "".join(_definition(function, table) for function in table.functions))
        written.append(source)
    return written


_PREAMBLE = """\
#include "libraries/library.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define WEAK __attribute__((weak))
"""


def _definition(function: Function, table: Table) -> str:
    head = f"CARD_API long {function.name}"
    if function.kind == "names":
        return f'WEAK {head}(void) {{ card_unsupported("{function.name}"); return (long)({table.unsupported}); }}\n'
    lines = []
    names = [parameter.name for parameter in function.parameters]
    stream = "stream" if "stream" in names else f"library_stream({names[0]})" if names else "NULL"
    if function.kind == "estimate":
        lines.append(f'library_unknown_workspace("{function.name}");')
    if function.kind == "compute":
        if table.uninitialised:
            lines.append(f"if (card_enter()) return {table.uninitialised};")
        lines.append(f"card_launched({stream});")
    for parameter in function.parameters:
        name = parameter.name
        if parameter.role == ">":
            lines.append(f"library_written({name}, {parameter.size or 0});")
        elif parameter.role == "@":
            lines.append(f"library_written(library_values({name}), 0);")
        elif parameter.role == "=":
            lines.append(f"library_zero({name}, {parameter.size}, {stream});")
        elif parameter.role == "*":
            lines.append(f"if ({name}) *{name} = {parameter.value};")
    body = "".join(f"  {line}\n" for line in lines)
    parameters = ", ".join(map(_declaration, function.parameters)) or "void"
    return f"{head}({parameters}) {{\n{body}  return (long)({function.result});\n}}\n"


def _declaration(parameter: Parameter) -> str:
    if parameter.role == "*":
        return f"{_TYPES[parameter.size or 'int']} *{parameter.name}"
    if parameter.role or not parameter.size:
        return f"void *{parameter.name}"
    return f"{_TYPES[parameter.size]} {parameter.name}"
