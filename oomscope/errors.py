"""One tree of errors and one table of exit codes.

Library code raises; only ``oomscope.cli.main`` prints and exits. Every error says in one line what is
wrong, where, and what to do about it::

    OomscopeError            70  a defect of oomscope itself
    ├── UsageError            2  the command line cannot be understood
    ├── InputError            2  a file given by the user cannot be used
    │   ├── ConfigError       2  a configuration file or override (file:line where known)
    │   ├── AllocatorConfError 2  an ill-formed PYTORCH_ALLOC_CONF
    │   ├── SnapshotError     2  a memory snapshot
    │   └── GitError          2  a repository, revision or range
    ├── MachineUnfitError     5  no such GPU, foreign memory, too little host memory
    ├── TargetError           6  the code under measurement failed (import, exception, crash, time-out)
    │   └── UntestableError   6  it cannot be measured here, which is no fault of its memory
    │       └── NothingOnDeviceError   it ran, and put nothing on the device
    ├── InconclusiveError     7  a search that ended without an answer
    └── NothingMeasuredError  8  a gate that would pass because nothing ran
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the process; the single source for code, ``--help`` and docs."""

    OK = 0
    """The command answered: the probe fits, the bisect found a culprit or showed that there is none."""
    REGRESSION = 1
    """gate: worse than the baseline, measured twice."""
    USAGE = 2
    """Usage, configuration or input-file error."""
    OOM = 3
    """probe: out of memory; advise: no change that was tried fits."""
    NO_BASELINE = 4
    """gate: no baseline, or one of another kind of machine."""
    MACHINE_UNFIT = 5
    """The machine cannot do this: no such GPU, memory held by other processes, a full disk."""
    TARGET_FAILED = 6
    """The code under measurement failed: import error, exception, crash, time-out; gate: a case cannot be tested."""
    INCONCLUSIVE = 7
    """bisect ended without an answer: both ends give the same one, only suspects are left, the harness is broken."""
    NOTHING_MEASURED = 8
    """gate: nothing was measured."""
    IMPROVED = 9
    """gate: better than the baseline, with ``--strict``."""
    INTERNAL = 70
    """A defect of oomscope."""
    OUTPUT_LOST = 74
    """Output or a result file could not be written: a full disk, or standard output was closed."""
    INTERRUPTED = 130
    """Interrupted (Ctrl-C)."""
    BROKEN_PIPE = 141
    """The reader of standard output or error ended, as in ``oomscope probe … 2>&1 | head -1``."""


GRAVITY: tuple[ExitCode, ...] = (
    ExitCode.INTERRUPTED,
    ExitCode.BROKEN_PIPE,
    ExitCode.INTERNAL,
    ExitCode.OUTPUT_LOST,
    ExitCode.USAGE,
    ExitCode.MACHINE_UNFIT,
    ExitCode.NOTHING_MEASURED,
    ExitCode.NO_BASELINE,
    ExitCode.REGRESSION,
    ExitCode.OOM,
    ExitCode.TARGET_FAILED,
    ExitCode.INCONCLUSIVE,
    ExitCode.IMPROVED,
    ExitCode.OK,
)
"""Gravest first: where several outcomes apply, the first of these that occurred is the exit code."""


def gravest(codes: list[ExitCode]) -> ExitCode:
    """Return the exit code of a command whose parts ended with ``codes`` (``OK`` for none)."""
    return min(codes, key=GRAVITY.index, default=ExitCode.OK)


class OomscopeError(Exception):
    """Base of all errors that oomscope raises on purpose.

    Args:
        message: what is wrong, in the user's terms, without a trailing full stop.
        where: the file, ``file:line``, key or revision at fault.
        remedy: what to do next, as an imperative.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, message: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if self.remedy:
            text = f"{text}; {self.remedy}"
        return " ".join(text.split())


class UsageError(OomscopeError):
    """The command line cannot be understood."""

    exit_code = ExitCode.USAGE


class InputError(OomscopeError):
    """A file or value given by the user cannot be used."""

    exit_code = ExitCode.USAGE


class ConfigError(InputError):
    """A configuration file, preset or override is wrong."""


class AllocatorConfError(InputError):
    """An allocator configuration string is ill-formed or asks for what has no rules here."""


class SnapshotError(InputError):
    """A memory snapshot cannot be read or trusted."""


class GitError(InputError):
    """A repository, revision or range cannot be used."""


class MachineUnfitError(OomscopeError):
    """This machine cannot do what was asked."""

    exit_code = ExitCode.MACHINE_UNFIT


class TargetError(OomscopeError):
    """The code under measurement failed."""

    exit_code = ExitCode.TARGET_FAILED


class UntestableError(TargetError):
    """The code under measurement needs what this backend cannot give; bisect skips it."""


class NothingOnDeviceError(UntestableError):
    """The code under measurement ran, and put nothing on the device."""


class InconclusiveError(OomscopeError):
    """A search ended without an answer."""

    exit_code = ExitCode.INCONCLUSIVE


class NothingMeasuredError(OomscopeError):
    """A gate that would pass because nothing ran."""

    exit_code = ExitCode.NOTHING_MEASURED
