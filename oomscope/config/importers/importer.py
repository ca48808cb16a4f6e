"""From arguments in some dialect to a configuration of oomscope, with an account of every argument.

Each argument sets keys, is computed with, costs no memory, is not modelled, or is not understood; the last two are
what a user must look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oomscope.config.importers.bridge import BRIDGE
from oomscope.config.importers.command_lines import ENVIRONMENT, Argument, Arguments
from oomscope.config.importers.draft import Draft, share_world
from oomscope.config.importers.megatron_arguments import MEGATRON
from oomscope.config.importers.nemo import NEMO
from oomscope.config.importers.rows import (
    Choice,
    Dialect,
    ForFinish,
    NotModelledError,
    Row,
    Switch,
    To,
    Unmodelled,
    alone,
    is_on,
    named,
)
from oomscope.config.key_lookup import SECTIONS, fields, is_nullable
from oomscope.config.problems import InvalidConfigError, Problem, shown
from oomscope.config.settings import Layer, Setting

_REFERENCE = re.compile(r"\$\{(\.?[\w.]+)\}")
"""OmegaConf's interpolation that names another key."""
_MAX_REFERENCES = 8

_SHARED_SECTIONS = {"model", "data", "optimizer"}
"""Names of sections that other dialects have too."""

_MEANT_BY_NULL = {
    f"{section}.{key}" for section, key, field in fields() if field.default is not None and is_nullable(section, key)
}
"""Keys that null switches off; for others it is the default."""

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (MEGATRON, BRIDGE, NEMO)}


@dataclass(frozen=True)
class Remark:
    """What became of an argument that set nothing."""

    name: str
    value: Any
    """Left out for environment variables that have no meaning here: it may be a secret."""
    where: str
    reason: str = ""


@dataclass(frozen=True)
class Imported:
    """A configuration, and an account of what it was made from."""

    source: str
    dialect: str
    settings: Mapping[str, Setting]
    """Dotted key to value and origin, in the order of the schema."""
    not_understood: tuple[Remark, ...]
    not_modelled: tuple[Remark, ...]
    """Arguments that change memory, and have no key here."""
    without_memory: tuple[Remark, ...]
    assumed: tuple[str, ...]

    def nested(self) -> dict[str, dict[str, Any]]:
        """Return the settings by section, as a configuration file has them."""
        document: dict[str, dict[str, Any]] = {}
        for (section, key), setting in self.layer().settings.items():
            document.setdefault(section, {})[key] = setting.value
        return document

    def layer(self) -> Layer:
        """Return the settings as a layer of a configuration."""
        layer = Layer()
        for name, setting in self.settings.items():
            section, key = name.split(".")
            layer.sections.setdefault(section, self.source)
            layer.settings[section, key] = setting
        return layer


def import_arguments(arguments: Arguments, dialect: str | None = None, *, on_preset: bool = False) -> Imported:
    """Return the configuration that ``arguments`` mean, or what they change of a preset.

    Raises:
        InvalidConfigError: a value cannot be what its name wants.
    """
    return _Import(arguments, DIALECTS[dialect or detected(arguments)], on_preset).run()


def detected(arguments: Arguments) -> str:
    """Return the dialect whose tables know most of the names; the way of writing decides between equals."""
    names = [item.name for item in arguments.items if not item.name.startswith(ENVIRONMENT)]
    order = ["megatron", "nemo", "bridge"] if "megatron" in arguments.hints else ["bridge", "nemo", "megatron"]
    if "bridge" in arguments.hints:
        return "bridge"

    def known(dialect: str) -> int:
        return sum(DIALECTS[dialect].row_of(_name_in(DIALECTS[dialect], name)) is not None for name in names)

    return max(order, key=known)


def is_own(arguments: Arguments) -> bool:
    """Whether ``arguments`` are a configuration of oomscope's own, which a dialect would read as something else."""
    names = {item.name for item in arguments.items if not item.name.startswith(ENVIRONMENT)}
    sections = {name.partition(".")[0] for name in names}
    if arguments.hints or not sections <= {*SECTIONS, "preset"}:
        return False
    known = {"preset", *(f"{section}.{key}" for section, key, _ in fields())}
    return names <= known or not sections <= _SHARED_SECTIONS


class _Import:
    """One pass over the arguments."""

    def __init__(self, arguments: Arguments, dialect: Dialect, on_preset: bool) -> None:
        self.arguments = arguments
        self.dialect = dialect
        named_here = (
            Argument(_name_in(dialect, item.name), _resolved(item, arguments), item.where) for item in arguments.items
        )
        self.items = list({item.name: item for item in named_here}.values())
        self.draft = Draft(
            arguments.source,
            given={item.name: item.value for item in self.items},
            wheres={item.name: item.where for item in self.items},
            world_size=arguments.world_size,
            on_preset=on_preset,
        )
        self.not_understood: list[Remark] = []
        self.not_modelled: list[Remark] = []
        self.not_modelled_beside: list[tuple[str | None, Remark]] = []
        """Remarks on what is not modelled if the key before it is None or set in the end; else it costs no memory."""
        self.without_memory: list[Remark] = []
        self.problems: list[Problem] = []

    def run(self) -> Imported:
        for item in self.items:
            self._take(item)
        if self.problems:
            raise InvalidConfigError(self.problems)
        self.dialect.finish(self.draft)
        for beside, remark in self.not_modelled_beside:
            counts = beside is None or self.draft.value(beside)
            (self.not_modelled if counts else self.without_memory).append(remark)
        for name, value, reason in self.draft.refused:
            where = self.draft.wheres.get(name, self.arguments.source)
            self.not_modelled.append(Remark(name, value, where, reason))
        share_world(self.draft)
        return Imported(
            source=self.arguments.source,
            dialect=self.dialect.name,
            settings=dict(_in_order(self.draft.settings)),
            not_understood=tuple(self.not_understood),
            not_modelled=tuple(self.not_modelled),
            without_memory=tuple(self.without_memory),
            assumed=tuple(self.draft.assumed),
        )

    def _take(self, item: Argument) -> None:
        row = self.dialect.row_of(item.name)
        if row is None:
            self._leave(item)
            return
        try:
            self._apply(row, item)
        except NotModelledError as error:
            self.not_modelled.append(Remark(item.name, item.value, item.where, str(error)))
        except (ValueError, TypeError) as error:
            self.problems.append(Problem(f"{item.name} is {shown(item.value)}, but {error}", item.where))

    def _leave(self, item: Argument) -> None:
        """Keep account of an argument that no row knows."""
        value = "…" if item.name.startswith(ENVIRONMENT) else item.value
        if item.value in (None, False, "", [], {}) or self.dialect.costs_no_memory(item.name):
            self.without_memory.append(Remark(item.name, value, item.where))
            return
        meant = self.dialect.nearest(item.name)
        reason = f"did you mean {meant}?" if meant else ""
        self.not_understood.append(Remark(item.name, value, item.where, reason))

    def _apply(self, row: Row, item: Argument) -> None:
        match row:
            case To(key, convert):
                if item.value is not None:
                    self.draft.settings[key] = Setting(convert(item.value), item.where)
                elif key in _MEANT_BY_NULL:
                    self.draft.settings[key] = Setting(None, item.where)
            case Switch(on, off):
                for key, value in (on if is_on(item.value) else off).items():
                    self.draft.settings[key] = Setting(value, item.where)
            case Choice():
                self._choose(row, item)
            case Unmodelled(reason, harmless, beside, convert):
                if item.value is not None and convert(item.value) not in (None, False, *harmless):
                    self.not_modelled_beside.append((beside, Remark(item.name, item.value, item.where, reason)))
            case ForFinish(convert):
                if item.value is not None:
                    self.draft.given[item.name] = convert(item.value)

    def _choose(self, row: Choice, item: Argument) -> None:
        if item.value is None:
            return
        word = named(alone(item.value)).replace("-", "_")
        if word in row.alike:
            word, reason = row.alike[word]
            self.draft.assume(f"{item.name} {shown(item.value)} is taken for {word}: {reason}")
        if word not in row.choices:
            reason = f"modelled are {', '.join(row.choices)}"
            self.not_modelled.append(Remark(item.name, item.value, item.where, reason))
            return
        for key, value in row.choices[word].items():
            self.draft.settings[key] = Setting(value, item.where)


def _name_in(dialect: Dialect, name: str) -> str:
    """Return the name as the dialect's table has it: Megatron-LM's have no sections, the others' may lack theirs."""
    if name in dialect.table or name.startswith(ENVIRONMENT):
        return name
    if dialect is MEGATRON:
        return name.rpartition(".")[2]
    return f"model.{name}" if f"model.{name}" in dialect.table else name


def _resolved(item: Argument, arguments: Arguments) -> Any:
    """Return the value, with a reference such as ``${model.x}`` or ``${.x}`` followed; ``???`` means none."""
    value = item.value
    for _ in range(_MAX_REFERENCES):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return None if value == "???" else value
        section = item.name.rpartition(".")[0]
        value = arguments.value_of(f"{section}{match[1]}" if match[1].startswith(".") else match[1])
    return None


def _in_order(settings: Mapping[str, Setting]) -> Iterator[tuple[str, Setting]]:
    for section, model in SECTIONS.items():
        for key in model.model_fields:
            if f"{section}.{key}" in settings:
                yield f"{section}.{key}", settings[f"{section}.{key}"]
