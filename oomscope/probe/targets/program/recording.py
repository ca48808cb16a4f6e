"""What is recorded of one process of a program while it uses the card.

Positions, roles and forward stacks are followed as in a probe of a harness; only iterations are told by the program's
optimizers, and what was recorded goes into files.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.autograd import graph
from torch.nn.modules import module as module_hooks

from oomscope import virtual
from oomscope.capture import history
from oomscope.capture.history import Refusal
from oomscope.probe.machine.environment import ALLOCATOR_VARIABLES
from oomscope.probe.recording.blocks import ToldBlocks
from oomscope.probe.recording.cards import RealCard, check_kernels
from oomscope.probe.recording.finite import no_step_skipped, numbers_are_finite
from oomscope.probe.recording.forward_stacks import ForwardStacks
from oomscope.probe.recording.hooks import Follower
from oomscope.probe.recording.known_counts import counts_are_known
from oomscope.probe.recording.known_integers import compiled_constants_are_known, integers_are_followed
from oomscope.probe.recording.peaks import Peaks
from oomscope.probe.recording.position import Position
from oomscope.probe.recording.redrawn import redrawn_as_expected
from oomscope.probe.recording.unknown_reads import CardWatch
from oomscope.probe.targets.program.receipt import Receipt, Refused
from oomscope.probe.targets.program.settings import ProgramSettings
from oomscope.snapshot.event_fields import PLACES_KEY, places_document
from oomscope.virtual.cards import find_card


class ProgramRecording:
    """A recording of this process, from the moment that CUDA is initialised.

    Args:
        settings: the ring's size, and where files go.
        card: a real card, weighed before the program was imported; None for a virtual one.
        receipt: told what is learnt.
        stem: how the names of its files begin.
        on_change: called when the receipt says something new.
        on_backward: called when a backward pass is over.
    """

    def __init__(
        self,
        settings: ProgramSettings,
        receipt: Receipt,
        *,
        card: RealCard | None,
        stem: str,
        on_change: Callable[[], None],
        on_backward: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._card = card
        self._receipt = receipt
        self._stem = stem
        self._on_change = on_change
        self._on_backward = on_backward
        self._pid = os.getpid()
        self._position = Position(self._mark if history.can_mark() else None)
        self._blocks = ToldBlocks(_allocations)
        self._follower = Follower(self._position, self._blocks)
        self._forward = ForwardStacks(self._position, max_frames=settings.max_frames)
        self._peaks = Peaks()
        self._watch = CardWatch()
        self._iteration = 0
        self._is_between = True
        self._open = ExitStack()

    def start(self) -> None:
        """Start to record.

        Raises:
            MachineUnfitError: the card cannot be of the size that was asked for, or this torch has no kernels for it.
        """
        if self._settings.card is not None and self._card is None:
            check_kernels(find_card(self._settings.card), str(torch._C._cuda_getArchFlags() or "").split())
        self._receipt.is_cuda_initialised = True
        self._receipt.devices = torch.cuda.device_count()
        if self._card is not None:
            self._receipt.budget = asdict(self._card.begin(_own_device(self._receipt.devices)))
        conf = (os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ)
        self._receipt.allocator_conf = next(conf, "")
        if self._settings.is_recorded:
            history.start(max_entries=self._settings.max_entries)
            self._open.enter_context(self._watch.watching())
            self._open.enter_context(self._forward.recorded())
        for part in (
            history.refusals.heard_by(self._refused),
            self._peaks.kept(),
            self._own_history_kept(),
            no_step_skipped(self._receipt.notes.append),
            numbers_are_finite(self._receipt.notes.append),
            integers_are_followed(),
            compiled_constants_are_known(),
            counts_are_known(),
            redrawn_as_expected(),
            self._iterations_begun(),
            self._follower.installed(),
            self._progress_noted(),
        ):
            self._open.enter_context(part)
        self._position.announce()

    def iteration_ends(self, complete: int) -> None:
        """Note that ``complete`` iterations are over; the next begins with the next forward of a model."""
        self._iteration, self._is_between = complete, True

    def finish(self) -> None:
        """Wait for the card, then write what was recorded; nothing is recorded after that."""
        index = max(range(self._receipt.devices or 1), key=lambda each: _peak(self._peaks.stats(each)))
        torch.cuda.synchronize(index)
        self._follower.label()
        self._receipt.device = index
        self._receipt.snapshot = self._write("end")
        self._receipt.stats = self._peaks.stats(index)
        self._receipt.workspaces = sorted(history.workspace_sizes())
        self._receipt.fraction = history.memory_fraction(index)
        self._receipt.pinned_bytes = history.pinned_peak()
        self._open.close()
        history.stop()
        self._receipt.unanswered = asdict(self._watch.seen)
        major, minor = torch.cuda.get_device_capability(index)
        self._receipt.versions = {"capability": f"{major}.{minor}"}
        if self._card is not None:
            self._receipt.versions |= self._card.versions()
            self._receipt.notes += self._card.end(self._receipt.stats["reserved_bytes.all.current"])

    # Iterations -----------------------------------------------------------------------------------------------

    @contextmanager
    def _iterations_begun(self) -> Iterator[None]:
        """Let an iteration begin with the first forward of a model after a step; installed before the follower."""
        handle = module_hooks.register_module_forward_pre_hook(self._before_forward)
        try:
            yield
        finally:
            handle.remove()

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._is_between and next(module.parameters(), None) is not None:
            self._begin_iteration()

    def _begin_iteration(self) -> None:
        if self._is_between and self._pid == os.getpid():
            self._is_between = False
            self._follower.iteration_begins(self._iteration)

    @contextmanager
    def _progress_noted(self) -> Iterator[None]:
        """Count backward passes, and note forwards that are complete; installed after the follower."""
        engine = graph._engine_run_backward

        def counted(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return engine(*args, **kwargs)
            self._begin_iteration()
            self._receipt.backwards += 1
            result = engine(*args, **kwargs)
            self._on_backward()
            return result

        handle = module_hooks.register_module_forward_hook(self._after_forward)
        graph._engine_run_backward = torch.autograd._engine_run_backward = counted  # type: ignore[attr-defined]
        try:
            yield
        finally:
            graph._engine_run_backward = torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]
            handle.remove()

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._position.module_depth == 0:
            self._receipt.went_on = True

    def _mark(self, text: str) -> None:
        if self._pid == os.getpid():  # a fork may not touch CUDA
            history.mark(text)

    # What is kept ---------------------------------------------------------------------------------------------

    @contextmanager
    def _own_history_kept(self) -> Iterator[None]:
        """Keep a program that records its allocator itself from clearing or ending this recording."""
        record = torch.cuda.memory._record_memory_history

        def ignored(*args: Any, **kwargs: Any) -> None:
            note = "the program's own torch.cuda.memory._record_memory_history was not called: the probe records"
            if note not in self._receipt.notes:
                self._receipt.notes.append(note)

        torch.cuda.memory._record_memory_history = ignored
        try:
            yield
        finally:
            torch.cuda.memory._record_memory_history = record

    def _refused(self, refusal: Refusal) -> None:
        """Keep the segments as they stand; torch says this at the failing allocation, before it raises.

        An exception here would take the place of the one that the program is to see.
        """
        if self._pid != os.getpid():
            return
        self._receipt.refusals += 1
        self._receipt.went_on = False
        try:
            snapshot = self._write("oom")
        except Exception as error:  # noqa: BLE001
            self._receipt.notes.append(f"the failing allocation was not recorded: {type(error).__name__}: {error}")
            snapshot = ""
        moment = list(self._position.moment)
        held = virtual.state().used_bytes if virtual.is_loaded() else 0
        self._receipt.refused = Refused(**refusal._asdict(), moment=moment, held_bytes=held, snapshot=snapshot)
        self._on_change()

    def _write(self, tag: str) -> str:
        """Write the history, and what was told of its blocks; return the snapshot's file, empty where it failed."""
        path = Path(self._settings.folder, f"{self._stem}.{tag}.pickle")
        document = history.document() | {PLACES_KEY: places_document(self._forward.places)}
        told = {"told": self._blocks.told, "allocations": _allocations()}
        try:
            with path.open("wb") as file:
                pickle.dump(document, file, protocol=4)
            path.with_suffix(".json").write_text(json.dumps(told))
        except OSError as error:
            self._receipt.notes.append(f"no snapshot could be written: {error.strerror}")
            return ""
        return str(path)


def _own_device(devices: int) -> int:
    """Return the card that this process will use: launchers tell it before the program chooses one."""
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) if local.isdecimal() and int(local) < devices else 0


def _allocations() -> int:
    return history.allocations(torch.cuda.current_device())


def _peak(stats: dict[str, int]) -> int:
    return stats.get("allocated_bytes.all.peak", 0)
