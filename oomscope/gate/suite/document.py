"""From YAML to a checked model: every complaint of the schema becomes one line with the file and the line to mend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from oomscope.config.load import read_file
from oomscope.config.problems import InvalidConfigError, Problem, shown
from oomscope.config.yaml_tree import Bounds, Items, Mapping, Tree, read_yaml
from oomscope.units import MiB

Model = TypeVar("Model", bound=BaseModel)
BOUNDS = Bounds(bytes=2 * MiB, nodes=60_000)
"""A thousand entries of a baseline, each with bands; what is read in a few seconds."""
_LONGEST_KEY = 100
"""That a message shows whole."""
Path_ = Sequence[str | int]
"""Keys and positions that lead to a value."""


def read_document(path: Path, model: type[Model]) -> tuple[Model, Tree]:
    """Return the document in the YAML file ``path`` as ``model``, and the tree that knows its lines.

    Raises:
        InvalidConfigError: it cannot be read, is not YAML, or is not such a document; all problems are listed.
    """
    return parse_document(read_file(path, BOUNDS), str(path), model)


def parse_document(data: bytes, source: str, model: type[Model]) -> tuple[Model, Tree]:
    """Return the same of what the file ``source`` holds, or is to hold."""
    tree, problems = read_yaml(data, source, BOUNDS)
    if not isinstance(tree, Mapping):
        problems.append(Problem("holds no mapping of keys", f"{source}:{tree.line}", f"give {_keys(model)}"))
    if problems:
        raise InvalidConfigError(problems)
    try:
        return model.model_validate(tree.value), tree
    except ValidationError as error:
        details = error.errors(include_url=False)
    meant = {(detail["loc"][:-1], _meant(detail, model)) for detail in details}
    told = [detail for detail in details if detail["type"] != "missing" or _place(detail) not in meant]
    raise InvalidConfigError(_once([_problem(detail, tree, source, model) for detail in told])) from None


def line_of(tree: Tree, path: Path_) -> int:
    """Return the line at which what ``path`` leads to begins, or the innermost part of the way that is there."""
    line = tree.line
    for step in path:
        if isinstance(tree, Mapping) and step in tree.entries:
            line, tree = tree.entries[str(step)]
        elif isinstance(tree, Items) and isinstance(step, int) and step < len(tree.items):
            tree = tree.items[step]
            line = tree.line
        else:
            break
    return line


def _problem(detail: Any, tree: Tree, source: str, model: type[BaseModel]) -> Problem:
    path = tuple(step for step in detail["loc"] if _leads_on(tree, detail["loc"], step))
    kind, context = detail["type"], detail.get("ctx", {})
    place = (*path, context[AT]) if AT in context else path
    where, name = f"{source}:{line_of(tree, place)}", _name(path)
    if kind == "extra_forbidden":
        close = _meant(detail, model)
        return Problem(f"unknown key {name}", where, f"did you mean {close}?" if close else "leave it out")
    if kind == "missing":
        return Problem(f"{_name(detail['loc'])} is missing", where, "give it")
    if said_plainly := validation_message(kind, name, detail["input"], context):
        return Problem(said_plainly[0], where, said_plainly[1])
    said = str(context["error"]) if "error" in context else _plain(detail["msg"])
    return Problem(
        f"{name}: {said}" if name else said, where, None if ";" in said else f"it is {shown(detail['input'])}"
    )


def _meant(detail: Any, model: type[BaseModel]) -> str | None:
    """Return the key that an unknown one was probably meant for; None of other errors, and where it is like none."""
    if detail["type"] != "extra_forbidden":
        return None
    return next(iter(get_close_matches(str(detail["loc"][-1]), _all_keys(model), n=1)), None)


def _place(detail: Any) -> tuple[Path_, str]:
    """Return where a key is missing, and the key."""
    return detail["loc"][:-1], str(detail["loc"][-1])


def _leads_on(tree: Tree, loc: Path_, step: str | int) -> bool:
    """Whether ``step`` is a key or position, and not pydantic's name for one of several types of a value."""
    return isinstance(step, int) or step.isidentifier() or step in _steps(tree, loc)


def _steps(tree: Tree, loc: Path_) -> set[str | int]:
    """Return those steps of ``loc`` that the tree has."""
    found: set[str | int] = set()
    for step in loc:
        if isinstance(tree, Mapping) and step in tree.entries:
            found.add(step)
            tree = tree.entries[str(step)][1]
        elif isinstance(tree, Items) and isinstance(step, int) and step < len(tree.items):
            found.add(step)
            tree = tree.items[step]
    return found


def _name(path: Path_) -> str:
    """Return ``cases[0].metrics``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_short(step)}" for step in path)
    return text.removeprefix(".")


def _short(key: str) -> str:
    return key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"


def _plain(message: str) -> str:
    return message[:1].lower() + message[1:]


def _keys(model: type[BaseModel]) -> str:
    return ", ".join(f"{key}:" for key in model.model_fields)


def _all_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of ``model`` and of the models inside it."""
    schema = model.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return [key for part in parts for key in part.get("properties", {})]


def _once(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


AT = "at"
"""In pydantic's context of an error: the key inside of what was checked that is to blame."""

_LIST = "a list", "write [a, b], or a line with - for each"
_MAPPING = "a mapping", "write lines of key: value under it"
_WANTED: dict[str, Callable[[dict[str, Any]], tuple[str, str | None]]] = {
    "tuple_type": lambda _: _LIST,
    "dict_type": lambda _: _MAPPING,
    "model_type": lambda _: _MAPPING,
    "string_type": lambda _: ("text", None),
    "int_type": lambda _: ("a whole number", None),
    "int_from_float": lambda _: ("a whole number", None),
    "string_unicode": lambda _: ("text without halves of characters", None),
    "string_too_short": lambda _: ("text that is not empty", None),
    "string_too_long": lambda context: (f"text of at most {context['max_length']} characters", None),
    "string_pattern_mismatch": lambda _: ("one line of text without control characters", None),
    "literal_error": lambda context: (str(context["expected"]).replace("'", ""), None),
    "greater_than_equal": lambda context: (f"at least {context['ge']}", None),
    "less_than_equal": lambda context: (f"at most {context['le']}", None),
}
"""Kind of error to what is wanted and how to write it, by pydantic's context."""


def validation_message(kind: str, name: str, value: object, context: dict[str, Any]) -> tuple[str, str | None] | None:
    """Return what is wrong with the ``value`` of ``name`` and the remedy; None where pydantic has to say it.

    Args:
        kind: pydantic's type of the error.
        name: the key, as ``cases[0].name``; empty for the whole document.
        value: what was given.
        context: what pydantic knows of the error.
    """
    if kind == "literal_error" and name == "schema_version":
        newer = "read it with the oomscope that wrote it, or write it anew"
        return f"schema_version is {shown(value)}, and this oomscope reads {context['expected']}", newer
    if kind not in _WANTED:
        return None
    wanted, remedy = _WANTED[kind](context)
    if kind == "string_type" and isinstance(value, int | float):
        remedy = f'put it in quotes: "{shown(value)}"'
    said = f"{name} has no value" if value is None else f"{name} is {shown(value)}"
    return f"{said}, but must be {wanted}", remedy


def misplaced(key: str, said: str) -> PydanticCustomError:
    """Return an error, for a pydantic check of several keys together, that blames the line of ``key``."""
    return PydanticCustomError("misplaced", "{error}", {"error": said, AT: key})
