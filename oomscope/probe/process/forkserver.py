"""The warm parent: a process that has imported what a probe needs, and forks a worker for each job that it is sent.

It runs nothing of any target, has one thread and one loop, and is done when the socket that orders come by is closed.
A worker leaves the loop by returning from :func:`serve`, so that it goes on where a fresh one would have begun: its
stacks, ``sys.argv`` and ``__main__`` are those of a fresh process.

An order is one message with three descriptors: the log, the progress pipe and the control socket of the worker's
supervisor (:mod:`oomscope.probe.machine.supervisor`), which is forked here and forks the worker.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Set
from typing import Any

from oomscope.probe.job import Progress
from oomscope.probe.machine.processes import MESSAGE_BYTES
from oomscope.probe.machine.supervisor import fork_supervised
from oomscope.probe.recording.collector import gc_paused_import

NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Variable that an interpreter reads when it starts."""
NEEDS_FRESH = 75
"""The exit status of a warm worker whose job needs a fresh process; EX_TEMPFAIL of sysexits.h."""
_READ_WHILE_IMPORTED = ("TORCH_", "TORCHDYNAMO_", "PYTORCH_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_")
"""Prefixes of variables that torch, numpy, numba and their libraries read once, while being imported."""
_PRELOADED = (
    "numpy.ma",
    "oomscope.config.schema",
    "oomscope.model.parallel.parallel_state",
    "oomscope.model.trainer",
    "oomscope.probe.analysis.cures",
    "oomscope.model.cost.step_time",
    "oomscope.probe.recording.cards",
    "oomscope.probe.recording.session",
)


def serve(descriptor: int, fresh_names: Set[str]) -> list[str]:
    """Fork a worker for each order; return in each of them, with its arguments.

    In the parent itself it never returns: the process ends when the socket is closed.

    Args:
        descriptor: the socket's number.
        fresh_names: the top-level modules that a fresh worker has when it comes to its target.
    """
    with gc_paused_import():
        preload()
    early = sorted(top_level_names() - fresh_names)
    gc.collect()
    gc.freeze()  # what is there now is never garbage: no worker has to look through it, and pages stay shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the supervisors
    with socket.socket(fileno=descriptor) as orders:
        orders.send(json.dumps({"early": early}).encode())
        while True:
            message, descriptors, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
            if not message:
                os._exit(0)
            if os.fork() == 0:
                orders.close()
                return _become(json.loads(message), *descriptors)
            for number in descriptors:
                os.close(number)


def preload() -> None:
    """Import the modules that every probe on a virtual card imports sooner or later.

    Nothing is run that would leave a trace in a probe: no tensor is made, no device registered, and CUDA not called,
    after which no fork could choose its card or use one; the environment stays as it was.
    """
    environment = dict(os.environ)
    for name in _PRELOADED:
        importlib.import_module(name)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]


def top_level_names() -> set[str]:
    """Return the modules that are imported, without those inside packages."""
    return {name for name in sys.modules if "." not in name}


def once_imported(progress: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return what passes progress on, and ends the worker once the target's imports set a variable that came too late.

    That is one that libraries read while being imported: the parent has imported them already. The environment is
    looked at when the first stage after the imports begins.
    """
    before: dict[str, str] | None = _read_early(os.environ)

    def pass_on(step: Progress) -> None:
        nonlocal before
        if before is not None and step.stage != "import":
            if before != _read_early(os.environ):
                os._exit(NEEDS_FRESH)
            before = None
        progress(step)

    return pass_on


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_WHILE_IMPORTED)}


def _become(order: dict[str, Any], output: int, progress: int, control: int) -> list[str]:
    """Turn this process, forked a moment ago, into the worker of ``order`` below a supervisor; return its arguments."""
    import numpy as np

    os.setsid()
    with socket.socket(fileno=control) as supervised:
        fork_supervised(supervised)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(order["cwd"])
    for name, value in order["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.dont_write_bytecode = bool(os.environ.get(NO_BYTECODE))
    np.random.seed()  # as after a start: Python reseeds its own generator after a fork, numpy does not
    arguments = [order["job"], order["result"], str(progress)]
    sys.argv[1:] = sys.orig_argv[-2:] = arguments
    return arguments
