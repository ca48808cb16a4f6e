"""Where in training the program is: phase, iteration, microbatch, module, Python stack.

The bundled trainer tells its phases through the model's Observer protocol. For a program that tells nothing they
are seen from outside: the root module's forward, ``backward()``, the optimizer's step (see ``watch``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.trace import Frame, Moment

TORCH_DIR = str(Path(torch.__file__).parent)
_PLUMBING = (
    str(Path(__file__).parent),
    f"{TORCH_DIR}/_ops.py",
    f"{TORCH_DIR}/_compile.py",
    f"{TORCH_DIR}/_dynamo/",
    f"{TORCH_DIR}/library.py",
    f"{TORCH_DIR}/_library/",
    f"{TORCH_DIR}/_subclasses/",
    f"{TORCH_DIR}/utils/_python_dispatch.py",
)
"""Frames of the simulation itself, which a run on CUDA would not have."""


class Origin(NamedTuple):
    """Ids, in the trace's builder, of the place an operation was called from."""

    stack: int
    module: int
    stream: int


class Position:
    """The program's position, as ids that the trace's builder interned.

    Args:
        builder: the trace that the ids belong to.
        max_frames: Python frames kept of each stack, innermost first.
    """

    def __init__(self, builder: TraceBuilder, *, max_frames: int) -> None:
        self._builder = builder
        self._max_frames = max_frames
        self._phases: list[tuple[str, int]] = []
        self._implied = ("init", -1)
        self._iteration = -1
        self._modules: list[str] = []
        self._names: dict[int, str] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._codes: dict[int, CodeType] = {}
        self._moment_id: int | None = None

    # When -------------------------------------------------------------------------------------------------

    @property
    def told(self) -> bool:
        """Whether the program itself says in which phase it is."""
        return bool(self._phases)

    @property
    def training(self) -> bool:
        """Whether an iteration runs."""
        return self._iteration >= 0

    @property
    def moment(self) -> Moment:
        """Phase, iteration and microbatch."""
        phase, microbatch = self._phases[-1] if self._phases else self._implied
        return Moment(phase, self._iteration, microbatch)

    @property
    def moment_id(self) -> int:
        """The moment, interned."""
        if self._moment_id is None:
            self._moment_id = self._builder.intern_moment(self.moment)
        return self._moment_id

    @contextmanager
    def phase(self, phase: str, *, iteration: int | None = None, microbatch: int | None = None) -> Iterator[None]:
        """Mark what runs inside; None keeps the enclosing value."""
        before = self._iteration
        if iteration is not None:
            self._iteration = iteration
        self._phases.append((phase, self.moment.microbatch if microbatch is None else microbatch))
        self._moment_id = None
        try:
            yield
        finally:
            self._phases.pop()
            self._iteration = before
            self._moment_id = None

    def imply(self, phase: str, microbatch: int) -> None:
        """Set the phase of a program that does not tell its own."""
        self._implied = (phase, microbatch)
        self._moment_id = None

    @contextmanager
    def iteration(self, index: int) -> Iterator[None]:
        """Mark what runs inside as iteration ``index``."""
        before = self._iteration
        self._iteration = index
        self.imply("forward", 0)
        try:
            yield
        finally:
            self._iteration = before
            self._moment_id = None

    # In which module --------------------------------------------------------------------------------------

    def name_modules(self, model: torch.nn.Module) -> None:
        """Learn the dotted names of ``model``'s modules."""
        for name, module in model.named_modules():
            self._names.setdefault(id(module), name)

    def enter_module(self, module: torch.nn.Module) -> None:
        """Note that ``module``'s forward begins."""
        self._modules.append(self._names.get(id(module)) or (self._modules[-1] if self._modules else ""))

    def leave_module(self) -> None:
        """Note that the innermost module's forward ended, also by an error."""
        if self._modules:
            self._modules.pop()

    @property
    def module_depth(self) -> int:
        """How many forwards are open."""
        return len(self._modules)

    # From which line --------------------------------------------------------------------------------------

    def origin(self, frame: FrameType | None, stream: int) -> Origin:
        """Return where the program is, seen from ``frame`` outwards."""
        module = self._builder.intern_module(self._modules[-1]) if self._modules else 0
        return Origin(self._stack_id(frame), module, stream)

    def _stack_id(self, frame: FrameType | None) -> int:
        """Return the id of the stack of ``frame``, its frames read only at first sight.

        An instruction goes by its address: the bytecode lies inside its code object, so that the code's ``id`` plus
        the offset is an instruction's alone for as long as the code is kept.
        """
        path: list[int] = []
        outer = frame
        while outer is not None:
            path.append(id(outer.f_code) + outer.f_lasti)
            outer = outer.f_back
        known = tuple(path)
        number = self._stacks.get(known)
        if number is None:
            number = self._stacks[known] = self._builder.intern_stack(self._frames(frame))
        return number

    def _frames(self, frame: FrameType | None) -> tuple[Frame, ...]:
        """Return the program's own frames from ``frame`` outwards, and keep the code of all."""
        frames: list[Frame] = []
        while frame is not None:
            code = frame.f_code
            self._codes[id(code)] = code
            if len(frames) < self._max_frames and not code.co_filename.startswith(_PLUMBING):
                frames.append(Frame(code.co_filename, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return tuple(frames)
