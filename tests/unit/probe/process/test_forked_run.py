"""A function that runs in a child: its value comes back however the child ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from oomscope.errors import ExitCode
from oomscope.probe.machine.forked_run import ForkedRun


def test_the_value_comes_back() -> None:
    run = ForkedRun(lambda: {"pid": os.getpid(), "bytes": b"x" * 5_000_000})
    value = run.value()
    assert value is not None
    assert value["pid"] != os.getpid()
    assert len(value["bytes"]) == 5_000_000
    assert run.wait() == 0


def test_a_child_that_dies_has_no_value() -> None:
    run = ForkedRun(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert run.value() is None
    assert run.wait() == -signal.SIGKILL


def test_an_exception_is_a_defect_of_oomscope() -> None:
    run = ForkedRun(lambda: 1 / 0)
    assert run.value() is None
    assert run.wait() == ExitCode.INTERNAL


def test_a_process_that_outlives_the_child_does_not_block_the_parent() -> None:
    def leave_behind() -> int:
        return subprocess.Popen(["sleep", "30"], close_fds=False).pid

    def leave_behind_and_die() -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        os.write(1, f"{pid}\n".encode())
        os._exit(3)

    started = time.monotonic()
    run = ForkedRun(leave_behind)
    stray = run.value()
    assert stray is not None
    os.kill(stray, signal.SIGKILL)
    assert run.wait() == 0
    run = ForkedRun(leave_behind_and_die)
    assert run.value() is None
    assert run.wait() == 3
    assert time.monotonic() - started < 20


def test_a_process_ends_as_its_child_did() -> None:
    for status in (7, -signal.SIGABRT, -signal.SIGKILL):
        program = f"from oomscope.probe.machine.forked_run import end_as; end_as({status})"
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == status
