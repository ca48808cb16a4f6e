"""What is asked of a command: which program, and how its answer is read. All of it is checked before anything runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path, PurePosixPath
from typing import Final

from oomscope.probe.job import CommandTarget, StartedTarget
from oomscope.probe.machine.processes import COMMAND_LINE
from oomscope.probe.targets.harness import HarnessError

_OWN_NAME: Final = "oomscope"
_SHELL: Final = "no shell reads the command: for pipes and variables write sh -c '…'"


def check_command(target: StartedTarget) -> None:
    """Refuse a command that cannot be run in any checkout, or whose answer could not be read.

    A program that is named with a ``/`` may be the checkout's, and is not looked for.

    Raises:
        HarnessError: the command, the expression or the pattern is ill-formed, or there is no such program.
    """
    program = words_of(target.command)[0]
    if "/" not in program and program != _OWN_NAME and shutil.which(program) is None:
        raise HarnessError(f"no program {program} on your PATH", remedy=_SHELL)
    if not isinstance(target, CommandTarget):
        return
    if target.metric_regex is not None and target.snapshot_glob is not None:
        raise HarnessError(
            "both --metric-regex and --snapshot-glob", remedy="name one: a snapshot tells the bytes by itself"
        )
    if target.metric_regex is not None:
        metric_of(target.metric_regex)
    if target.snapshot_glob is not None:
        _check_glob(target.snapshot_glob)


def words_of(command: str) -> list[str]:
    """Return the words of ``command``, split as by a shell.

    Raises:
        HarnessError: a quotation is not closed, or there is no word.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        reason = str(error).lower()
        raise HarnessError(f"{command!r} cannot be split: {reason}", where="--command", remedy=_SHELL) from None
    if not words or not words[0] or "\0" in command:
        raise HarnessError(f"{command!r} does not name a program", where="--command", remedy=_SHELL)
    return words


def argv_of(command: str) -> list[str]:
    """Return what is run: the words of ``command``, where ``oomscope`` is the one that runs now.

    Raises:
        HarnessError: as :func:`words_of`.
    """
    words = words_of(command)
    return [*COMMAND_LINE, *words[1:]] if words[0] == _OWN_NAME else words


def metric_of(pattern: str) -> re.Pattern[str]:
    """Return the compiled expression whose one group is the number.

    Raises:
        HarnessError: it is none, or has another number of groups.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise HarnessError(
            f"{pattern!r} is not a regular expression: {error}", where="--metric-regex", remedy="see Python's re"
        ) from None
    if compiled.groups != 1:
        raise HarnessError(
            f"{pattern!r} has {compiled.groups} groups",
            where="--metric-regex",
            remedy="put the number with its unit into one group, such as 'peak: ([\\d.]+ ?[KMG]iB)'; (?:…) groups only",
        )
    return compiled


def _check_glob(pattern: str) -> None:
    outside = PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts
    if outside or not pattern.strip() or "\0" in pattern or os.path.normpath(pattern) == ".":
        raise HarnessError(
            f"{pattern!r} does not name files in the checkout",
            where="--snapshot-glob",
            remedy="give a pattern from the checkout's root, such as 'out/*.pickle'",
        )
    try:
        next(Path("/nowhere").glob(pattern), None)
    except (ValueError, NotImplementedError, IndexError) as error:
        raise HarnessError(f"{pattern!r}: {error}", where="--snapshot-glob", remedy="see Python's Path.glob") from None
