"""One simulated run: opens the device, records what the target does on it, and hands over the measurement."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from oomscope.allocator import AllocatorSettings, Driver
from oomscope.allocator.constants import MAX_DEVICE_BYTES
from oomscope.errors import NothingOnDeviceError
from oomscope.model.observer import Phase, Role
from oomscope.probe.collector import uncollected
from oomscope.probe.fingerprint import installed_torch
from oomscope.probe.local_part import local_part
from oomscope.probe.measurement import AllocatorStats, DeviceBudget, Measurement
from oomscope.probe.session import listed
from oomscope.probe.sim import autocast, backend, mixed_precision, parity, refusals
from oomscope.probe.sim.autograd import BackwardGuard
from oomscope.probe.sim.dispatch import SimMode
from oomscope.probe.sim.host import HostMemory
from oomscope.probe.sim.memory import SimMemory
from oomscope.probe.sim.position import Position
from oomscope.probe.sim.temporaries import Card
from oomscope.probe.sim.watch import Watch
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.sites import user_frame
from oomscope.snapshot.trace import Category, Snapshot

if TYPE_CHECKING:
    from oomscope.probe.session import SessionSettings


class SimSession:
    """A :class:`~oomscope.probe.session.Session` on the simulated device. Use it once.

    Args:
        settings: the card, its limit and the allocator's configuration; ``settings.gpu`` must be given.
    """

    def __init__(self, settings: SessionSettings) -> None:
        if settings.gpu is None:
            raise ValueError("the simulated device plays a card: settings.gpu must name one")
        self._settings = settings
        self._rules = AllocatorSettings.parse(
            settings.allocator_conf, torch_version=settings.torch_version or installed_torch()
        )
        self.device = backend.register()
        self._budget = DeviceBudget(
            gpu=settings.gpu.name,
            limit_bytes=settings.limit_bytes or settings.gpu.total_bytes,
            non_torch_bytes=settings.non_torch_bytes,
            other_process_bytes=settings.other_process_bytes,
        )
        taken = self._budget.non_torch_bytes + self._budget.other_process_bytes
        total = MAX_DEVICE_BYTES if settings.unlimited else self._budget.limit_bytes
        builder = TraceBuilder()
        self.position = Position(builder, max_frames=settings.max_frames)
        self.memory = SimMemory(
            self._rules,
            Driver(total, min(taken, total)),
            builder,
            self.position,
            event_lag=settings.stream_lag,
        )
        self._host = HostMemory()
        self._watch = Watch(self.position, self.memory)
        self._guard = BackwardGuard(self._watch.backward_begins, self._watch.backward_ends)
        self._card = Card(
            compute_capability=settings.gpu.capability,
            multiprocessors=settings.gpu.multiprocessors,
            cublas_workspace_config=settings.cublas_workspace_config,
        )
        self._mode = SimMode(
            self.memory,
            self._host,
            self.position,
            self._guard,
            self._card,
            op_temporaries=settings.op_temporaries,
            remember_shapes=settings.remember_shapes,
        )
        self._open = ExitStack()
        self.observer = SimObserver(self.position, self.memory)

    def __enter__(self) -> Self:
        """Start to record."""
        parity.install()
        autocast.install()
        backend.module.queue = self.memory
        backend.module.name, backend.module.capability = self._budget.gpu, self._card.compute_capability
        backend.module.set_stream(backend.module.default_stream())
        torch.manual_seed(self._settings.seed)
        for part in (
            _collected_at_known_times(),
            refusals.installed(),
            mixed_precision.installed(),
            parity.installed(),
            self._guard.installed(),
            self._watch.installed(),
            self._mode.installed(),
        ):
            self._open.enter_context(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Stop to record. Errors pass through."""
        self._final = self._state()
        self._open.close()
        backend.module.queue = None

    @contextmanager
    def iteration(self, index: int) -> Iterator[None]:
        """Mark what runs inside as iteration ``index``."""
        gc.collect()
        self._mode.forget_graph()
        self._watch.iteration_begins()
        with self.position.iteration(index):
            yield
        self._watch.label()
        if not self.memory.served:
            raise NothingOnDeviceError(
                "the target put nothing on the simulated device", remedy="build model and data on ctx.device"
            )

    def watch(self, model: Any, optimizer: Any) -> None:
        """Tell parameters, gradients, optimizer states, modules and phases of the target."""
        self._watch.follow(listed(model), listed(optimizer))

    def measurement(self) -> Measurement:
        """Return what was recorded."""
        return self._final

    def _notes(self) -> tuple[str, ...]:
        """Say where the program was given stand-ins for data, since memory may depend on them."""
        if not self._mode.reads:
            return ()
        place = user_frame(self.memory.builder.stack(next(iter(self._mode.reads))))
        times = sum(self._mode.reads.values())
        line = f"{self._name_of(place.filename)}:{place.line}" if place else "an unknown line"
        said = f"the program read data from the device {times} times, first at {line}; it was given stand-in values"
        return (said,)

    def _name_of(self, file: str) -> str:
        """Return the path of ``file`` from the checkout under test; elsewhere as it is."""
        root = self._settings.source_root
        return str(Path(file).relative_to(root)) if root and Path(file).is_relative_to(root) else file

    def _state(self) -> Measurement:
        allocator = self.memory.allocator
        return Measurement(
            snapshot=Snapshot(
                segments=self.memory.segments(),
                traces=(self.memory.builder.build(),),
                allocator_settings=self._rules.describe(),
            ),
            device=self._budget,
            stats=AllocatorStats(
                allocated_bytes_peak=allocator.allocated_peak,
                active_bytes_peak=allocator.active_peak,
                reserved_bytes_peak=allocator.reserved_peak,
                requested_bytes_peak=allocator.requested_peak,
                reserved_bytes_current=allocator.reserved_bytes,
                requested_bytes_current=allocator.requested_bytes,
                allocated_bytes_current=allocator.allocated_bytes,
                num_alloc_retries=allocator.num_alloc_retries,
                num_ooms=allocator.num_ooms,
            ),
            oom=self.memory.failure,
            host_bytes=self._host.peak_bytes,
            pinned_bytes=self._host.peak_pinned_bytes,
            allocator_conf=self._settings.allocator_conf,
            versions={"allocator_rules": self._rules.torch_version},
            notes=self._notes(),
        )


class SimObserver:
    """Takes phases and roles from a trainer that tells them.

    Args:
        position: learns the phase.
        memory: learns the roles.
    """

    def __init__(self, position: Position, memory: SimMemory) -> None:
        self._position = position
        self._memory = memory
        self._forwards = 0

    @contextmanager
    def phase(self, phase: Phase, *, iteration: int | None = None, microbatch: int | None = None) -> Iterator[None]:
        """Mark what runs inside; what a forward leaves alive is an activation."""
        forward = phase in {"forward", "loss"}
        self._forwards += forward
        try:
            with self._position.phase(phase, iteration=iteration, microbatch=microbatch):
                yield
        finally:
            self._forwards -= forward
            if forward and not self._forwards:
                self._memory.settle()

    def role(self, role: Role, tensors: Iterable[torch.Tensor]) -> None:
        """Say what the storages of ``tensors`` are for."""
        category = Category[role.upper()]
        for tensor in tensors:
            self._memory.label(local_part(tensor).untyped_storage(), category)


@contextmanager
def _collected_at_known_times() -> Iterator[None]:
    """Keep Python's collector from freeing tensors in reference cycles at times that depend on the process.

    Cycles are collected when an iteration begins, so that two runs give the same trace; neither a program's
    ``gc.enable()`` nor a threshold of its own makes them go at other times, though both together do. What was there
    before, which is torch's modules more than anything, is left out of that: looking through it takes longer than some
    iterations. So does looking for its garbage first; that is left to whoever goes on when this is over. In a process
    that froze what it had by itself all that stays frozen, and the garbage since then, which is soon found, goes first.
    """
    enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    if was_frozen:
        gc.collect()
    else:
        gc.freeze()
    gc.disable()
    try:
        with uncollected():
            yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()
