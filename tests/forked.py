"""Probes that are forked from the warm process of a test run, for tests in which starting one is not at stake."""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oomscope.cli.main import run as run_command_line
from oomscope.probe.job import OnProgress, ProbeJob
from oomscope.probe.process import launch, warm
from oomscope.probe.result import ProbeResult

VARYING = ("HOME", "PATH", "SCALE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
"""Variables that tests set and no library reads while it is imported: one warm parent serves them all."""

_fresh = launch.run


def probe(job: ProbeJob, progress: OnProgress | None = None, **options) -> ProbeResult:
    """Do what :func:`oomscope.probe.process.launch.run` does, forked where that would start a fresh process."""
    forks = "start" not in options and warm.suits(job)
    return (warm.run if forks else _fresh)(job, progress, **options)


@contextlib.contextmanager
def probes() -> Iterator[None]:
    """Have every probe of this process forked inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "OF_THE_JOB", (*warm.OF_THE_JOB, *VARYING))
        patch.setattr(launch, "run", probe)
        yield


def oomscope(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, with its probes forked; what it prints is told as of a program."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2)]
    words = [str(word) for word in arguments]
    with probes(), contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = run_command_line(words)
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(words, code, out, err)
