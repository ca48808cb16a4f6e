"""Runs a job in a process of its own and always comes back with a result.

Whatever the target does (raises, hangs, dies of a signal, is killed by the kernel, leaves children behind) ends as
a :class:`~oomscope.probe.result.ProbeResult`; no process that the probe started outlives the call.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oomscope.capture.singleton import PROBE_MARK
from oomscope.errors import ExitCode, MachineUnfitError
from oomscope.probe.job import CheckoutTarget, CommandTarget, OnProgress, ProbeJob, Progress
from oomscope.probe.machine.backends import backend_of
from oomscope.probe.machine.checks import check_environment
from oomscope.probe.machine.environment import child_environment, environment_of, own_environment, request_variables
from oomscope.probe.machine.processes import Ended, Family, kernel_oom_kills, signal_name, signals_as_exits
from oomscope.probe.process import tempdirs
from oomscope.probe.process.workers import FRESH, Order, Start
from oomscope.probe.result import ErrorKind, Failure, MeasuredOn, ProbeResult, without_measurement

_LOG_TAIL_BYTES = 16 * 1024
_LOOK_S = 0.25


class StoppedError(Exception):
    """Somebody ended the probe before it had a result; not an answer about the target."""


class VoidError(Exception):
    """The worker asked for a fresh process."""


def run(
    job: ProbeJob,
    progress: OnProgress | None = None,
    *,
    log_path: str | os.PathLike[str] | None = None,
    start: Start = FRESH,
    void_status: int | None = None,
    stop: threading.Event | None = None,
) -> ProbeResult:
    """Measure ``job`` in a process of its own and return what came of it.

    Args:
        job: what to measure.
        progress: called for each step forward, in the caller's thread.
        log_path: where the target's stdout and stderr go; None keeps only their end, in ``failure.detail``.
        start: starts the worker.
        void_status: the exit status by which the worker asks for a fresh process.
        stop: once it is set, from another thread, the probe is ended.

    Never raises for what the target does. An interrupt of the caller, SIGTERM and SIGHUP pass through (the signals as
    ``SystemExit``) once every process that was started is gone.

    Raises:
        StoppedError: ``stop`` was set.
        VoidError: the worker asked for a fresh process.
        ConfigError, AllocatorConfError: a variable of the environment that the job leaves in force is ill-formed.
        MachineUnfitError: there is no place for the probe's temporary files.
    """
    check_environment(job, environment_of(job, own_environment()))
    if not isinstance(job.target, CommandTarget):  # where that runs is its own business
        job = replace(job, backend=backend_of(job, own_environment()))
    started = time.monotonic()
    with signals_as_exits(), _tempdir(job) as tempdir:
        log = Path(log_path) if log_path is not None else tempdir / "log"
        exit_ = _run_worker(job, tempdir, log, start, progress or _ignore, stop=stop)
        written = _read_result(tempdir / "result.json")
        if written is None and exit_.ended.status == void_status:
            raise VoidError
        output = _tail(log)
        result = _failed(job, exit_, output) if written is None else _with_output(written, output)
        if written is not None and exit_.unclean:
            result = replace(result, notes=(*result.notes, f"after the measurement {exit_.text}"))
    return replace(
        result,
        variables=request_variables(job, own_environment()),
        wall_s=time.monotonic() - started,
        worker_rss_bytes=exit_.ended.max_rss_bytes,
    )


@contextlib.contextmanager
def _tempdir(job: ProbeJob) -> Iterator[Path]:
    """Yield a temporary directory that holds the job, and is gone afterwards, or when the next probe begins."""
    with contextlib.ExitStack() as stack:
        try:
            tempdir = stack.enter_context(tempdirs.tempdir(Path(tempfile.gettempdir()), "oomscope-probe"))
            (tempdir / "job.json").write_text(json.dumps(_absolute(job).to_json()))
        except OSError as error:
            raise MachineUnfitError(
                f"no place for temporary files: {error.strerror}", remedy="set TMPDIR to a folder with some room"
            ) from error
        yield tempdir


@dataclass(frozen=True, kw_only=True)
class _Exit:
    """How the worker ended."""

    ended: Ended
    timed_out: bool
    oom_killed: bool
    """The kernel killed for want of memory while it ran."""
    stage: str
    """What the worker last said it was doing."""
    timeout_s: float

    @property
    def unclean(self) -> bool:
        return self.timed_out or self.ended.status != 0

    @property
    def kind(self) -> ErrorKind:
        if self.timed_out:
            return "timeout"
        return "killed" if self.ended.signal in {signal.SIGKILL, signal.SIGTERM} else "crash"

    @property
    def text(self) -> str:
        """What happened, in one line."""
        during = f" during {self.stage}" if self.stage else ""
        if self.timed_out:
            return f"ended{during}, having taken more than {self.timeout_s:g} s; give a longer --timeout"
        if self.ended.status == ExitCode.INTERNAL:
            return f"a defect of oomscope itself ended the probe{during}; please report it with the log"
        if self.ended.signal is None:
            return f"the probe's process exited{during} with status {self.ended.status} and without a result"
        if self.ended.signal == signal.SIGKILL and self.oom_killed:
            return f"the kernel's out-of-memory killer ended the probe{during}: the host ran out of memory"
        return f"the probe's process was ended by {signal_name(self.ended.signal)}{during}"


def _run_worker(
    job: ProbeJob,
    tempdir: Path,
    log: Path,
    start: Start,
    progress: OnProgress,
    *,
    stop: threading.Event | None,
) -> _Exit:
    deadline = time.monotonic() + job.timeout_s
    kills_before = kernel_oom_kills()
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as lines:
        try:
            worker = _started(job, tempdir, log, start, writer)
        finally:
            os.close(writer)
        stage, timed_out = "", False
        try:
            for step in _follow(lines, worker, deadline, stop):
                stage = step.stage
                progress(step)
            timed_out = not _await_end(worker, deadline, stop)
        finally:
            ended = worker.kill()
    return _Exit(
        ended=ended,
        timed_out=timed_out,
        oom_killed=kernel_oom_kills() > kills_before,
        stage=stage,
        timeout_s=job.timeout_s,
    )


def _started(job: ProbeJob, tempdir: Path, log: Path, start: Start, writer: int) -> Family:
    """Start the worker, in the checkout where there is one."""
    cwd = job.target.place if isinstance(job.target, CheckoutTarget) else tempdir
    with log.open("a+b") as output:  # a worker may read back what its target said
        order = Order(
            job=tempdir / "job.json",
            result=tempdir / "result.json",
            progress=writer,
            output=output.fileno(),
            cwd=cwd if cwd.is_dir() else tempdir,
            environment=child_environment(job, own_environment()) | {PROBE_MARK: "1"},
        )
        return start(order)


def _follow(pipe: io.RawIOBase, worker: Family, deadline: float, stop: threading.Event | None) -> Iterator[Progress]:
    """Yield what the worker reports until it ends, closes the pipe or runs out of time.

    A child of the target may hold the pipe open for longer than the worker lives, hence the look at the process.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if stop is not None and stop.is_set():
                raise StoppedError
            if not selector.select(min(left, _LOOK_S)):
                if worker.await_end(0.0):
                    return
                continue
            chunk = pipe.read(65536)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield Progress(**json.loads(line))


def _await_end(worker: Family, deadline: float, stop: threading.Event | None) -> bool:
    """Wait until the worker has ended and return True; at ``deadline`` return False.

    It may run on long after it has closed the pipe.
    """
    while not worker.await_end(min(deadline, time.monotonic() + _LOOK_S)):
        if stop is not None and stop.is_set():
            raise StoppedError
        if time.monotonic() >= deadline:
            return False
    return True


def _read_result(path: Path) -> ProbeResult | None:
    """Return the result that the worker wrote; it writes whole files or none."""
    if not path.is_file():
        return None
    return ProbeResult.from_json(json.loads(path.read_text()))


def _failed(job: ProbeJob, exit_: _Exit, output: str) -> ProbeResult:
    backend: MeasuredOn = "command" if isinstance(job.target, CommandTarget) else backend_of(job)
    return without_measurement(job, backend, Failure(kind=exit_.kind, message=exit_.text, detail=output))


def _with_output(result: ProbeResult, output: str) -> ProbeResult:
    """Return ``result`` with what the target printed before it failed, ahead of its traceback."""
    failure = result.failure
    if failure is None or not output.strip() or output.strip() in failure.detail:
        return result
    detail = "\n".join(part.strip("\n") for part in (output, failure.detail) if part)
    return replace(result, failure=replace(failure, detail=f"{detail}\n"))


def _absolute(job: ProbeJob) -> ProbeJob:
    """Return ``job`` with paths that mean the same in the child's working directory."""
    changes: dict[str, Any] = {}
    if isinstance(job.target, CheckoutTarget):
        changes["target"] = job.target.absolute()
    if job.snapshot_path is not None:
        changes["snapshot_path"] = str(Path(job.snapshot_path).absolute())
    return replace(job, **changes)


def _tail(path: Path) -> str:
    """Return the end of a log, from a line's beginning."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return text if size <= _LOG_TAIL_BYTES else text.partition("\n")[2]


def _ignore(progress: Progress) -> None:
    """Default no-op callback."""
