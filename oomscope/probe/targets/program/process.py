"""One process of a started program: its steps are counted, its receipt is written, and it is ended after enough.

The program comes first: what goes wrong here is a note in the receipt, never an exception in the program.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch.optim import optimizer as optim
from torch.utils.weak import WeakIdKeyDictionary

from oomscope.errors import MachineUnfitError
from oomscope.probe.recording.blocks import local_part
from oomscope.probe.recording.cards import RealCard
from oomscope.probe.recording.compiled import untraced
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.targets import checkout_imports
from oomscope.probe.targets.program import ending, receipt
from oomscope.probe.targets.program.checkpoints import follow_saves
from oomscope.probe.targets.program.optimizers import LONGEST_WAIT, Optimizers
from oomscope.probe.targets.program.receipt import ProgramSettings, Raised, Receipt, State
from oomscope.probe.targets.program.recording import ProgramRecording

_CHECKPOINTS: Final = "torch/distributed/checkpoint/"
_TUNERS: Final = ("lightning/pytorch/tuner/", "pytorch_lightning/tuner/")
_IN_SEARCH: Final = (
    "the steps measured are the first of Lightning's search for a batch size or learning rate, which goes on to "
    "others: give more --iterations, or turn the search off"
)


class MeasuredProcess:
    """The process as the probe sees it. A fork begins anew as soon as it trains or uses CUDA itself.

    Make and arm it when torch has just been imported.

    Args:
        settings: where receipts go, and how many iterations are enough.
    """

    def __init__(self, settings: ProgramSettings) -> None:
        self._settings = settings
        self._folder = Path(settings.folder)
        self._card: RealCard | None = None
        self._begin()
        if settings.backend == "cuda":
            with self._fit():  # a virtual one is what the environment says
                self._card = RealCard(SessionSettings(gpu=None, limit_bytes=settings.limit_bytes))

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._path = receipt.path_of(self._folder, self._pid)
        self._receipt = Receipt.of_this_process()
        self._parameters = Parameters()
        self._optimizers = Optimizers(self._settings.iterations)
        self._recording: ProgramRecording | None = None
        self._is_finished = False

    def _begin_in_fork(self) -> None:
        self._begin()
        self._receipt.write(self._path)

    def arm(self) -> None:
        """Hook the optimizers, the first use of CUDA, and the ways in which a process ends, and leave a receipt.

        What a version of torch may lack comes first: an error here leaves no receipt, and no hook that writes one.
        """
        self._count_optimizers()
        if torch.backends.cuda.is_built():  # whether there is a device is not asked: that would begin CUDA
            self._stop_after_replays()
            torch.cuda._lazy_call(self._cuda_begins)
        if self._settings.backend == "virtual":
            self._attempt(lambda: follow_saves(torch, self._saved))
        optim.register_optimizer_step_pre_hook(self._before_step)
        optim.register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._process_ends)
        ending.before_hard_exit(self._leaves_hard)
        self._receipt.write(self._path)

    # What the program does ------------------------------------------------------------------------------------

    def _count_optimizers(self) -> None:
        make = optim.Optimizer.__init__

        @functools.wraps(make)
        def counted(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._receipt.optimizers += 1
            self._attempt(lambda: self._optimizers.see(optimizer))

        optim.Optimizer.__init__ = counted  # type: ignore[method-assign, assignment]

    def _stop_after_replays(self) -> None:
        """Let a program end that captured its last step: it may replay it for ever, and steps no optimizer again."""
        replay = torch.cuda.CUDAGraph.replay

        @functools.wraps(replay)
        def replayed(captured: torch.cuda.CUDAGraph) -> None:
            replay(captured)
            self._optimizers.stop_waiting()
            self._stop_if_enough()

        torch.cuda.CUDAGraph.replay = replayed  # type: ignore[method-assign, assignment]

    def _cuda_begins(self) -> None:
        """Take torch's call, in the middle of its initialisation of CUDA: record from here on."""
        with self._fit():
            try:
                self._record()
            except MachineUnfitError:
                raise
            except Exception as error:
                version = self._receipt.torch_version
                what = f"torch {version} cannot be recorded ({type(error).__name__}: {error})"
                raise MachineUnfitError(what, remedy="use a newer torch") from error

    def _record(self) -> None:
        if self._pid != os.getpid():
            self._begin_in_fork()
        if self._recording is None:
            stem = self._path.name.removesuffix(receipt.SUFFIX)
            self._recording = ProgramRecording(
                self._settings,
                self._receipt,
                card=self._card,
                stem=stem,
                on_change=self._write,
                on_iteration=self._iteration_begins,
                on_backward=self._stop_if_enough,
            )
            self._recording.start()
            self._write()

    @untraced
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._pid != os.getpid() and not torch.cuda._is_in_bad_fork():
            self._attempt(self._begin_in_fork)
        if self._pid == os.getpid():
            self._attempt(lambda: self._parameters.see(optimizer))

    @untraced
    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._pid != os.getpid() or _only_makes_states():
            return
        if not self._is_finished:
            self._attempt(lambda: self._stepped(optimizer))
        self._stop_if_enough()

    def _stop_if_enough(self) -> None:
        if self._pid == os.getpid() and self._has_seen_enough and not _is_capturing():
            if not self._is_finished:
                if _is_running(*_TUNERS):
                    self._receipt.notes.append(_IN_SEARCH)
                self._attempt(self._count_unstepped)
            self._finish("stopped")
            ending.stop()

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._receipt.steps += 1
        self._receipt.went_on = True
        if self._optimizers.step(optimizer, self._receipt.backwards):
            self._receipt.iterations = self._optimizers.iterations
            if self._recording is not None:
                self._recording.iteration_ends(self._receipt.iterations)
            self._write()

    def _count_unstepped(self) -> None:
        if self._receipt.iterations >= self._settings.iterations:
            self._receipt.unstepped = self._optimizers.count_late(1)

    def _saved(self, path: str) -> None:
        if self._recording is not None and self._pid == os.getpid() and path not in self._receipt.saved:
            self._receipt.saved.append(path)
            self._write()

    def _iteration_begins(self) -> None:
        self._optimizers.begin_iteration()
        self._stop_if_enough()

    @property
    def _has_seen_enough(self) -> bool:
        most = self._settings.most_backwards
        is_over = self._receipt.iterations >= self._settings.iterations and not self._optimizers.waits
        return is_over or (most is not None and self._receipt.backwards > most)

    # How it ends ----------------------------------------------------------------------------------------------

    def _process_ends(self) -> None:
        """Take the interpreter's call at exit."""
        if self._pid == os.getpid():
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            if isinstance(error, BaseException) and not self._is_finished:
                self._receipt.raised = _raised(error)
            self._finish("ended")
            ending.await_autograd()
            if self._receipt.state == "stopped":
                ending.skip_collection_at_exit()

    def _leaves_hard(self) -> None:
        if self._pid == os.getpid():
            self._finish("ended")

    def _finish(self, state: State) -> None:
        """Write everything that is known, once; nothing is recorded after that."""
        if self._is_finished:
            return
        self._is_finished = True
        self._attempt(self._keep_all)
        self._receipt.state = state
        self._write()

    def _keep_all(self) -> None:
        if self._recording is not None:
            self._recording.finish()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._receipt.rank = torch.distributed.get_rank()
            self._receipt.world_size = torch.distributed.get_world_size()
        if self._optimizers.has_waited:
            more = f"up to {LONGEST_WAIT} iterations were measured instead of {self._settings.iterations}"
            self._receipt.notes.append(f"an optimizer steps less often than the first: {more}")
        self._parameters.look_around()
        self._receipt.parameters_on_cpu = self._parameters.on_cpu
        self._receipt.parameters_on_card = self._parameters.on_card
        self._report_imports()

    def _report_imports(self) -> None:
        found = checkout_imports.imported()
        self._receipt.from_checkout = found.replaced
        self._receipt.notes += found.notes

    def _write(self) -> None:
        self._attempt(lambda: self._receipt.write(self._path))

    @contextmanager
    def _fit(self) -> Iterator[None]:
        """End a process whose card cannot be had; the receipt says why."""
        try:
            yield
        except MachineUnfitError as error:
            self._is_finished = True
            self._receipt.unfit, self._receipt.state = str(error), "ended"
            self._write()
            ending.stop()

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except MachineUnfitError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing that a measurement does may end the program
            self._receipt.notes.append(f"{type(error).__name__}: {error}")


def _is_capturing() -> bool:
    """Whether this thread captures a CUDA graph: nothing may wait for the card then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _only_makes_states() -> bool:
    """Whether this step only makes an optimizer's states: torch.distributed.checkpoint runs one at a rate of 0."""
    return _is_running(_CHECKPOINTS, name="_init_optim_state")


def _is_running(*paths: str, name: str = "") -> bool:
    """Whether this thread is in a function of a file that has one of ``paths``; with ``name`` in one of that name."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if name in ("", code.co_name) and any(path in code.co_filename for path in paths):
            return True
        frame = frame.f_back
    return False


def _raised(error: BaseException) -> Raised:
    """Return what left the main module."""
    from oomscope.probe.analysis.failures import describe, details, refusal_in

    refusal = refusal_in(error)
    return Raised(text=describe(error), details=details(error), refusal=asdict(refusal) if refusal else None)


class Parameters:
    """Bytes of parameters, on the CPU and on the card."""

    def __init__(self) -> None:
        self.on_cpu = 0
        self.on_card = 0
        self._seen: set[int] = set()
        self._optimizers = WeakIdKeyDictionary()

    def see(self, optimizer: torch.optim.Optimizer) -> None:
        """Count what ``optimizer`` steps, at first sight of it."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = None
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._count(parameter)

    def look_around(self) -> None:
        """Count the parameters of every module that is alive; no optimizer may have stepped them."""
        for each in gc.get_objects():
            if type(each) is torch.nn.Parameter:
                self._count(each)

    def _count(self, parameter: torch.Tensor) -> None:
        if id(parameter) in self._seen:
            return
        self._seen.add(id(parameter))
        part = local_part(parameter)
        if part.device.type == "cpu":
            self.on_cpu += part.nbytes
        elif part.device.type == "cuda":
            self.on_card += part.nbytes
