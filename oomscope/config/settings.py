"""One key set to one value by somebody: what files, presets, mappings and overrides all come down to.

A later layer replaces the settings of an earlier one key by key; each setting remembers where it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oomscope.config import yaml_tree
from oomscope.config.key_lookup import (
    FOREIGN_NAMES,
    SECTIONS,
    homes,
    is_nullable,
    is_text,
    known_keys,
    meant_key,
    meant_section,
    names,
)
from oomscope.config.problems import InvalidConfigError, Problem, shown


@dataclass(frozen=True)
class Setting:
    """A key's value and its origin."""

    value: Any
    where: str
    item_wheres: tuple[str, ...] = ()
    """Places of the items of a list."""


Key = tuple[str, str]
"""Section and key."""


@dataclass
class Layer:
    """What one file, preset, mapping or list of overrides sets."""

    settings: dict[Key, Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    sections: dict[str, str] = field(default_factory=dict)
    """Place where each section that is present begins."""
    preset: Setting | None = None
    """The preset that this layer is laid upon."""


def layer_of_tree(tree: yaml_tree.Tree, source: str) -> Layer:
    """Return what a YAML document sets.

    The document is a mapping of sections; an empty section sets nothing; ``preset: NAME`` names a base.
    """
    layer = Layer()
    remedy = "give sections such as model: and parallel:, or preset: NAME"
    if isinstance(tree, yaml_tree.Scalar) and tree.value is None:
        layer.problems.append(Problem("holds no configuration", source, remedy))
        return layer
    if not isinstance(tree, yaml_tree.Mapping):
        what = "a list" if isinstance(tree, yaml_tree.Items) else shown(tree.value)
        layer.problems.append(Problem(f"holds {what} where sections are expected", _place(source, tree.line), remedy))
        return layer
    for name, (line, body) in tree.entries.items():
        where = _place(source, line)
        if name == "preset":
            layer.preset = Setting(body.value, where)
        elif name not in SECTIONS:
            layer.problems.append(Problem(f"unknown section {shown(name)}", where, meant_section(name)))
        elif isinstance(body, yaml_tree.Mapping):
            layer.sections[name] = where
            _add_section(layer, name, body, source)
        elif body.value is None:
            layer.sections[name] = where
        else:
            what = "a list" if isinstance(body, yaml_tree.Items) else shown(body.value)
            layer.problems.append(Problem(f"{name} is {what}, but must be a mapping of keys", where))
    return layer


def _place(source: str, line: int) -> str:
    return f"{source}:{line}" if line else source


def _add_section(layer: Layer, section: str, body: yaml_tree.Mapping, source: str) -> None:
    for key, (line, tree) in body.entries.items():
        where = _place(source, line)
        if key not in SECTIONS[section].model_fields:
            layer.problems.append(unknown_key(section, key, where))
        else:
            layer.settings[section, key] = _setting(section, key, tree, where, source)


def _setting(section: str, key: str, tree: yaml_tree.Tree, where: str, source: str) -> Setting:
    if isinstance(tree, yaml_tree.Scalar):
        is_number = isinstance(tree.value, int | float) and not isinstance(tree.value, bool)
        return Setting(tree.text if is_number and is_text(section, key) else tree.value, where)
    items = tree.items if isinstance(tree, yaml_tree.Items) else ()
    return Setting(tree.value, where, tuple(_place(source, item.line) for item in items))


def unknown_key(section: str, key: str, where: str) -> Problem:
    """Return the problem of a key that ``section`` does not have."""
    return Problem(f"unknown key {section}.{key}", where, meant_key(section, key))


class Override(str):
    """``section.key=value`` for which the user wrote something else: what that was, messages call it by."""

    __slots__ = ("written",)
    written: str

    def __new__(cls, text: str, written: str | None = None) -> Override:
        """Return the override ``text`` that stands for ``written``, such as ``--limit 80GiB``."""
        override = super().__new__(cls, text)
        override.written = written or f"override {text}"
        return override


def layer_of_overrides(overrides: Sequence[str]) -> Layer:
    """Return what the overrides of a command line set, ``section.key=value`` with a value as YAML has it.

    ``recompute.recompute_modules=[mlp]`` is a list, ``recompute.recompute_granularity=`` is null, and keys that hold
    free text take what stands behind the equals sign as it is. The last of several for one key counts.
    """
    layer = Layer()
    for text in overrides:
        where = _cut(text.written if isinstance(text, Override) else f"override {text}")
        name, equals, value = text.partition("=")
        section, _, key = name.strip().partition(".")
        if not equals:
            layer.problems.append(Problem("no equals sign", where, "write section.key=value"))
        elif not key and section in SECTIONS:
            problem = f"{shown(section)} is a section, not a key"
            layer.problems.append(Problem(problem, where, _with_key(section, value)))
        elif not key:
            layer.problems.append(Problem(f"{shown(name)} names no section", where, _with_section(section)))
        elif section not in SECTIONS:
            layer.problems.append(Problem(f"unknown section {shown(section)}", where, meant_section(section)))
        elif key not in SECTIONS[section].model_fields:
            layer.problems.append(unknown_key(section, key, where))
        else:
            _add(layer, section, key, value, where)
    return layer


def _cut(text: str) -> str:
    return text if len(text) <= 90 else text[:89] + "…"


def _with_section(key: str) -> str:
    at_home = [f"{section}.{key}" for section in homes(key)] or [FOREIGN_NAMES.get(key, "section.key")]
    return f"write {at_home[0]}=value"


def _with_key(section: str, value: str) -> str:
    """Return how a key of ``section`` is set, that which accepts ``value`` where it is a name, and which there are."""
    fitting = (key for key in SECTIONS[section].model_fields if value.strip() in names(section, key))
    key = next(fitting, None)
    set_ = f"{section}.{key}={value.strip()}" if key else f"{section}.key=value"
    return f"write {set_}; {known_keys(section)}"


def _add(layer: Layer, section: str, key: str, text: str, where: str) -> None:
    plain = text.strip()
    if is_text(section, key) and not plain.startswith(("'", '"')):
        null = plain in {"", "null", "~"} and is_nullable(section, key)
        layer.settings[section, key] = Setting(None if null else plain, where)
        return
    try:
        tree, problems = yaml_tree.read_yaml(text, where)
    except InvalidConfigError as error:
        layer.problems.extend(Problem(problem.message, where, "quote the value") for problem in error.problems)
        return
    layer.problems.extend(Problem(problem.message, where, problem.remedy) for problem in problems)
    layer.settings[section, key] = Setting(tree.value, where)
