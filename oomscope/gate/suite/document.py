"""From YAML to a checked pydantic model: each error becomes one line with the file and the line at fault."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from oomscope.config.load import read_file
from oomscope.config.problems import InvalidConfigError, Problem, shown
from oomscope.config.yaml_tree import Bounds, Items, Mapping, Tree, read_yaml
from oomscope.units import MiB

Model = TypeVar("Model", bound=BaseModel)
BOUNDS = Bounds(bytes=2 * MiB, nodes=60_000)
"""A thousand entries of a baseline, each with bands, which are read in a few seconds."""


def read_document(path: Path, model: type[Model]) -> tuple[Model, Tree]:
    """Return the document in the YAML file ``path`` as ``model``, and the tree that knows its lines.

    Raises:
        InvalidConfigError: it cannot be read, is not YAML, or is not such a document; all problems are listed.
    """
    return parse_document(read_file(path, BOUNDS), str(path), model)


def parse_document(data: bytes, source: str, model: type[Model]) -> tuple[Model, Tree]:
    """Return the same of ``data``, the content of the file ``source``."""
    tree, problems = read_yaml(data, source, BOUNDS)
    if not isinstance(tree, Mapping):
        keys = ", ".join(f"{key}:" for key in model.model_fields)
        problems.append(Problem("holds no mapping of keys", f"{source}:{tree.line}", f"give {keys}"))
    if problems:
        raise InvalidConfigError(problems)
    try:
        return model.model_validate(tree.value), tree
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise InvalidConfigError(list(dict.fromkeys(_problem(detail, tree, source, model) for detail in details)))


def line_of(tree: Tree, path: Sequence[str | int]) -> int:
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
    path = [step for step in detail["loc"] if step != "[key]"]
    where = f"{source}:{line_of(tree, path)}"
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step[:100]}" for step in path).removeprefix(".")
    if detail["type"] == "extra_forbidden":
        close = get_close_matches(str(path[-1]), _keys(model), n=1)
        return Problem(f"unknown key {name}", where, f"did you mean {close[0]}?" if close else "leave it out")
    if detail["type"] == "missing":
        return Problem(f"{name} is missing", where, "give it")
    if "error" in detail.get("ctx", {}):
        said, remedy = str(detail["ctx"]["error"]), None
    else:
        message = str(detail["msg"])
        said, remedy = message[:1].lower() + message[1:], f"it is {shown(detail['input'])}"
    return Problem(f"{name}: {said}" if name else said, where, remedy)


def _keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of ``model`` and of the models inside it."""
    schema = model.model_json_schema()
    return [key for part in (schema, *schema.get("$defs", {}).values()) for key in part.get("properties", {})]
