"""Records how one process uses a card: each event of the allocator, where in training it happened, and what for.

PyTorch runs as it is; nothing replaces its allocator, its autograd or its operations. What a report says beyond the
allocator's own history comes from hooks that PyTorch offers (:mod:`~oomscope.probe.recording.hooks`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

import oomscope
from oomscope import virtual
from oomscope.capture import history
from oomscope.capture.history import Listener
from oomscope.probe.machine.environment import INDUCTOR
from oomscope.probe.measurement import Unanswered
from oomscope.probe.recording.blocks import LabelledBlocks
from oomscope.probe.recording.collector import KeptObjects, gc_paused
from oomscope.probe.recording.compiled import graphs_are_unchanged
from oomscope.probe.recording.growing import GrowingContainers
from oomscope.probe.recording.hooks import Follower
from oomscope.probe.recording.position import ForwardStacks, Position, PositionLog
from oomscope.probe.recording.replaced import replaced
from oomscope.probe.recording.values.assumed_values import (
    arguments_are_valid,
    finite_numbers,
    no_skipped_step,
    printed_from_the_host,
    ranks_have_samples,
    redrawn_as_expected,
)
from oomscope.probe.recording.values.choices import choices_are_assumed
from oomscope.probe.recording.values.known_values import values_are_computed, values_are_followed
from oomscope.snapshot.forward_frames import PLACES_KEY, places_document
from oomscope.snapshot.provenance import Refused
from oomscope.snapshot.sites import short_path
from oomscope.snapshot.trace import Frame
from oomscope.virtual.settings import is_computed

_PEAK = ".peak"
_PEAK_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
"""Functions of ``torch._C`` that reset peaks; they take the device."""
_COUNT_RESETS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")
"""Functions of ``torch._C`` that reset counts; they take the device."""
_MOST_LINES: Final = 20
_OWN: Final = str(Path(oomscope.__file__).parent / "probe")
_LIBRARIES: Final = (str(Path(torch.__file__).parent), _OWN, "<")


class Recorder:
    """A recording of this process. Start it once, when CUDA is in use.

    Args:
        is_recorded: record stacks, positions and forward lines of the events; else the bare events alone.
        max_entries: size of the allocator's ring of events.
        max_frames: frames kept of each forward stack.
        device: returns the index of the card that blocks are counted on.
        notes: receives sentences on what was assumed.
    """

    def __init__(
        self,
        *,
        is_recorded: bool,
        max_entries: int,
        max_frames: int,
        device: Callable[[], int],
        notes: list[str],
    ) -> None:
        self._is_recorded = is_recorded
        self._max_entries = max_entries
        self._device = device
        self._notes = notes
        self._pid = os.getpid()
        self._log = None if history.can_mark() else PositionLog(self._moved_on_each, max_entries=max_entries)
        self.position = Position(self._mark if is_recorded else None)
        self.blocks = LabelledBlocks(self.allocations)
        self.growing = GrowingContainers(lambda: torch.cuda.memory_allocated(device()) if is_recorded else 0)
        self._kept = KeptObjects()
        self.follower = Follower(self.position, self.blocks, self.growing, self._kept, notes)
        self._forward = ForwardStacks(self.position, self._kept, max_frames=max_frames)
        self._reset_peaks: dict[int, dict[str, int]] = {}
        self._reset_counts: dict[int, tuple[int, int]] = {}
        self._lines: dict[Frame, None] = {}
        self._not_computed: dict[str, None] = {}
        self._open = ExitStack()
        self.unanswered = Unanswered()
        """What a virtual card could not answer, once the recording is over."""

    def start(
        self,
        on_refusal: Listener,
        *,
        before_hooks: Iterable[AbstractContextManager[None]] = (),
        after_hooks: Iterable[AbstractContextManager[None]] = (),
    ) -> None:
        """Record from now on.

        Args:
            on_refusal: called when the allocator refuses a request of this process; it must not raise.
            before_hooks: entered before the hooks that follow the program.
            after_hooks: entered after them.
        """

        def refused(refusal: Refused) -> None:
            if self._pid == os.getpid():  # a fork may not touch CUDA
                self.follower.label_all()  # notes its own errors
                on_refusal(refusal)

        parts: list[AbstractContextManager[None]] = [history.refusals.notifying(refused), self._statistics_kept()]
        parts.append(graphs_are_unchanged())
        history.start(max_entries=self._max_entries, stacks="python" if self._is_recorded else "none")
        if self._is_recorded:
            parts.append(self._forward.recorded())
            if virtual.is_loaded():
                virtual.on_unknown_read(self._note_unknown_read)
                self._open.callback(self._end_watch)
        if virtual.is_loaded():
            parts += self._values()
        for part in (*parts, *before_hooks, self.follower.installed(), *after_hooks):
            self._open.enter_context(part)
        self.position.announce()

    def _values(self) -> list[AbstractContextManager[None]]:
        """Return what makes values on a virtual card known: all of them, or those that mostly decide."""
        note = self._notes.append
        if is_computed(os.environ):
            return [values_are_computed(self._not_computed)]
        assumed = [no_skipped_step(note), finite_numbers(note), arguments_are_valid(note), redrawn_as_expected()]
        assumed += [ranks_have_samples(), printed_from_the_host()]
        return [*assumed, values_are_followed(), choices_are_assumed(note, _place)]

    def stop(self) -> None:
        """Record no more."""
        self._open.close()
        history.stop()

    def document(self) -> dict[str, Any]:
        """Return the history so far, in torch's schema, with the forward lines of backward."""
        if self._log is None:
            document = history.document()
        else:
            with gc_paused():  # a collection would free blocks while torch makes the document
                counts = self._moved_on_each()
                document = history.document()
            self._log.mark(document["device_traces"], counts)
        return document | {PLACES_KEY: places_document(self._forward.places)}

    def allocations(self, device: int | None = None) -> int:
        """Return how many blocks the allocator has handed out, of the card that is recorded unless another is named.

        0 before CUDA is used.
        """
        return self._moved(self._device() if device is None else device)[0]

    def stats(self, device: int) -> dict[str, int]:
        """Return the allocator's statistics, with peaks of the whole run, also of a program that resets them.

        Empty where ``device`` was not used.
        """
        now = {name: int(value) for name, value in torch.cuda.memory_stats(device).items()}
        before = self._reset_peaks.get(device, {})
        return {name: max(value, before.get(name, 0)) if name.endswith(_PEAK) else value for name, value in now.items()}

    def _mark(self, text: str) -> None:
        if self._pid != os.getpid():  # a fork may not touch CUDA
            return
        if self._log is None:
            history.mark(text)
        else:
            self._log.note(text)

    def _statistics_kept(self) -> AbstractContextManager[None]:
        """Remember the peaks and counts that the program resets while the block runs."""

        def noted(reset: Callable[[Any], None], device: Any) -> None:
            self._reset_peaks[int(device)] = self.stats(int(device))
            reset(device)

        def counted(reset: Callable[[Any], None], device: Any) -> None:
            self._reset_counts[int(device)] = self._moved(int(device))
            reset(device)

        resets = [(name, noted) for name in _PEAK_RESETS] + [(name, counted) for name in _COUNT_RESETS]
        known = [(name, instead) for name, instead in resets if hasattr(torch._C, name)]
        return replaced([(torch._C, name, partial(instead, getattr(torch._C, name))) for name, instead in known])

    def _moved(self, device: int) -> tuple[int, int]:
        """Return how many blocks the allocator handed out and was given back, whatever the program reset."""
        (out, back), (more_out, more_back) = history.blocks_moved(device), self._reset_counts.get(device, (0, 0))
        return out + more_out, back + more_back

    def _moved_on_each(self) -> list[int]:
        return [sum(self._moved(device)) for device in range(torch.cuda.device_count())]

    def _note_unknown_read(self, size: int) -> None:
        if len(self._lines) < _MOST_LINES:
            line = _line_of(sys._getframe().f_back)  # None on a thread of autograd
            if line is not None:
                self._lines[line] = None

    def _end_watch(self) -> None:
        virtual.on_unknown_read(None)
        state = virtual.state()
        self.unanswered = Unanswered(
            reads=state.unknown_reads,
            lines=tuple(self._lines),
            unsupported=state.unsupported,
            unknown_workspaces=state.unknown_workspaces,
            not_computed=tuple(self._not_computed),
        )


def _place() -> str | None:
    """Return the line of the program that runs now, for a note; None on a thread of autograd."""
    line = _line_of(sys._getframe().f_back)
    return line and f"{short_path(line.filename)}:{line.line}"


def _line_of(frame: FrameType | None) -> Frame | None:
    """Return the innermost line outside torch and outside code that inductor wrote; else the innermost one of torch.

    None on a thread that runs no Python but oomscope's.
    """
    inductor = os.environ.get(INDUCTOR) or "<"
    chosen: FrameType | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_LIBRARIES, inductor)):
            chosen = frame
            break
        if chosen is None and not file.startswith(_OWN):
            chosen = frame
        frame = frame.f_back
    return chosen and Frame(chosen.f_code.co_filename, chosen.f_lineno or 0, chosen.f_code.co_name)
