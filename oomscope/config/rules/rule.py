"""What a validation rule is: one row with an id, a condition, a message, and the public source that it restates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from oomscope.config.schema import Config

Severity = Literal["error", "not_modelled", "warning"]
"""``error``: Megatron-Core refuses or breaks. ``not_modelled``: it runs there, but this version cannot measure it, and
says so instead of measuring something else. ``warning``: it is accepted and does not do what it seems to."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table."""

    id: str
    severity: Severity = "error"
    keys: tuple[str, ...]
    """Dotted keys that the rule looks at; the one to blame first."""
    applies: Callable[[Config], bool]
    """Whether the configuration breaks the rule."""
    summary: str
    """The rule as a sentence, for the documentation."""
    message: str | Callable[[Config], str]
    """What is wrong with this configuration."""
    remedy: str
    source: str
    """Where the rule comes from."""

    def said_of(self, config: Config) -> str:
        """Return the message for ``config``."""
        return self.message if isinstance(self.message, str) else self.message(config)


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
