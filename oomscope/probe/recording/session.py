"""One recorded run of a target in this process, on a real card or on a virtual one.

The worker builds the target inside ``with session:``, runs each step inside ``with session.iteration(i):`` and asks for
the :class:`~oomscope.probe.measurement.Measurement` after the session was left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeAlias

import torch

from oomscope.capture import history
from oomscope.errors import NothingOnDeviceError
from oomscope.model.base.observer import Phase, Role
from oomscope.probe.measurement import Measurement, Unanswered
from oomscope.probe.recording.cards import RealCard, VirtualCard
from oomscope.probe.recording.reading import RecordedRefusal, measurement_of
from oomscope.probe.recording.recorder import Recorder
from oomscope.probe.recording.settings import SessionSettings, listed
from oomscope.snapshot.provenance import Refused
from oomscope.snapshot.read.build_snapshot import snapshot_of
from oomscope.snapshot.trace import Category, Moment

INDEX = 0
"""The device of a probed process."""
Modules: TypeAlias = "torch.nn.Module | list[torch.nn.Module] | None"
Optimizers: TypeAlias = "torch.optim.Optimizer | list[torch.optim.Optimizer] | None"


class Session:
    """A recorded run on ``cuda:0``. Use it once, in a process that has not used CUDA yet.

    Args:
        settings: the ring's size and the allocator's configuration.
        card: the card, made before anything of the target was imported.
    """

    def __init__(self, settings: SessionSettings, card: RealCard | VirtualCard) -> None:
        self._settings = settings
        self._card = card
        self.device = torch.device("cuda", INDEX)
        self._notes: list[str] = []
        self._recorder = Recorder(
            is_recorded=settings.is_recorded,
            max_entries=settings.max_entries,
            max_frames=settings.max_frames,
            device=lambda: INDEX,
            notes=self._notes,
        )
        self._failure: tuple[Refused, Moment, Any] | None = None
        self._steps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> Self:
        """Begin to use the card, set the limit and start to record."""
        self._budget = self._card.begin(INDEX)
        torch.cuda.memory.reset_peak_memory_stats(INDEX)
        self._recorder.start(self._out_of_memory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Stop to record. Errors pass through."""
        torch.cuda.synchronize(INDEX)
        self._document = self._recorder.document()
        self._allocated = self._recorder.allocations()
        self._stats = self._recorder.stats(INDEX)
        self._recorder.stop()
        self._budget = self._budget.under(history.memory_fraction(INDEX))
        self._pinned = history.pinned_peak()
        self._notes.extend(self._card.end(self._stats["reserved_bytes.all.current"]))

    @contextmanager
    def iteration(self, index: int) -> Iterator[None]:
        """Mark what runs inside as iteration ``index`` and time it on the device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._recorder.follower.iteration_begins(index)
        start.record()
        yield
        end.record()
        end.synchronize()
        self._steps.append((start, end))
        self._recorder.follower.label()
        if not self._recorder.allocations():
            raise NothingOnDeviceError(
                "the target put nothing on the card", remedy="build model and data on ctx.device"
            )

    def watch(self, model: Modules, optimizer: Optimizers) -> None:
        """Follow parameters, gradients, optimizer states, modules and phases of the target."""
        self._recorder.follower.watch(listed(model), listed(optimizer))

    def phase(
        self, phase: Phase, *, iteration: int | None = None, microbatch: int | None = None
    ) -> AbstractContextManager[None]:
        """Mark what runs inside, as an observer of the bundled transformer does; None keeps the enclosing value."""
        return self._recorder.position.phase(phase, iteration=iteration, microbatch=microbatch)

    def role(self, role: Role, tensors: Iterable[torch.Tensor]) -> None:
        """Label the storages of ``tensors`` with ``role``, as an observer does."""
        self._recorder.blocks.label(Category[role.upper()], tensors)

    @property
    def unanswered(self) -> Unanswered:
        """What a virtual card did not know until recording ended."""
        return self._recorder.unanswered

    def measurement(self) -> Measurement:
        """Return what was recorded."""
        measured = measurement_of(
            snapshot_of(self._document, where="torch.cuda.memory._snapshot()"),
            self._budget,
            index=INDEX,
            labels=self._recorder.blocks.labels,
            allocations=self._allocated,
            workspaces=history.workspace_sizes(),
            torch_version=torch.__version__,
            stats=self._stats,
            refusal=self._refusal(),
            max_entries=self._settings.max_entries,
        )
        if measured.allocator_conf != self._settings.allocator_conf:
            own = measured.allocator_conf or "its defaults"
            self._notes.append(f"the target itself sets its allocator to {own}: that is what was measured")
        steps = self._steps if self._card.has_clock else []
        return replace(
            measured,
            pinned_bytes=self._pinned,
            unanswered=self.unanswered,
            growing=self._recorder.growing.names,
            step_times_s=tuple(start.elapsed_time(end) / 1000 for start, end in steps),
            versions={"torch": torch.__version__, "cuda": str(torch.version.cuda)} | self._card.versions(),
            notes=tuple(self._notes),
        )

    def _out_of_memory(self, refusal: Refused) -> None:
        """Keep the segments of this moment; torch calls this at the failing allocation, before it raises."""
        if refusal.device == INDEX:
            self._failure = (refusal, self._recorder.position.moment, self._recorder.document())

    def _refusal(self) -> RecordedRefusal | None:
        if self._failure is None:
            return None
        refusal, moment, document = self._failure
        return RecordedRefusal(
            requested_bytes=refusal.requested_bytes,
            free_bytes=refusal.free_bytes,
            moment=moment,
            snapshot=snapshot_of(document, where="torch.cuda.memory._snapshot() at the failure"),
        )
