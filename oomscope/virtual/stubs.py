"""Generates the calls of NVIDIA's libraries that need no code of their own, from the tables in ``csrc/names``.

The tables name every function that leaves the card's library. The sections of a library say what a call does:

- ``[compute] REASON``: launches a kernel and succeeds. Its outputs are named.
- ``[accept] REASON``: succeeds (or answers what stands behind ``->``), for nothing on the card depends on it.
- ``[estimate] REASON``: succeeds with a size that only the closed library knows; noted as an unknown workspace.
- ``[same] REASON``: is the function with ``_v2`` behind its name, or what stands behind ``=``.
- ``[driver] REASON``: a call of the runtime that is the driver's: ``cudaX`` is ``cuX``, or what stands behind ``=``.
- ``[names] PREFIX``: all other names, without the prefix. A definition in a hand-written source wins over these weak
  ones, which answer the library's status for what is not supported and are noted by name.

Standard library only: the build hook runs this before anything is installed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

NAMES = Path(__file__).resolve().parent / "csrc" / "names"

Kind = Literal["compute", "accept", "estimate", "same", "driver", "names"]
_HEADING = re.compile(rf"\[({'|'.join(get_args(Kind))})\] (.+)")
_FUNCTION = re.compile(r"(?P<name>[\w{},]+)\((?P<parameters>.*)\)")
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
class Library:
    """What the calls of one library return where they do nothing; C expressions."""

    unsupported: str
    """Whether the card does not support the call."""
    uninitialised: str
    """A computing call in a process that cannot use the card; empty: it does not ask."""


@dataclass(frozen=True)
class Function:
    """A call of a library as its table describes it."""

    name: str
    kind: Kind
    library: Library
    parameters: tuple[Parameter, ...] = ()
    result: str = "0"
    """Result as a C expression; for ``same`` and ``driver`` the function itself."""


def read_table(path: Path) -> tuple[Function, ...]:
    """Return the calls of a table, by name. A table may hold several libraries, each with its lines of statuses first.

    Raises:
        ValueError: a line that is none of the forms above, or a name that is described twice; with file and line.
    """
    kind: Kind | None = None
    library: Library | None = None
    prefix = ""
    functions: dict[str, Function] = {}
    for number, line in _lines(path):
        where = f"{path}:{number}"
        word, _, status = line.partition(" ")
        if word == "unsupported":
            kind, library = None, Library(status, "")
        elif word == "uninitialised" and library:
            library = Library(library.unsupported, status)
        elif library is None:
            raise ValueError(f"{where}: {line!r} stands before a line 'unsupported STATUS'")
        elif heading := _HEADING.fullmatch(line):
            kind = next(known for known in get_args(Kind) if known == heading[1])
            prefix = heading[2] if kind == "names" else ""
        elif line.startswith("[") or kind is None:
            raise ValueError(f"{where}: no such section, or one without a reason: {line}")
        else:
            for function in _described(line, prefix, kind, library, where):
                if functions.setdefault(function.name, function) is not function:
                    raise ValueError(f"{where}: {function.name} is described twice")
    return tuple(functions[name] for name in sorted(functions))


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


def _described(line: str, prefix: str, kind: Kind, library: Library, where: str) -> Iterator[Function]:
    """Yield the calls of a line of a section."""
    if kind in {"compute", "accept", "estimate"}:
        yield from _functions(line, kind, library, where)
        return
    for word in line.split():
        name, _, target = word.partition("=")
        for expanded, _ in _expand(prefix + name, ""):
            is_driver = kind == "driver"
            result = target or (expanded.replace("cuda", "cu", 1) if is_driver else f"{expanded}_v2")
            yield Function(expanded, kind, library, result=result)


def _functions(line: str, kind: Kind, library: Library, where: str) -> Iterator[Function]:
    call, _, answer = line.partition(" -> ")
    shape = _FUNCTION.fullmatch(call.strip())
    if shape is None:
        raise ValueError(f"{where}: not a call: {line}")
    for name, rest in _expand(shape["name"], f"{shape['parameters']}->{answer or '0'}"):
        text, _, result = rest.rpartition("->")
        parameters = []
        for part in filter(None, (piece.strip() for piece in re.split(r",(?![^(]*\))", text))):
            parameter = _PARAMETER.fullmatch(part)
            if parameter is None or (parameter["role"] == "*") != bool(parameter["value"]):
                raise ValueError(f"{where}: not a parameter: {part}")
            size = parameter["size"] or ""
            if parameter["role"] in {"", "*"} and size and size not in _TYPES:
                raise ValueError(f"{where}: no such type: {part}")
            parameters.append(Parameter(parameter["name"], parameter["role"], size, parameter["value"] or ""))
        yield Function(name, kind, library, tuple(parameters), result.strip())


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
    """Write the C sources of the tables into ``folder`` and return their paths.

    Calls that are another function pass on what may be in registers, and have a source of their own, in which no other
    declaration of that function stands.

    Raises:
        ValueError: as for :func:`read_table`.
    """
    forwarded = {"same", "driver"}
    texts = {f"stubs_{path.stem}.c": (read_table(path), False) for path in sorted(NAMES.glob("*.txt"))}
    texts |= {file.replace("stubs", "forwards"): (functions, True) for file, (functions, _) in texts.items()}
    written = []
    for file, (functions, is_forward) in texts.items():
        text = "".join(_definition(one) for one in functions if (one.kind in forwarded) is is_forward)
        if text:
            (folder / file).write_text(_PREAMBLE + text)
            written.append(folder / file)
    return written


_PREAMBLE = """\
#include "libraries/library.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define WEAK __attribute__((weak))
"""
_REGISTERS = ("long a", "long b", "long c", "long d", "long e", "long f")
"""The arguments of a forwarded call: at most six integers and pointers."""


def _definition(function: Function) -> str:
    head = f"CARD_API long {function.name}"
    if function.kind == "names":
        answer = f'card_unsupported("{function.name}"); return (long)({function.library.unsupported});'
        return f"WEAK {head}(void) {{ {answer} }}\n"
    if function.kind in {"same", "driver"}:
        call = f"{function.result}(a, b, c, d, e, f)"
        answer = f"card_runtime_status((int){call})" if function.kind == "driver" else call
        taken = ", ".join(_REGISTERS)
        return f"long {function.result}({taken});\n{head}({taken}) {{ return {answer}; }}\n"
    body = "".join(f"  {line}\n" for line in _statements(function))
    parameters = ", ".join(map(_declaration, function.parameters)) or "void"
    return f"{head}({parameters}) {{\n{body}  return (long)({function.result});\n}}\n"


def _statements(function: Function) -> Iterator[str]:
    names = [parameter.name for parameter in function.parameters]
    stream = "stream" if "stream" in names else f"library_stream({names[0]})" if names else "NULL"
    if function.kind == "estimate":
        yield f'card_unknown_workspace("{function.name}");'
    if function.kind == "compute":
        if function.library.uninitialised:
            yield f"if (card_enter()) return {function.library.uninitialised};"
        yield f"card_launched({stream});"
    for parameter in function.parameters:
        name = parameter.name
        if parameter.role == ">":
            yield f"library_written({name}, {parameter.size or 0});"
        elif parameter.role == "@":
            yield f"library_written(library_values({name}), 0);"
        elif parameter.role == "=":
            yield f"library_zero({name}, {parameter.size}, {stream});"
        elif parameter.role == "*":
            yield f"if ({name}) *{name} = {parameter.value};"


def _declaration(parameter: Parameter) -> str:
    if parameter.role == "*":
        return f"{_TYPES[parameter.size or 'int']} *{parameter.name}"
    if parameter.role or not parameter.size:
        return f"void *{parameter.name}"
    return f"{_TYPES[parameter.size]} {parameter.name}"
