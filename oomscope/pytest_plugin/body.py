"""Measures the body of a test in pytest's own process, with what its fixtures made on the device.

The allocator records itself while the test runs. A virtual card is used where the ini file asks for it: every test of
the run then sees a card, and one that computes nothing.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oomscope.errors import MachineUnfitError, UntestableError
from oomscope.probe.job import HarnessTarget, ProbeJob, RunsOn
from oomscope.pytest_plugin import ENDED, probing
from oomscope.pytest_plugin.card import LEDGER, WITHOUT_GPU
from oomscope.pytest_plugin.limits import one_failure

if TYPE_CHECKING:
    from oomscope.probe.measurement import Measurement
    from oomscope.probe.recording.session import Session
    from oomscope.probe.result import ProbeResult


_LAST_FAILURE = ("last_type", "last_value", "last_traceback", "last_exc")
"""Where pytest leaves a failure in :mod:`sys`, with its frames; it clears them only before the next body."""
_UNFIT = "the memory of the test cannot be measured"
_OWN = Path(__file__).resolve().parents[1]


class Recording:
    """What one test does on the device.

    Raises:
        OomscopeError: the device cannot be recorded.
    """

    def __init__(self, item: pytest.Item) -> None:
        import torch

        # How to record, and whose lines are the user's: the project's, then the test's.
        target = HarnessTarget(repo=str(item.config.rootpath), harness=str(item.path))
        gpu = item.config.getini("oomscope_gpu") or None
        self._job = ProbeJob(target=target, backend=item.config.getini("oomscope_backend"), gpu=gpu)
        _forget_tests(item.config.stash.get(ENDED, []))
        self._backend, session = _opened(self._job, item.config.stash.get(LEDGER, ""))
        self.device = session.device
        self.alive_before = int(torch.cuda.memory_stats(self.device).get("requested_bytes.all.current", 0))
        """Bytes that fixtures or earlier tests hold on the device."""
        self._session: Session | None = session
        self._open = ExitStack()
        self._open.enter_context(session)
        self._measurement: Measurement | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is still being recorded."""
        return self._session is not None

    @contextmanager
    def body(self) -> Iterator[None]:
        """Mark what runs inside as the test itself, and end the recording after it."""
        session, has_passed = self._session, False
        assert session is not None  # noqa: S101 - it is open
        try:
            with session.iteration(0):
                yield
                has_passed = True
        except UntestableError:
            if not has_passed:
                raise
            return  # nothing was put on the device: the limits say that in a test's terms
        finally:
            self.close()
        self._measurement = session.measurement()

    def close(self) -> None:
        """Stop the recording if active, and drop the session, which keeps the watched objects alive."""
        if self._session is not None:
            self._session = None
            self._open.close()

    @property
    def result(self) -> ProbeResult | None:
        """The peaks of what was recorded, if anything was; a test is no iteration of anything, so they name none."""
        from oomscope.probe.analysis.analyse import peak_of, reserved_peak_of, rules_of
        from oomscope.probe.result import ProbeResult

        measurement = self._measurement
        peak = None if measurement is None else peak_of(self._job, measurement)
        if measurement is None or peak is None:
            return None
        held = reserved_peak_of(measurement.timeline, rules_of(measurement))
        return ProbeResult(
            backend=self._backend,
            outcome="fits",
            gpu=measurement.device.gpu,
            peak=replace(peak, iteration=-1, microbatch=-1),
            reserved_peak=replace(held, iteration=-1, microbatch=-1),
            allocator_conf=measurement.allocator_conf,
            notes=measurement.notes,
        )


_RECORDING = pytest.StashKey[Recording]()


def check_device(config: pytest.Config) -> None:
    """Fail the test where there is no device to measure."""
    if not _has_cuda(config):
        pytest.fail(f"{_UNFIT}\ntorch finds no CUDA device; {WITHOUT_GPU}", pytrace=False)


def begin(item: pytest.Item) -> None:
    """Record the test from now on if there is a device; where there is none, a fixture may skip the test."""
    if _has_cuda(item.config):
        _begun(item)


def end(item: pytest.Item) -> None:
    """Record the test no longer."""
    recording = item.stash.get(_RECORDING, None)
    if recording is not None:
        recording.close()


@contextmanager
def measured(item: pytest.Item, *, wanted: bool) -> Iterator[None]:
    """Measure what runs inside: with what fixtures made, else, where it is ``wanted``, on a card if there is one."""
    recording = item.stash.get(_RECORDING, None)
    if recording is None or not recording.is_open:  # an ended one belongs to this test's previous run
        if not wanted or probing.is_asked(item) or not _has_cuda(item.config):
            yield
            return
        recording = _begun(item)
    with recording.body():
        try:
            yield
        except Exception as error:
            _end_outside_oomscope(error)
            raise


def _end_outside_oomscope(error: Exception) -> None:
    """Let the traceback end at the call of torch that failed, not at what passes it on while the test is recorded."""
    last, each = None, error.__traceback__
    while each is not None:
        if not Path(each.tb_frame.f_code.co_filename).is_relative_to(_OWN):
            last = each
        each = each.tb_next
    if last is not None:
        last.tb_next = None


def results(item: pytest.Item) -> list[ProbeResult]:
    """Return what the body of the test was measured to take, if it was."""
    recording = item.stash.get(_RECORDING, None)
    result = None if recording is None else recording.result
    return [] if result is None else [result]


def alive_before(item: pytest.Item) -> int:
    """Return the bytes that were on the device before the test was recorded."""
    recording = item.stash.get(_RECORDING, None)
    return 0 if recording is None else recording.alive_before


def _begun(item: pytest.Item) -> Recording:
    with one_failure(_UNFIT):
        item.stash[_RECORDING] = Recording(item)
    return item.stash[_RECORDING]


def _has_cuda(config: pytest.Config) -> bool:
    from oomscope import virtual
    from oomscope.probe.recording.settings import sees_gpu

    backend = config.getini("oomscope_backend")
    with one_failure(_UNFIT):
        return backend == "virtual" or (backend == "auto" and virtual.is_loaded()) or sees_gpu()


def _forget_tests(ended: list[pytest.Item]) -> None:
    """Drop what pytest keeps of tests that have ended: the last failure, and the instances of their classes.

    pytest itself makes another instance where one is asked for later.
    """
    for name in _LAST_FAILURE:
        vars(sys).pop(name, None)
    for item in ended:
        if getattr(item, "cls", None) is not None:
            for name in ("_obj", "_instance"):
                vars(item).pop(name, None)
    ended.clear()


def _opened(job: ProbeJob, ledger: str) -> tuple[RunsOn, Session]:
    from oomscope import virtual
    from oomscope.probe.recording.settings import open_session, resolve_backend, settings_of

    if job.backend == "auto":
        job = replace(job, backend="virtual" if virtual.is_loaded() else "cuda")
    backend = resolve_backend(job)
    import torch

    from oomscope.capture import history

    if history.is_recording():
        raise MachineUnfitError(
            "the allocator's history is being recorded already", remedy="record nothing in a test that is measured"
        )
    if backend == "cuda":  # the real card of the machine
        job = replace(job, gpu=None)
    # Frees what earlier tests left in cycles and in the allocator's cache: it is not this test's memory.
    gc.collect()
    torch.cuda.empty_cache()
    return backend, open_session(replace(settings_of(job, backend), ledger=ledger), backend)
