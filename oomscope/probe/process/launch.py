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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oomscope.capture.arming import PYTHON_PATH
from oomscope.capture.singleton import PROBE_MARK
from oomscope.errors import ExitCode, MachineUnfitError
from oomscope.files import tail_of
from oomscope.probe.job import CheckoutTarget, CommandTarget, OnProgress, ProbeJob, Progress, StartedTarget
from oomscope.probe.machine.backends import backend_of
from oomscope.probe.machine.checks import check_environment
from oomscope.probe.machine.environment import child_environment, environment_of, own_environment, request_variables
from oomscope.probe.machine.processes import (
    Ended,
    ProcessTree,
    kernel_oom_kills,
    own_program,
    signal_name,
    signals_as_exits,
    start_process_tree,
)
from oomscope.probe.process import tempdirs
from oomscope.probe.result import ErrorKind, Failure, MeasuredOn, ProbeResult, without_measurement
from oomscope.virtual.installed_torch import required_torch

WORKER = own_program("oomscope.probe.process.worker")
"""Command line of the child."""
_LOOK_S = 0.25


class StoppedError(Exception):
    """The probe was stopped before it had a result; not an answer about the target."""


class FreshProcessNeededError(Exception):
    """The worker asked for a fresh process."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is started with."""

    job: Path
    """File from which the worker reads its job."""
    result: Path
    """File to which the worker writes its result."""
    progress: int
    """Descriptor of the pipe to which the worker writes progress."""
    output: int
    """Descriptor of the log: its standard output and error."""
    cwd: Path
    environment: Mapping[str, str]
    """Every variable that the worker sees."""


Start = Callable[[Order], ProcessTree]
"""Starts a worker: :class:`FreshInterpreter` does, and :mod:`oomscope.probe.process.warm` with the same meaning."""


@dataclass(frozen=True)
class FreshInterpreter:
    """Starts a new interpreter for each worker."""

    command: Sequence[str] = WORKER
    """Returns a command for the job's file, the result's file and the number of the progress pipe."""

    def __call__(self, order: Order) -> ProcessTree:
        """Start a worker."""
        return start_process_tree(
            [*self.command, str(order.job), str(order.result), str(order.progress)],
            environment=order.environment,
            cwd=order.cwd,
            output=order.output,
            passed=(order.progress,),
        )


FRESH_INTERPRETER = FreshInterpreter()


def run(
    job: ProbeJob,
    progress: OnProgress | None = None,
    *,
    log_path: str | os.PathLike[str] | None = None,
    start: Start = FRESH_INTERPRETER,
    needs_fresh_status: int | None = None,
    stop: threading.Event | None = None,
) -> ProbeResult:
    """Measure ``job`` in a process of its own and return the result.

    Args:
        job: what to measure.
        progress: called for each step forward, in the caller's thread.
        log_path: where the target's stdout and stderr go; None keeps only their end, in ``failure.detail``.
        start: starts the worker.
        needs_fresh_status: the exit status by which the worker asks for a fresh process.
        stop: once it is set, from another thread, the probe is ended.

    Never raises for what the target does. An interrupt of the caller, SIGTERM and SIGHUP pass through (the signals as
    ``SystemExit``) once every process that was started is gone.

    Raises:
        StoppedError: ``stop`` was set.
        FreshProcessNeededError: the worker asked for a fresh process.
        AllocatorConfError: the allocator's variable in the environment is in force, and ill-formed.
        MachineUnfitError: there is no torch, or no place for the probe's temporary files.
    """
    if not isinstance(job.target, StartedTarget) and PYTHON_PATH not in job.environment:  # they have their own torch
        required_torch()
    check_environment(job, environment_of(job, own_environment()))
    if not isinstance(job.target, CommandTarget):  # where that runs is its own business
        job = replace(job, backend=backend_of(job, own_environment()))
    started = time.monotonic()
    with signals_as_exits(), _tempdir(job) as tempdir:
        log = Path(log_path) if log_path is not None else tempdir / "log"
        ended, failure = _run_worker(job, tempdir, log, start, progress, stop=stop)
        path = tempdir / "result.json"  # the worker writes a whole file or none
        written = ProbeResult.from_json(json.loads(path.read_text())) if path.is_file() else None
        if written is None and ended.status == needs_fresh_status:
            raise FreshProcessNeededError
        output = _tail(log)
        if written is None:
            backend: MeasuredOn = "command" if isinstance(job.target, CommandTarget) else backend_of(job)
            result = without_measurement(job, backend, replace(failure, detail=output))
        else:
            result = _with_output(written, output)
            if failure.kind == "timeout" or ended.status:
                result = replace(result, notes=(*result.notes, f"after the measurement {failure.message}"))
    return replace(
        result,
        variables=request_variables(job, own_environment()),
        wall_s=time.monotonic() - started,
        worker_rss_bytes=ended.max_rss_bytes,
    )


@contextlib.contextmanager
def _tempdir(job: ProbeJob) -> Iterator[Path]:
    """Yield a temporary directory that holds the job, with paths that mean the same in any working directory."""
    if isinstance(job.target, CheckoutTarget):
        job = replace(job, target=job.target.absolute())
    if job.snapshot_path is not None:
        job = replace(job, snapshot_path=str(Path(job.snapshot_path).absolute()))
    with contextlib.ExitStack() as stack:
        try:
            tempdir = stack.enter_context(tempdirs.tempdir(Path(tempfile.gettempdir()), "oomscope-probe"))
            (tempdir / "job.json").write_text(json.dumps(job.to_json()))
        except OSError as error:
            raise MachineUnfitError(
                f"no place for temporary files: {error.strerror}", remedy="set TMPDIR to a folder with some room"
            ) from error
        yield tempdir


def _run_worker(
    job: ProbeJob,
    tempdir: Path,
    log: Path,
    start: Start,
    progress: OnProgress | None,
    *,
    stop: threading.Event | None,
) -> tuple[Ended, Failure]:
    """Run the worker to its end; return how it ended, and what that is a failure of where it left no result."""
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
                if progress is not None:
                    progress(step)
            timed_out = not _await_end(worker, deadline, stop)
        finally:
            ended = worker.kill()
    during = f" during {stage}" if stage else ""
    if timed_out:
        text = f"ended{during}, having taken more than {job.timeout_s:g} s; give a longer --timeout"
        return ended, Failure(kind="timeout", message=text)
    kind: ErrorKind = "killed" if ended.signal in {signal.SIGKILL, signal.SIGTERM} else "crash"
    return ended, Failure(kind=kind, message=_text_of(ended, during, kernel_oom_kills() > kills_before))


def _text_of(ended: Ended, during: str, oom_killed: bool) -> str:
    """Return how the worker ended, in one line.

    ``oom_killed``: the kernel killed for lack of memory while it ran.
    """
    if ended.status == ExitCode.INTERNAL:
        return f"a defect of oomscope itself ended the probe{during}; please report it with the log"
    if ended.signal is None:
        return f"the probe's process exited{during} with status {ended.status} and without a result"
    if ended.signal == signal.SIGKILL and oom_killed:
        return f"the kernel's out-of-memory killer ended the probe{during}: the host ran out of memory"
    return f"the probe's process was ended by {signal_name(ended.signal)}{during}"


def _started(job: ProbeJob, tempdir: Path, log: Path, start: Start, writer: int) -> ProcessTree:
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


def _follow(
    pipe: io.RawIOBase, worker: ProcessTree, deadline: float, stop: threading.Event | None
) -> Iterator[Progress]:
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


def _await_end(worker: ProcessTree, deadline: float, stop: threading.Event | None) -> bool:
    """Wait until the worker has ended and return True; at ``deadline`` return False.

    It may run on long after it has closed the pipe.
    """
    while not worker.await_end(min(deadline, time.monotonic() + _LOOK_S)):
        if stop is not None and stop.is_set():
            raise StoppedError
        if time.monotonic() >= deadline:
            return False
    return True


def _with_output(result: ProbeResult, output: str) -> ProbeResult:
    """Return ``result`` with what the target printed before it failed, ahead of its traceback."""
    failure = result.failure
    if failure is None or failure.of_values or not output.strip() or output.strip() in failure.detail:
        return result
    detail = "\n".join(part.strip("\n") for part in (output, failure.detail) if part)
    return replace(result, failure=replace(failure, detail=f"{detail}\n"))


def _tail(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return tail_of(file.fileno())
