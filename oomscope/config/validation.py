"""From settings to a :class:`~oomscope.config.schema.Config`: the schema's complaints, one line each in plain words.

Pydantic finds what is wrong; what a key accepts is said from its JSON Schema, and the place is where it was set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from oomscope.config.describe import accepts, is_nullable, most
from oomscope.config.problems import Problem, shown
from oomscope.config.rules.recompute import R1, R2
from oomscope.config.rules.recompute_modules import R7
from oomscope.config.schema import Config
from oomscope.config.settings import Key, Setting

_CHOICES_WITH_RULES = {tuple(rule.keys[0].split(".")) for rule in (R1, R2, R7)}
"""Keys whose choices are checked by a rule, in upstream's order of rules instead of before all of them."""
_OCTAL = re.compile(r"[-+]?0o?[0-9_]+")


@dataclass(frozen=True)
class Validated:
    """What the schema says."""

    config: Config | None
    """None where it cannot be made. It holds wrong choices of the keys that a rule checks as they are."""
    wrong: dict[Key, Problem] = field(default_factory=dict)
    """Keys with a wrong value."""
    missing: list[Problem] = field(default_factory=list)
    """Keys and sections that must be given and are not."""


def validated(settings: Mapping[Key, Setting], sections: Mapping[str, str], source: str) -> Validated:
    """Check ``settings`` against the schema.

    Args:
        settings: all that is set.
        sections: where each section that is present begins.
        source: the place to blame for a missing section.
    """
    try:
        return Validated(Config.model_validate(_nested(settings, sections)))
    except ValidationError as error:
        details = error.errors(include_url=False)
    wrong: dict[Key, Problem] = {}
    missing: list[Problem] = []
    for detail in details:
        loc = detail["loc"]
        if detail["type"] == "missing":
            missing.append(_missing([str(part) for part in loc], sections, source))
            continue
        key = (str(loc[0]), str(loc[1]))
        item = loc[2] if len(loc) > 2 and isinstance(loc[2], int) else None
        wrong.setdefault(key, _wrong(key, settings[key], item, str(detail.get("ctx", {}).get("error", ""))))
    in_order = {key: wrong[key] for key in settings if key in wrong}
    only_choices = all(detail["type"] == "literal_error" for detail in details) and wrong.keys() <= _CHOICES_WITH_RULES
    return Validated(_with_wrong_choices(settings, sections, wrong) if only_choices else None, in_order, missing)


def _nested(settings: Mapping[Key, Setting], sections: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = {section: {} for section in sections}
    for (section, key), setting in settings.items():
        document.setdefault(section, {})[key] = setting.value
    return document


def _with_wrong_choices(
    settings: Mapping[Key, Setting], sections: Mapping[str, str], wrong: Mapping[Key, Problem]
) -> Config:
    """Return the configuration with the values of ``wrong`` put in unchecked."""
    config = Config.model_validate(_nested({k: v for k, v in settings.items() if k not in wrong}, sections))
    values = {key: settings[section, key].value for section, key in wrong}
    return config.model_copy(update={"recompute": config.recompute.model_copy(update=values)})


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
