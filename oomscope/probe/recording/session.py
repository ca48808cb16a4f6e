"""One recorded run on a card: the allocator's own history, on a real card and on a virtual one alike.

PyTorch runs as it is; nothing replaces its allocator, its autograd or its operations. What a report says beyond the
history is told by hooks that PyTorch offers (:mod:`~oomscope.probe.recording.hooks`).

The worker builds the target inside ``with session:``, runs each step inside ``with session.iteration(i):`` and asks for
the :class:`~oomscope.probe.measurement.Measurement` after the session was left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch

from oomscope.capture import history
from oomscope.capture.history import Refusal
from oomscope.errors import NothingOnDeviceError
from oomscope.model.base.observer import Phase, Role
from oomscope.probe.measurement import Measurement
from oomscope.probe.recording.blocks import ToldBlocks
from oomscope.probe.recording.cards import PlayedCard
from oomscope.probe.recording.finite import no_step_skipped, numbers_are_finite
from oomscope.probe.recording.forward_stacks import ForwardStacks
from oomscope.probe.recording.hooks import Follower
from oomscope.probe.recording.known_counts import counts_are_known
from oomscope.probe.recording.known_integers import compiled_constants_are_known, integers_are_followed
from oomscope.probe.recording.peaks import Peaks
from oomscope.probe.recording.position import Position
from oomscope.probe.recording.reading import Recorded, RecordedRefusal
from oomscope.probe.recording.redrawn import redrawn_as_expected
from oomscope.probe.recording.settings import Modules, Optimizers, SessionSettings, listed
from oomscope.probe.recording.unknown_reads import CardWatch
from oomscope.snapshot.event_fields import PLACES_KEY, places_document
from oomscope.snapshot.read.schema import snapshot_of
from oomscope.snapshot.trace import Category, Moment

INDEX = 0
"""The device of a probed process."""


class Session:
    """A recorded run on ``cuda:0``. Use it once, in a process that has not used CUDA yet.

    Args:
        settings: the ring's size and the allocator's configuration.
        card: the card, made before anything of the target was imported.
    """

    def __init__(self, settings: SessionSettings, card: PlayedCard) -> None:
        self._settings = settings
        self._card = card
        self.device = torch.device("cuda", INDEX)
        self._position = Position(history.mark if history.can_mark() else None)
        self._blocks = ToldBlocks(_allocations)
        self._follower = Follower(self._position, self._blocks)
        self._forward = ForwardStacks(self._position, max_frames=settings.max_frames)
        self.observer = RecordedObserver(self._position, self._blocks)
        self._failure: tuple[Refusal, Moment, Any] | None = None
        self._steps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._watch = CardWatch()
        self._peaks = Peaks()
        self._open = ExitStack()
        self._notes: list[str] = []
        if not history.can_mark():
            self._notes.append("this torch cannot mark allocations, so phases are unknown")

    def __enter__(self) -> Self:
        """Begin to use the card, set the limit and start to record."""
        self._budget = self._card.begin(INDEX)
        torch.cuda.memory.reset_peak_memory_stats(INDEX)
        self._open.enter_context(self._peaks.kept())
        self._open.enter_context(history.refusals.heard_by(self._out_of_memory))
        if self._settings.is_recorded:
            history.start(max_entries=self._settings.max_entries)
            self._open.enter_context(self._watch.watching())
            self._open.enter_context(self._forward.recorded())
        self._open.enter_context(no_step_skipped(self._notes.append))
        self._open.enter_context(numbers_are_finite(self._notes.append))
        self._open.enter_context(integers_are_followed())
        self._open.enter_context(compiled_constants_are_known())
        self._open.enter_context(counts_are_known())
        self._open.enter_context(redrawn_as_expected())
        self._open.enter_context(self._follower.installed())
        self._position.announce()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Stop to record. Errors pass through."""
        torch.cuda.synchronize(INDEX)
        self._document = self._snapshot()
        self._allocated = _allocations()
        history.stop()
        self._open.close()
        self._stats = self._peaks.stats(INDEX)
        self._budget = self._budget.under(history.memory_fraction(INDEX))
        self._pinned = history.pinned_peak()
        self._notes.extend(self._card.end(int(self._stats["reserved_bytes.all.current"])))

    @contextmanager
    def iteration(self, index: int) -> Iterator[None]:
        """Mark what runs inside as iteration ``index`` and time it on the device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._follower.iteration_begins(index)
        start.record()
        yield
        end.record()
        end.synchronize()
        self._steps.append((start, end))
        self._follower.label()
        if not _allocations():
            raise NothingOnDeviceError(
                "the target put nothing on the card", remedy="build model and data on ctx.device"
            )

    def watch(self, model: Modules, optimizer: Optimizers) -> None:
        """Tell parameters, gradients, optimizer states, modules and phases of the target."""
        self._follower.watch(listed(model), listed(optimizer))

    def measurement(self) -> Measurement:
        """Return what was recorded."""
        recorded = Recorded(
            snapshot=snapshot_of(self._document, where="torch.cuda.memory._snapshot()"),
            index=INDEX,
            told=self._blocks.told,
            allocations=self._allocated,
            workspaces=history.workspace_sizes(),
            stats=self._stats,
            refusal=self._refusal(),
            max_entries=self._settings.max_entries,
        )
        measured = recorded.measurement(self._budget)
        if measured.allocator_conf != self._settings.allocator_conf:
            own = measured.allocator_conf or "its defaults"
            self._notes.append(f"the target itself sets its allocator to {own}: that is what was measured")
        return replace(
            measured,
            pinned_bytes=self._pinned,
            unanswered=self._watch.seen,
            step_times_s=self._step_times(),
            versions={"cuda": str(torch.version.cuda)} | self._card.versions(),
            notes=tuple(self._notes),
        )

    def _step_times(self) -> tuple[float, ...]:
        """Return the device time of each iteration; nothing of a card that computes nothing."""
        if not self._card.has_clock:
            return ()
        return tuple(start.elapsed_time(end) / 1000 for start, end in self._steps)

    def _snapshot(self) -> dict[str, Any]:
        return history.document() | {PLACES_KEY: places_document(self._forward.places)}

    def _out_of_memory(self, refusal: Refusal) -> None:
        """Keep the segments as they stand; torch says this at the failing allocation, before it raises."""
        if refusal.device == INDEX:
            self._failure = (refusal, self._position.moment, self._snapshot())

    def _refusal(self) -> RecordedRefusal | None:
        if self._failure is None:
            return None
        refusal, moment, document = self._failure
        then = snapshot_of(document, where="torch.cuda.memory._snapshot() at the failure")
        return RecordedRefusal(
            requested_bytes=refusal.requested_bytes, free_bytes=refusal.free_bytes, moment=moment, snapshot=then
        )


def _allocations() -> int:
    """Return how many blocks the allocator has handed out; 0 before CUDA is used."""
    return history.allocations(INDEX)


class RecordedObserver:
    """An observer of a run on a card.

    Args:
        position: learns the phase.
        blocks: learns the roles.
    """

    def __init__(self, position: Position, blocks: ToldBlocks) -> None:
        self._position = position
        self._blocks = blocks

    def phase(
        self, phase: Phase, *, iteration: int | None = None, microbatch: int | None = None
    ) -> AbstractContextManager[None]:
        """Mark what runs inside; None keeps the enclosing value."""
        return self._position.phase(phase, iteration=iteration, microbatch=microbatch)

    def role(self, role: Role, tensors: Iterable[torch.Tensor]) -> None:
        """Say what the storages of ``tensors`` are for."""
        self._blocks.tell(Category[role.upper()], tensors)
