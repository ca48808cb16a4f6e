"""A command that measures by itself: run in its checkout, and its answer is read from its status, output or files.

Its exit status, its output and its snapshots count. 0 is measured, 125 cannot be tested, as for ``git bisect run``. Any
other status is a failure, unless a snapshot or torch's own words say that memory ran out. Of the output both streams
count, in the order in which they were written; of a line of any length only its beginning is looked at.

This is the work of a probe's worker, so the one who started that ends the command and its children after a time-out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from oomscope.capture.arming import STARTED, with_startup
from oomscope.capture.singleton import PROBE_MARK
from oomscope.errors import InputError, OomscopeError, TargetError
from oomscope.files import tail_of
from oomscope.printable import quoted
from oomscope.probe.analysis.failures import Refusal, refusal_in_text
from oomscope.probe.git_bisect import UNTESTABLE
from oomscope.probe.job import CommandTarget, ProbeJob, Progress, StartedTarget
from oomscope.probe.machine.fingerprint import versions
from oomscope.probe.machine.processes import COMMAND_LINE, signal_name
from oomscope.probe.result import (
    ErrorKind,
    Failure,
    Oom,
    Outcome,
    Peak,
    ProbeResult,
    Site,
    SiteBytes,
    without_measurement,
)
from oomscope.probe.targets import checkout_imports
from oomscope.probe.targets.harness import HarnessError, place_of
from oomscope.units import parse_size
from oomscope.virtual.cards import card_bytes

_LIMIT_VARIABLE: Final = "OOMSCOPE_LIMIT_BYTES"
LONGEST: Final = 64 * 1024
"""Most bytes of a line that are read."""
_SHOWN: Final = 160
_PRINTED: Final = Site(file="", line=0, function="(the number that the command printed)")
_SHELL: Final = "no shell reads the command: for pipes and variables write sh -c '…'"
_PRINTS: Final = "print the number on a separate line, or fix --metric-regex"
_WRITES: Final = "see that it dumps one below the checkout, or fix --snapshot-glob"


def check_command(target: StartedTarget) -> None:
    """Refuse a command that cannot be run in any checkout, or whose answer could not be read.

    A program that is named with a ``/`` may be the checkout's, and is not looked for.

    Raises:
        HarnessError: the command, the expression or the pattern is ill-formed, or there is no such program.
    """
    program = words_of(target.command)[0]
    if "/" not in program and program != "oomscope" and shutil.which(program) is None:
        remedy = f"write python {program}" if program.endswith(".py") else _SHELL
        raise HarnessError(f"no program {program} on your PATH", remedy=remedy)
    if not isinstance(target, CommandTarget):
        return
    if target.metric_regex is not None and target.snapshot_glob is not None:
        raise HarnessError("both --metric-regex and --snapshot-glob", remedy="give one: a snapshot contains the bytes")
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
        raise HarnessError(f"{quoted(command)} cannot be split: {reason}", where="--command", remedy=_SHELL) from None
    if not words or not words[0] or "\0" in command:
        raise HarnessError(f"{quoted(command)} does not name a program", where="--command", remedy=_SHELL)
    return words


def argv_of(target: StartedTarget) -> list[str]:
    """Return what is run: the words of the command, where ``oomscope`` is the one that runs now.

    Raises:
        HarnessError: as :func:`words_of`.
    """
    words = checkout_imports.words_in_clone(words_of(target.command), target.repo)
    return [*COMMAND_LINE, *words[1:]] if words[0] == "oomscope" else words


def metric_of(pattern: str) -> re.Pattern[str]:
    """Return the compiled expression whose one group is the number.

    Raises:
        HarnessError: it is none, or has another number of groups.
    """
    where, remedy = "--metric-regex", "put the number with its unit into one group: 'peak: ([\\d.]+ ?[KMG]iB)'"
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise HarnessError(
            f"{quoted(pattern)} is not a regular expression: {error}", where=where, remedy=remedy
        ) from None
    if compiled.groups != 1:
        raise HarnessError(f"{quoted(pattern)} has {compiled.groups} groups", where=where, remedy=remedy)
    return compiled


def _check_glob(pattern: str) -> None:
    where, remedy = "--snapshot-glob", "give a pattern from the checkout's root, such as 'out/*.pickle'"
    outside = PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts
    if outside or not pattern.strip() or "\0" in pattern or os.path.normpath(pattern) == ".":
        raise HarnessError(f"{quoted(pattern)} does not name files in the checkout", where=where, remedy=remedy)


def run_command(job: ProbeJob, target: CommandTarget, progress: Callable[[Progress], None]) -> ProbeResult:
    """Run the command of ``target`` in the working directory, its checkout, and return the result.

    Standard output and error of this process are one file that can be read back.
    """
    log = sys.stdout.fileno()
    start = os.fstat(log).st_size
    try:
        result = replace(_result(job, target, progress, log, start), interpreter=_interpreter_of(target))
    except HarnessError as error:
        result = _unmeasured(job, "usage", str(error))
    except OomscopeError as error:
        result = _unmeasured(job, "step", str(error))
    if result.failure is None:
        return result
    return replace(result, failure=replace(result.failure, detail=tail_of(log, start)))


def _interpreter_of(target: CommandTarget) -> str | None:
    """Return the Python that a command names as its program; None where it names none."""
    program = argv_of(target)[0]
    return shutil.which(program) if PurePosixPath(program).name.startswith("python") else None


def _result(
    job: ProbeJob, target: CommandTarget, progress: Callable[[Progress], None], log: int, start: int
) -> ProbeResult:
    from oomscope.probe.targets.command_snapshots import stamps_of

    argv = argv_of(target)
    metric = metric_of(target.metric_regex) if target.metric_regex is not None else None
    before = stamps_of(place_of(target), target.snapshot_glob)
    progress(Progress(stage="step"))
    try:
        status = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=_environment(job, target)).wait()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TargetError(f"{argv[0]} cannot be run: {reason}", remedy="see that the checkout has it") from None
    output = read_output(log, start, metric)
    progress(Progress(stage="analyse"))
    return answer(job, target, status, output, before)


def _environment(job: ProbeJob, target: CommandTarget) -> dict[str, str]:
    environment = variables_of(job, os.environ)
    if not checkout_imports.is_clone(target.repo):
        return environment
    started = with_startup(environment) | {STARTED: checkout_imports.__name__}
    return environment | checkout_imports.variables(target.repo) | started


def variables_of(job: ProbeJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command or program: the worker's, with variables about the job.

    ``OOMSCOPE_PROBE`` is no part of it: a command that records itself is not recorded by anybody else.
    """
    told = {
        "OOMSCOPE_BACKEND": job.backend,
        "OOMSCOPE_RANK": str(job.rank),
        "OOMSCOPE_WORLD_SIZE": str(job.world_size),
        "OOMSCOPE_ITERATIONS": str(job.iterations),
        "OOMSCOPE_SEED": str(job.seed),
    }
    if (limit := card_bytes(job.limit_bytes, job.gpu)) is not None:
        told[_LIMIT_VARIABLE] = str(limit)
    others = {name: value for name, value in environment.items() if name not in {PROBE_MARK, _LIMIT_VARIABLE}}
    return {**others, **told}


@dataclass(frozen=True, kw_only=True)
class CommandOutput:
    """What counts of an output."""

    match: tuple[str, str] | None = None
    """Last match of the expression's group, and its line."""
    refusal: Refusal | None = None
    """Refusal in the last line that says, in torch's words, that memory ran out."""


def read_output(descriptor: int, start: int, metric: re.Pattern[str] | None) -> CommandOutput:
    """Return what counts of the file open as ``descriptor``, from byte ``start`` on."""
    match: tuple[str, str] | None = None
    refusal: Refusal | None = None
    for line in _lines(descriptor, start):
        refusal = refusal_in_text(line) or refusal
        for found in metric.finditer(line) if metric else ():
            if found[1] is not None:
                match = (found[1], line)
    return CommandOutput(match=match, refusal=refusal)


def _lines(descriptor: int, start: int) -> Iterator[str]:
    """Yield the beginnings of the lines of a file."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(start)
        whole = True
        while piece := file.readline(LONGEST):
            if whole:
                yield piece.decode(errors="replace").rstrip("\r\n")
            whole = piece.endswith(b"\n")


def metric_in(output: CommandOutput, pattern: str) -> tuple[int, str]:
    """Return the bytes that the command printed, and the line in which they stood.

    Raises:
        TargetError: nothing matched ``pattern``, or what did is not a size.
    """
    if output.match is None:
        raise TargetError(f"the command printed nothing that {quoted(pattern)} matches", remedy=_PRINTS)
    text, line = output.match
    shown = line.strip()[:_SHOWN]
    try:
        size = parse_size(text)
    except InputError:
        raise TargetError(
            f"the command printed {quoted(text)}, which is not a size", where=shown, remedy=_PRINTS
        ) from None
    number = text.strip()
    if "." in number and not number[-1].isalpha() and float(number.replace("_", "").replace(",", "")) % 1:
        remedy = "put the unit into the group"
        raise TargetError(f"the command printed {quoted(text)}, a fraction without a unit", where=shown, remedy=remedy)
    return size, shown


def answer(
    job: ProbeJob, target: CommandTarget, status: int, output: CommandOutput, before: Mapping[Path, tuple[int, ...]]
) -> ProbeResult:
    """Return the result of a command.

    Args:
        job: what was asked.
        target: the command.
        status: its exit status, negative for a signal.
        output: what counts of its output.
        before: the snapshots that were there before.

    Raises:
        TargetError: what was asked of it is not there.
        SnapshotError, AllocatorConfError: what it wrote cannot be used.
    """
    if status == UNTESTABLE:
        return _unmeasured(job, *failure_of(status))
    pattern = target.snapshot_glob
    recorded = None
    if pattern is not None:
        from oomscope.probe.targets.command_snapshots import judged, written_since

        files = written_since(target.place, pattern, before)
        recorded = judged(job, files, target.place, has_failed=status != 0) if files else None
    if status != 0:
        if recorded is not None:
            return recorded
        return _unmeasured(job, *failure_of(status)) if output.refusal is None else _by_words(job, output.refusal)
    if target.metric_regex is not None:
        return _by_number(job, *metric_in(output, target.metric_regex))
    if pattern is None:
        return _base(job, "fits")
    if recorded is None:
        raise TargetError(f"the command wrote no snapshot that {quoted(pattern)} names", remedy=_WRITES)
    return recorded


def failure_of(status: int) -> tuple[ErrorKind, str]:
    """Return what an exit status other than 0 means where memory did not run out; negative for a signal."""
    if status < 0:
        ended = -status in {signal.SIGKILL, signal.SIGTERM}
        return "killed" if ended else "crash", f"the command was ended by {signal_name(-status)}"
    text = f"the command ended with status {status}"
    if status == UNTESTABLE:
        return "untestable", f"{text}: it cannot be tested"
    # A shell says 126 or 127 of a program that it cannot run, and 128 plus the signal that ended one (POSIX).
    return "step" if status > UNTESTABLE else "exit", text


def _unmeasured(job: ProbeJob, kind: ErrorKind, message: str) -> ProbeResult:
    return without_measurement(job, "command", Failure(kind=kind, message=message))


def _by_words(job: ProbeJob, refusal: Refusal) -> ProbeResult:
    """Return an OOM of which only the message is known."""
    oom = Oom(
        requested_bytes=refusal.requested_bytes,
        iteration=-1,
        phase="",
        microbatch=-1,
        site=None,
        message=refusal.message,
    )
    return replace(_base(job, "oom"), oom=oom, notes=(f"the command printed: {refusal.message}",))


def _by_number(job: ProbeJob, size: int, line: str) -> ProbeResult:
    """Return the bytes that were printed as the peak of live ones; what the allocator held is not known."""
    peak = Peak(
        requested_bytes=size,
        allocated_bytes=None,
        active_bytes=None,
        reserved_bytes=None,
        iteration=-1,
        phase="",
        microbatch=-1,
        site=None,
        event=-1,
        categories={"unknown": size},
        sites=(SiteBytes(site=_PRINTED, bytes=size, count=1, category="unknown"),),
    )
    return replace(_base(job, "fits"), peak=peak, notes=(f"the command printed: {line}",))


def _base(job: ProbeJob, outcome: Outcome) -> ProbeResult:
    return ProbeResult(
        backend="command", outcome=outcome, rank=job.rank, world_size=job.world_size, versions=versions()
    )
