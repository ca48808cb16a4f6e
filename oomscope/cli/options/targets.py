"""Options of ``oomscope probe`` and ``oomscope bisect`` that say what of a checkout is measured."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oomscope.cli.options.generate import Options, option
from oomscope.cli.options.types import FILE
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.results.predicate import Bad
    from oomscope.bisect.targets.subjects import OwnCode
    from oomscope.config.schema import Config
    from oomscope.probe.job import CheckoutTarget

NAMES = "--harness FILE, --entry pkg.module:function or --command CMD"
PROGRAM = "-- PROGRAM"
"""How ``oomscope probe`` is told a program without quotation marks."""


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Options):
    """What the command line says about the target in a checkout."""

    harness: Path | None = option(
        "--harness", type=FILE, metavar="FILE", help="Measure your own code: a Python file with setup(ctx)."
    )
    entry: str | None = option(
        "--entry", metavar="MODULE:FUNCTION", help="Measure your own code: a function(ctx) in the checkout."
    )
    command: str | None = option(
        "--command", metavar="CMD", help="Measure a program: run CMD in the checkout, without a shell."
    )
    metric_regex: str | None = option(
        "--metric-regex", metavar="RE", help="With --command: the bytes are the one group of RE in its output."
    )
    snapshot_glob: str | None = option(
        "--snapshot-glob", metavar="PATTERN", help="With --command: read the memory snapshots that it writes."
    )
    exit_status: bool = option("--exit-status", is_flag=True, help="With --command: only its exit status counts.")

    @classmethod
    def of(cls, given: dict[str, Any], *, program: tuple[str, ...] = ()) -> Self:
        """Take the options out of ``given``.

        Args:
            given: values of the command line's options.
            program: the words of a program that the command line ends with; none where it names none.

        Raises:
            UsageError: they contradict each other.
        """
        options = super().of(given)
        targets = [*options._targets, *([PROGRAM] if program else [])]
        if len(targets) > 1:
            raise UsageError(f"both {' and '.join(targets)}", remedy="name one: each brings its own model")
        if options.command is None and options._readings:
            what = options._readings[0]
            raise UsageError(f"{what} without --command", remedy="name the command that it is about")
        return replace(options, command=shlex.join(program)) if program else options

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
        options = {
            "--metric-regex": self.metric_regex,
            "--snapshot-glob": self.snapshot_glob,
            "--exit-status": self.exit_status or None,
        }
        return [name for name, value in options.items() if value is not None]

    @property
    def is_program(self) -> bool:
        """Whether the target is a program that is recorded, not one that measures by itself."""
        return self.command is not None and not self._readings

    def target_at(self, repo: str) -> CheckoutTarget | None:
        """Return the target in the checkout ``repo``; None where the options name none."""
        from oomscope.probe.job import OWN_KINDS, named_target

        for kind in OWN_KINDS:
            source = getattr(self, kind)
            if source is not None:
                return named_target(
                    kind,
                    str(source),
                    repo,
                    metric_regex=self.metric_regex,
                    snapshot_glob=self.snapshot_glob,
                    exit_status=self.exit_status,
                )
        return None

    def own_code(self, settings: Config, overrides: tuple[str, ...]) -> OwnCode:
        """Return the target as what is measured of each commit.

        Raises:
            UsageError: the options name none.
        """
        from oomscope.bisect.targets.subjects import own_code_of

        target = self.target_at("")
        if target is None:
            raise UsageError("nothing says what to measure of a commit", remedy=f"give {NAMES}")
        return own_code_of(target, settings, overrides)

    def answering(self, bad: Bad, *, steps: bool) -> TargetOptions:
        """Return the options for a search for ``bad``: a program that is asked for its exit status is not recorded.

        Args:
            bad: what is searched for.
            steps: whether every change of bytes is.

        Raises:
            UsageError: a command that is read in this way cannot answer it.
        """
        if bad.name == "exit":
            if self.command is None:
                raise UsageError("--bad exit without --command", remedy="any other target answers with its memory")
            return replace(self, exit_status=True) if self.is_program else self
        if self.command is not None and not self.is_program:
            self._refuse_unanswerable(bad, steps=steps)
        return self

    def _refuse_unanswerable(self, bad: Bad, *, steps: bool) -> None:
        if self.snapshot_glob is not None:
            return
        if bad.name in {"capacity", "fragmentation", "reserved"}:
            remedy = "leave out how the command is read, or let it write a snapshot and give --snapshot-glob PATTERN"
            raise UsageError(f"--bad {bad} needs a snapshot to be told", remedy=remedy)
        if self.metric_regex is None and (bad.name == "requested" or steps):
            what = f"--bad {bad}" if bad.name == "requested" else "--steps"
            raise UsageError(f"{what} needs bytes", remedy="leave --exit-status out, so that the command is recorded")
