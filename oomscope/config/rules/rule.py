"""What a validation rule is: one row with an id, a condition, a message, and the public source that it restates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

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
    keys: tuple[str, ...]
    """Dotted keys that the rule looks at; the one to blame first."""
    applies: Callable[[Config], object]
    """What breaks the rule; false, empty or None where nothing does."""
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
        text = ", ".join(map(str, found)) if isinstance(found, list) else found
        return Finding(
            self.id, self.severity, self.keys, self.message.format(c=config, found=text), self.remedy, self.source
        )


error = partial(Rule, severity="error")
warning = partial(Rule, severity="warning")
unmodelled = partial(Rule, severity="not_modelled")
