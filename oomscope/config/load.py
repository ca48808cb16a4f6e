"""From what a user gives to a checked :class:`~oomscope.config.schema.Config`: files, presets, mappings and overrides.

Every source becomes a layer of settings that know where they were written; the layers are merged key by key, checked
against the schema and then against the rules, and each complaint names the line, preset or override to blame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from oomscope.config.key_lookup import accepts, is_nullable, most
from oomscope.config.presets import preset_names, read_preset
from oomscope.config.problems import InvalidConfigError, Problem, shown
from oomscope.config.rules.check import check, problem_of
from oomscope.config.rules.rule import Finding
from oomscope.config.schema import Config
from oomscope.config.settings import Key, Layer, Setting, layer_of_overrides, layer_of_tree
from oomscope.config.yaml_tree import CONFIGURATION, Bounds, read_yaml, tree_of
from oomscope.errors import ConfigError

_OCTAL = re.compile(r"[-+]?0o?[0-9_]+")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and where it comes from."""

    config: Config
    source: str
    """The file, preset or other source, as messages name it."""
    origins: Mapping[str, str]
    """Dotted key to where it was set (``cfg.yaml:12``, ``preset gpt-tiny:8``, ``override a.b=1``); else the default."""
    findings: tuple[Finding, ...]
    """The rules that it breaks: only warnings, unless it was loaded with ``enforce=False``."""
    remarks: tuple[str, ...] = ()
    """Remarks on where the configuration comes from, a line each."""

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The findings with their places."""
        return tuple(problem_of(finding, self.where(finding.keys)) for finding in self.findings)

    def where(self, keys: Sequence[str]) -> str:
        """Return the place to blame for ``keys``: that of the first which was set, else the source as a whole."""
        return blamed(keys, self.origins, self.source)


def load_config(path: Path, overrides: Sequence[str] = (), *, enforce: bool = True) -> LoadedConfig:
    """Return the configuration in the YAML file ``path``, with ``overrides`` such as ``data.seq_length=8192`` on top.

    Without ``enforce`` a broken rule is among the findings.

    Raises:
        InvalidConfigError: the file or an override is wrong, or a rule is broken; all problems are listed.
    """
    return load_text(read_file(path), source=str(path), overrides=overrides, enforce=enforce)


def load_text(text: str | bytes, *, source: str, overrides: Sequence[str] = (), enforce: bool = True) -> LoadedConfig:
    """Return the configuration in a YAML text that messages call ``source``; see :func:`load_config`."""
    tree, problems = read_yaml(text, source)
    layer = layer_of_tree(tree, source)
    layer.problems[:0] = problems
    return load_layer(layer, source, overrides, enforce)


def load_preset(name: str, overrides: Sequence[str] = (), *, enforce: bool = True) -> LoadedConfig:
    """Return the preset ``name`` with ``overrides`` on top; see :func:`load_config`."""
    source = f"preset {name}"
    return load_layer(_preset_layer(name, None), source, overrides, enforce)


def config_from_mapping(
    mapping: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "configuration", enforce: bool = True
) -> LoadedConfig:
    """Return the configuration in a mapping of sections, such as a part of ``Config.model_dump``; see above."""
    return load_layer(layer_of_tree(tree_of(mapping), source), source, overrides, enforce)


def load_layer(layer: Layer, source: str, overrides: Sequence[str], enforce: bool) -> LoadedConfig:
    """Return the configuration of ``layer``, over its preset and under the overrides; see :func:`load_config`."""
    layers = [layer, layer_of_overrides(overrides)]
    problems = [problem for part in layers for problem in part.problems]
    if layer.preset is not None:
        try:
            layers.insert(0, _preset_layer(layer.preset.value, layer.preset.where))
        except ConfigError as error:
            problems.insert(0, Problem(error.message, layer.preset.where, error.remedy))
    settings = {key: setting for part in layers for key, setting in part.settings.items()}
    sections = {name: where for part in layers for name, where in part.sections.items()}
    origins = {f"{section}.{key}": setting.where for (section, key), setting in settings.items()}
    config, wrong, missing = _validated(settings, sections, source)
    findings = tuple(check(config)) if config is not None else ()
    problems += wrong
    if enforce:
        fatal = (finding for finding in findings if finding.is_fatal)
        problems += [problem_of(finding, blamed(finding.keys, origins, source)) for finding in fatal]
    problems += [] if problems else missing
    if problems or config is None:
        raise InvalidConfigError(problems)
    return LoadedConfig(config, source, origins, findings)


def _validated(
    settings: Mapping[Key, Setting], sections: Mapping[str, str], source: str
) -> tuple[Config | None, list[Problem], list[Problem]]:
    """Return the configuration, or None with the problems of wrong and those of missing keys."""
    document: dict[str, dict[str, Any]] = {section: {} for section in sections}
    for (section, key), setting in settings.items():
        document.setdefault(section, {})[key] = setting.value
    try:
        return Config.model_validate(document), [], []
    except ValidationError as error:
        details = error.errors(include_url=False)
    wrong: dict[Key, Problem] = {}
    missing: list[Problem] = []
    for detail in details:
        loc = detail["loc"]
        if detail["type"] == "missing":
            missing.append(_missing([str(part) for part in loc], sections, source))
            continue
        name = (str(loc[0]), str(loc[1]))
        item = loc[2] if len(loc) > 2 and isinstance(loc[2], int) else None
        wrong.setdefault(name, _wrong(name, settings[name], item, str(detail.get("ctx", {}).get("error", ""))))
    return None, [wrong[key] for key in settings if key in wrong], missing


def _missing(path: list[str], sections: Mapping[str, str], source: str) -> Problem:
    if len(path) == 1:
        remedy = f"give {path[0]}:, or start from a preset with preset: NAME"
    else:
        remedy = f"give {accepts(*path)}"
    return Problem(f"{'.'.join(path)} is missing", sections.get(path[0], source), remedy)


def _wrong(key: Key, setting: Setting, item: int | None, said_by_schema: str) -> Problem:
    """Return the problem of a key; ``said_by_schema`` is what a validator of ours found in its value."""
    name, value, where = ".".join(key), setting.value, setting.where
    if item is not None and isinstance(value, list | tuple):
        name, value = f"{name}[{item}]", value[item]
        where = setting.item_wheres[item] if item < len(setting.item_wheres) else where
    said = f"{name} has no value" if value is None else f"{name} is {shown(value)}"
    return Problem(f"{said}, but must be {accepts(*key)}", where, _remedy(key, value) or said_by_schema or None)


def _remedy(key: Key, value: object) -> str | None:
    """Return what to write instead, where that can be guessed."""
    if isinstance(value, int) and (top := most(*key)) is not None and value > top:
        return f"give at most {top}"
    if not isinstance(value, str):
        return None
    if value.lower() == "none" and is_nullable(*key):
        return "write null for none"
    if _OCTAL.fullmatch(value):
        return "write the number without the leading zero, which makes it octal for some readers of YAML"
    if value.replace(".", "", 1).replace("-", "", 1).isdigit():
        return "write the number without quotes"
    return None


def read_file(path: Path, bounds: Bounds = CONFIGURATION) -> bytes:
    """Return what ``path`` holds, up to a little more than ``bounds`` allow.

    Raises:
        InvalidConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(bounds.bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, IsADirectoryError):
            reason, remedy = "is a directory", "give a YAML file"
        elif str(path) in preset_names():
            remedy = f"for the preset write --preset {path}"
        else:
            remedy = "give a readable YAML file"
        raise InvalidConfigError([Problem(reason, str(path), remedy)]) from None


def _preset_layer(name: object, where: str | None) -> Layer:
    source = f"preset {name}"
    tree, _ = read_yaml(read_preset(name, where=where), source)
    return layer_of_tree(tree, source)


def blamed(keys: Sequence[str], origins: Mapping[str, str], source: str) -> str:
    """Return where the first of ``keys`` that was set was set, else ``source``."""
    return next((origins[key] for key in keys if key in origins), source)
