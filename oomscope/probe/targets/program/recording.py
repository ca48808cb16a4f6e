"""What is recorded of one process of a program while it uses the card.

It is recorded as a target of a harness is; only iterations are told by the program's optimizers, and what was recorded
goes into files.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.modules import module as module_hooks

from oomscope import virtual
from oomscope.capture import history
from oomscope.probe.recording.cards import RealCard, check_kernels
from oomscope.probe.recording.hooks import parameters
from oomscope.probe.recording.recorder import Recorder
from oomscope.probe.recording.replaced import backward_through, replaced
from oomscope.probe.targets.program.receipt import ProgramSettings, Receipt, Refused
from oomscope.snapshot import provenance
from oomscope.virtual.cards import find_card

_NOT_RECORDED = "the program's own torch.cuda.memory._record_memory_history was not called: the probe records"


class ProgramRecording:
    """A recording of this process, from the moment that CUDA is initialised.

    Args:
        settings: the ring's size, and where files go.
        receipt: told what is learnt.
        card: a real card, weighed before the program was imported; None for a virtual one.
        stem: how the names of its files begin.
        on_change: called when the receipt says something new.
        on_iteration: called when an iteration begins.
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
        on_iteration: Callable[[], None],
        on_backward: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._card = card
        self._receipt = receipt
        self._stem = stem
        self._on_change = on_change
        self._on_iteration = on_iteration
        self._on_backward = on_backward
        self._pid = os.getpid()
        self._recorder = Recorder(
            is_recorded=settings.is_recorded,
            max_entries=settings.max_entries,
            max_frames=settings.max_frames,
            device=torch.cuda.current_device,
            notes=receipt.notes,
        )
        self._iteration = 0
        self._is_between = True

    def start(self) -> None:
        """Start to record.

        Raises:
            MachineUnfitError: the card cannot be of the size that was asked for, or this torch has no kernels for it.
        """
        if self._settings.card is not None and self._card is None:
            check_kernels(find_card(self._settings.card), str(torch._C._cuda_getArchFlags() or "").split())
        self._receipt.is_cuda_initialised = True
        self._receipt.devices = torch.cuda.device_count()
        self._receipt.visible_cards = os.environ.get("CUDA_VISIBLE_DEVICES", "")  # later changes are for children
        if self._card is not None:
            self._receipt.budget = asdict(self._card.begin(_own_device(self._receipt.devices)))
        self._recorder.start(
            self._refused,
            before_hooks=(self._own_history_kept(), self._iterations_begun()),
            after_hooks=(self._progress_noted(),),
        )

    def iteration_ends(self, complete: int) -> None:
        """Note that ``complete`` iterations are over; the next begins with the next forward of a model."""
        self._iteration, self._is_between = complete, True

    def finish(self) -> None:
        """Wait for the card, then write what was recorded; nothing is recorded after that."""
        receipt, recorder = self._receipt, self._recorder
        stats = [recorder.stats(device) for device in range(receipt.devices or 1)]
        receipt.card_peaks = [each.get("reserved_bytes.all.peak", 0) for each in stats]
        if virtual.is_loaded():
            receipt.most_held = [virtual.most_held(device) for device in range(len(stats))]
        index = self._reported_card(stats)
        torch.cuda.synchronize(index)
        recorder.follower.label_all()
        receipt.device = index
        receipt.snapshot = self._write("end", index)
        receipt.stats = recorder.stats(index)
        receipt.workspaces = sorted(history.workspace_sizes())
        receipt.fraction = history.memory_fraction(index)
        receipt.pinned_bytes = history.pinned_peak()
        receipt.growing = list(recorder.growing.names)
        recorder.stop()
        receipt.unanswered = asdict(recorder.unanswered)
        major, minor = torch.cuda.get_device_capability(index)
        receipt.versions = {"capability": f"{major}.{minor}"}
        if self._card is not None:
            receipt.versions |= self._card.versions()
            receipt.notes += self._card.end(receipt.stats["reserved_bytes.all.current"])

    def _reported_card(self, stats: Sequence[Mapping[str, int]]) -> int:
        if self._settings.device is not None:
            return self._settings.device
        if self._receipt.refused is not None and self._receipt.ran_out:
            return self._receipt.refused.device
        kinds = ("reserved", "allocated")
        return max(range(len(stats)), key=lambda each: [stats[each].get(f"{kind}_bytes.all.peak", 0) for kind in kinds])

    # Iterations -----------------------------------------------------------------------------------------------

    @contextmanager
    def _iterations_begun(self) -> Iterator[None]:
        """Let an iteration begin with the first forward of a model after a step."""
        handle = module_hooks.register_module_forward_pre_hook(self._before_forward)
        try:
            yield
        finally:
            handle.remove()

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        with self._recorder.follower.unharmed():
            if self._is_between and next(parameters(module), None) is not None:
                self._begin_iteration()

    def _begin_iteration(self) -> None:
        if self._is_between and self._pid == os.getpid():
            self._is_between = False
            self._on_iteration()
            self._recorder.follower.iteration_begins(self._iteration)

    @contextmanager
    def _progress_noted(self) -> Iterator[None]:
        """Count backward passes, and note forwards that are complete."""
        engine = Variable._execution_engine.run_backward

        def counted(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return engine(*args, **kwargs)
            self._begin_iteration()
            self._receipt.backwards += 1
            result = engine(*args, **kwargs)
            self._on_backward()
            return result

        handle = module_hooks.register_module_forward_hook(self._after_forward)
        try:
            with backward_through(counted):
                yield
        finally:
            handle.remove()

    def _after_forward(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._recorder.position.module_depth == 0:
            self._receipt.went_on = True

    # What is kept ---------------------------------------------------------------------------------------------

    def _own_history_kept(self) -> AbstractContextManager[None]:
        """Keep a program that records its allocator itself from clearing or ending this recording."""

        def ignored(*args: Any, **kwargs: Any) -> None:
            if _NOT_RECORDED not in self._receipt.notes:
                self._receipt.notes.append(_NOT_RECORDED)

        return replaced([(torch.cuda.memory, "_record_memory_history", ignored)])

    def _refused(self, refusal: provenance.Refused) -> None:
        """Keep the segments of this moment; torch calls this at the failing allocation, before it raises.

        An exception here would take the place of the one that the program is to see.
        """
        self._receipt.went_on = False
        try:
            snapshot = self._write("oom", refusal.device)
        except Exception as error:  # noqa: BLE001
            self._receipt.notes.append(f"the failing allocation was not recorded: {type(error).__name__}: {error}")
            snapshot = ""
        moment = list(self._recorder.position.moment)
        held = 0
        if virtual.is_loaded():
            others = (each for each in range(self._receipt.devices or 1) if each != refusal.device)
            held = virtual.state().used_bytes - sum(map(torch.cuda.memory_reserved, others))
        stats = self._recorder.stats(refusal.device)
        self._receipt.refused = Refused(**vars(refusal), moment=moment, held_bytes=held, snapshot=snapshot, stats=stats)
        self._on_change()

    def _write(self, tag: str, device: int) -> str:
        """Write the history, and the labels of a card's blocks; return the snapshot's file, empty if that failed."""
        path = Path(self._settings.folder, f"{self._stem}.{tag}.pickle")
        labels = {"labels": self._recorder.blocks.labels, "allocations": self._recorder.allocations(device)}
        try:
            with path.open("wb") as file:
                pickle.dump(self._recorder.document(), file, protocol=4)
            path.with_suffix(".json").write_text(json.dumps(labels))
        except OSError as error:
            self._receipt.notes.append(f"no snapshot could be written: {error.strerror}")
            return ""
        return str(path)


def _own_device(devices: int) -> int:
    """Return the card that this process will use: launchers set it before the program chooses one."""
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) if local.isdecimal() and int(local) < devices else 0
