"""Options of ``oomscope probe`` and ``oomscope bisect`` that say what of a checkout is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.cli.options import FILE
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.own_code import OwnCode
    from oomscope.bisect.predicate import Bad
    from oomscope.config.schema import Config
    from oomscope.probe.job import CheckoutTarget

Command = TypeVar("Command", bound=Callable[..., Any])

NAMES = "--harness FILE, --entry pkg.module:function or --command CMD"


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """What the command line says about the target in a checkout."""

    harness: Path | None = None
    entry: str | None = None
    command: str | None = None
    metric_regex: str | None = None
    snapshot_glob: str | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> TargetOptions:
        """Take the options out of ``given``.

        Raises:
            UsageError: they contradict each other.
        """
        options = cls(**{name: given.pop(name) for name in cls.__dataclass_fields__})
        if len(options._targets) > 1:
            raise UsageError(f"both {' and '.join(options._targets)}", remedy="name one: each brings its own model")
        if options.command is None and options._readings:
            raise UsageError(f"{options._readings[0]} without --command", remedy="name the command that it reads")
        return options

    @property
    def option(self) -> str | None:
        """The option that names the target; None where none does."""
        return next(iter(self._targets), None)

    @property
    def _targets(self) -> list[str]:
        targets = {"--harness": self.harness, "--entry": self.entry, "--command": self.command}
        return [name for name, value in targets.items() if value is not None]

    @property
    def _readings(self) -> list[str]:
        """The options that say how the answer of a command is read."""
        options = {"--metric-regex": self.metric_regex, "--snapshot-glob": self.snapshot_glob}
        return [name for name, value in options.items() if value is not None]

    def target_at(self, repo: str) -> CheckoutTarget | None:
        """Return the target in the checkout ``repo``; None where the options name none."""
        from oomscope.probe.targets import OWN_KINDS, named_target

        readings = {"metric_regex": self.metric_regex, "snapshot_glob": self.snapshot_glob}
        named = ((kind, getattr(self, kind)) for kind in OWN_KINDS)
        found = (named_target(kind, str(source), repo, **readings) for kind, source in named if source is not None)
        return next(found, None)

    def own_code(self, settings: Config, overrides: tuple[str, ...]) -> OwnCode:
        """Return the target as what is measured of each commit.

        Raises:
            UsageError: the options name none.
        """
        from oomscope.bisect.own_code import own_code_of

        target = self.target_at("")
        if target is None:
            raise UsageError("nothing says what to measure of a commit", remedy=f"give {NAMES}")
        return own_code_of(target, settings, overrides)

    def refuse_unanswerable(self, bad: Bad, *, steps: bool) -> None:
        """Refuse what a command that is read in this way cannot answer.

        Args:
            bad: what is searched for.
            steps: whether every change of bytes is.

        Raises:
            UsageError: it cannot.
        """
        if self.command is None:
            if bad.name == "exit":
                raise UsageError("--bad exit without --command", remedy="any other target answers with its memory")
            return
        if self.snapshot_glob is not None:
            return
        if bad.name in {"capacity", "fragmentation", "reserved"}:
            remedy = "let the command write one, and give --snapshot-glob PATTERN"
            raise UsageError(f"--bad {bad} needs a snapshot to be told", remedy=remedy)
        if self.metric_regex is None and (bad.name == "live" or steps):
            what = f"--bad {bad}" if bad.name == "live" else "--steps"
            remedy = "give --metric-regex RE for what the command prints, or --snapshot-glob PATTERN"
            raise UsageError(f"{what} needs bytes", remedy=remedy)


def target_options(command: Command) -> Command:
    """Add the options; :meth:`TargetOptions.of` takes their values."""
    options = (
        click.option("--harness", type=FILE, metavar="FILE", help="Measure your own code: a Python file, setup(ctx)."),
        click.option("--entry", metavar="MODULE:FUNCTION", help="The same by a function(ctx) that the checkout has."),
        click.option("--command", metavar="CMD", help="The same by a command that is run in the checkout; no shell."),
        click.option(
            "--metric-regex", metavar="RE", help="With --command: finds the bytes in what it prints, by one group."
        ),
        click.option(
            "--snapshot-glob", metavar="PATTERN", help="With --command: the memory snapshots that it writes there."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
