"""Overrides of the command line: ``section.key=value``, the value written as YAML would have it.

``recompute.recompute_modules=[mlp]`` is a list, ``recompute.recompute_granularity=`` is null, and keys that hold free
text take what stands behind the equals sign as it is, so that ``allocator.conf=max_split_size_mb:128`` needs no quotes.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.config.describe import is_nullable, is_text, names
from oomscope.config.keys import FOREIGN_NAMES, SECTIONS, homes, known_keys, meant_section
from oomscope.config.problems import InvalidConfigError, Problem, shown
from oomscope.config.settings import Layer, Setting, unknown_key
from oomscope.config.yaml_tree import read_yaml


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
    """Return what the overrides set; the last of several for one key counts."""
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
        tree, problems = read_yaml(text, where)
    except InvalidConfigError as error:
        layer.problems.extend(Problem(problem.message, where, "quote the value") for problem in error.problems)
        return
    layer.problems.extend(Problem(problem.message, where, problem.remedy) for problem in problems)
    layer.settings[section, key] = Setting(tree.value, where)
