"""Options of the command line from dataclasses: a field declares its option, and the dataclass takes the values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, Self, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTION = "option"


def option(*names: str, **attributes: Any) -> Any:
    """Return a field for the option ``names``; ``attributes`` are those of :func:`click.option`."""
    if attributes.get("is_flag"):
        default: Any = False
    else:
        default = () if attributes.get("multiple") else attributes.get("default")
    return field(default=default, metadata={_OPTION: (names, attributes)})


class Options:
    """Base of the dataclasses whose fields are options."""

    @classmethod
    def add(cls, command: Command) -> Command:
        """Give ``command`` the options in the order of the fields; :meth:`of` takes their values."""
        for one in reversed(fields(cls)):  # type: ignore[arg-type] # a subclass is a dataclass
            names, attributes = one.metadata[_OPTION]
            command = click.option(*names, one.name, **attributes)(command)
        return command

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Take the values out of what a command was ``given``."""
        names = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: given.pop(name) for name in names if name in given})
