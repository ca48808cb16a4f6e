"""What a validation rule is: one row with an id, a condition, a message, and the public source that it restates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from oomscope.config.schema import Config

Severity = Literal["error", "not_modelled", "warning"]
"""``error``: Megatron-Core refuses or breaks. ``not_modelled``: it runs there, but this version cannot measure it, and
says so instead of measuring something else. ``warning``: it is accepted and does not do what it seems to."""

TRANSFORMER = "Megatron-Core transformer/transformer_config.py"
MODEL_PARALLEL = "Megatron-Core model_parallel_config.py"
LAYER = "Megatron-Core transformer/transformer_layer.py"
ARGS = "Megatron-LM training/arguments.py"


@dataclass(frozen=True)
class Finding:
    """A rule that a configuration breaks."""

    rule: str
    severity: Severity
    keys: tuple[str, ...]
    message: str
    remedy: str
    source: str

    @property
    def kind(self) -> str:
        """The severity in words."""
        return self.severity.replace("_", " ")

    @property
    def is_fatal(self) -> bool:
        """Whether the configuration cannot be measured."""
        return self.severity != "warning"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table."""

    id: str
    severity: Severity
    keys: str
    """Dotted keys that the rule looks at, separated by white space; the one to blame first."""
    applies: Callable[[Config], object]
    """Returns what breaks the rule; false, empty or None where nothing does."""
    message: str
    """What is wrong: ``{c.model.hidden_size}`` stands for a value of the configuration, ``{found}`` for what
    ``applies`` returned."""
    remedy: str
    source: str
    """Where the rule comes from."""

    def finding(self, config: Config) -> Finding | None:
        """Return what ``config`` breaks of this rule, or None."""
        found = self.applies(config)
        if not found:
            return None
        message = self.message.format(c=config, found=", ".join(map(str, found)) if isinstance(found, list) else found)
        return Finding(self.id, self.severity, tuple(self.keys.split()), message, self.remedy, self.source)


error = partial(Rule, severity="error")
warning = partial(Rule, severity="warning")
unmodelled = partial(Rule, severity="not_modelled")


# Rules of two settings -------------------------------------------------------------------------------------------
# A setting is a dotted key, true if its value is not the default, or ``key=value`` with a word.


def needs(id_: str, setting: str, other: str, source: str, *, why: str = "", remedy: str = "") -> Rule:
    """Return the rule that ``setting`` needs ``other``; ``why`` is a clause about ``other``."""
    needed = _name(other) + (" above 1" if default_of(other) == "1" else "")
    return error(
        id=id_,
        keys=f"{_key(setting)} {_key(other)}",
        applies=lambda c: holds(c, setting) and not holds(c, other),
        message=f"{_name(setting)} needs {needed}{', ' + why if why else ''}",
        remedy=remedy
        or f"set {needed.replace(' ', ' to ', 1) if '=' in other else needed}, or remove {_name(setting)}",
        source=source,
    )


def conflict(
    id_: str,
    setting: str,
    others: str,
    source: str,
    *,
    why: str = "",
    remedy: str = "",
    severity: Severity = "error",
) -> Rule:
    """Return the rule that ``setting`` does not go with any of ``others``; ``why`` is a clause about them."""
    each = others.split()
    if len(each) > 1:
        named, undo = "{found}", "set what is named to its default"
    else:
        is_switch = "=" in others or default_of(others) in {"true", "false"}
        named = _name(others) if is_switch else f"{_name(others)} {{c.{others}}}"
        undo = f"set {_name(others)} to {default_of(others)}"
    says = f"does not work with {named}" if severity == "error" else f"with {named} is not modelled"
    return Rule(
        id=id_,
        severity=severity,
        keys=" ".join(map(_key, (setting, *each))),
        applies=lambda c: [_name(other) for other in each if holds(c, other)] if holds(c, setting) else [],
        message=f"{_name(setting)} {says}{', ' + why if why else ''}",
        remedy=remedy or f"{undo}, or {_key(setting).partition('.')[2]} to {default_of(setting)}",
        source=source,
    )


def holds(config: Config, setting: str) -> bool:
    """Whether ``config`` has a setting."""
    key, _, value = setting.partition("=")
    section, _, name = key.partition(".")
    now = _written(getattr(getattr(config, section), name))
    return now == value if value else now != default_of(key)


def default_of(setting: str) -> str:
    """Return the default of a key as a configuration has it."""
    section, _, name = _key(setting).partition(".")
    model: Any = Config.model_fields[section].annotation
    return _written(model.model_fields[name].default)


def _written(value: object) -> str:
    """Return a value as a configuration has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _key(setting: str) -> str:
    return setting.partition("=")[0]


def _name(setting: str) -> str:
    """Return a setting as messages have it: the key without its section, and a value that it asks for."""
    key, _, value = setting.partition("=")
    return key.partition(".")[2] + (f" {value}" if value not in {"", "true"} else "")
