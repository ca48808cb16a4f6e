"""One key set to one value by somebody: what files, presets, mappings and overrides all come down to.

A later layer replaces the settings of an earlier one key by key; each setting remembers where it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oomscope.config import yaml_tree
from oomscope.config.describe import is_text
from oomscope.config.keys import SECTIONS, meant_key, meant_section
from oomscope.config.problems import Problem, shown


@dataclass(frozen=True)
class Setting:
    """A key's value and its origin."""

    value: Any
    where: str
    item_wheres: tuple[str, ...] = ()
    """Where each item of a list was written."""


Key = tuple[str, str]
"""Section and key."""


@dataclass
class Layer:
    """What one file, preset, mapping or list of overrides sets."""

    settings: dict[Key, Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    sections: dict[str, str] = field(default_factory=dict)
    """Where each section that is present begins."""
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
        layer.problems.append(Problem(f"holds {what} where sections are expected", f"{source}:{tree.line}", remedy))
        return layer
    for name, (line, body) in tree.entries.items():
        where = f"{source}:{line}"
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


def _add_section(layer: Layer, section: str, body: yaml_tree.Mapping, source: str) -> None:
    for key, (line, tree) in body.entries.items():
        where = f"{source}:{line}"
        if key not in SECTIONS[section].model_fields:
            layer.problems.append(unknown_key(section, key, where))
        else:
            layer.settings[section, key] = _setting(section, key, tree, where, source)


def _setting(section: str, key: str, tree: yaml_tree.Tree, where: str, source: str) -> Setting:
    if isinstance(tree, yaml_tree.Scalar):
        is_number = isinstance(tree.value, int | float) and not isinstance(tree.value, bool)
        return Setting(tree.text if is_number and is_text(section, key) else tree.value, where)
    items = tree.items if isinstance(tree, yaml_tree.Items) else ()
    return Setting(tree.value, where, tuple(f"{source}:{item.line}" for item in items))


def layer_of_mapping(mapping: Mapping[str, Any], source: str) -> Layer:
    """Return what a mapping of sections sets (the shape of ``Config.model_dump``, not necessarily whole)."""
    layer = Layer()
    for name, body in mapping.items():
        if name == "preset":
            layer.preset = Setting(body, source)
        elif name not in SECTIONS:
            layer.problems.append(Problem(f"unknown section {shown(name)}", source, meant_section(str(name))))
        elif not isinstance(body, Mapping):
            layer.problems.append(Problem(f"{name} is {shown(body)}, but must be a mapping of keys", source))
        else:
            layer.sections[name] = source
            for key, value in body.items():
                if key in SECTIONS[name].model_fields:
                    layer.settings[name, key] = Setting(value, source)
                else:
                    layer.problems.append(unknown_key(name, str(key), source))
    return layer


def unknown_key(section: str, key: str, where: str) -> Problem:
    """Return the problem of a key that ``section`` does not have."""
    return Problem(f"unknown key {section}.{key}", where, meant_key(section, key))
