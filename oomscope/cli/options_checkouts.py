"""Options of ``oomscope bisect`` that say what is done to each checkout before it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.cli.options import finite
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.targets.preparation import Preparation

Command = TypeVar("Command", bound=Callable[..., Any])

LONGEST_S = 7 * 86_400.0
"""The most that a set-up may be given, in seconds."""


@dataclass(frozen=True, kw_only=True)
class CheckoutOptions:
    """What the command line says about repairs and set-ups."""

    fixup: tuple[str, ...] = ()
    setup: str | None = None
    setup_timeout: float | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> CheckoutOptions:
        """Take the options out of ``given``."""
        return cls(**{name: given.pop(name) for name in cls.__dataclass_fields__})

    @property
    def given(self) -> dict[str, bool]:
        """Which of the options were given, by the name that people know."""
        return {"--fixup": bool(self.fixup), "--setup": self.setup is not None}

    def preparation(self) -> Preparation:
        """Return what is done to each checkout.

        Raises:
            UsageError: an option is ill-formed, means nothing without another, or names a file that is not there.
        """
        from oomscope.bisect.targets.preparation import TIMEOUT_S, Fixup, Preparation, Setup

        if self.setup is not None and not self.setup.strip():
            raise UsageError("--setup without a command", remedy="give --setup CMD")
        if self.setup is None and not self.fixup and self.setup_timeout is not None:
            raise UsageError("--setup-timeout without a set-up or a repair", remedy="give --setup CMD")
        timeout_s = TIMEOUT_S if self.setup_timeout is None else self.setup_timeout
        return Preparation(
            fixups=tuple(Fixup.parse(text) for text in self.fixup),
            setup=None if self.setup is None else Setup(command=self.setup, timeout_s=timeout_s),
            timeout_s=timeout_s,
        )


def checkout_options(command: Command) -> Command:
    """Add the options; :meth:`CheckoutOptions.of` takes their values."""
    options = (
        click.option(
            "--fixup",
            multiple=True,
            metavar="'RANGE: PATCH|CMD'",
            help="Repair the commits of RANGE (A..B, a revision or *) by a patch file or a command.",
        ),
        click.option("--setup", metavar="CMD", help="Run CMD in every checkout first, such as a build."),
        click.option(
            "--setup-timeout",
            type=click.FloatRange(min=0, min_open=True, max=LONGEST_S),
            callback=finite,
            metavar="SECONDS",
            help="End a --setup, or a command of --fixup, after this long (default: 1800).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
