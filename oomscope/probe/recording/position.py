"""Where in training the program is: phase, iteration, microbatch, module. Every event of the allocator carries it.

The text travels in ``user_metadata`` of the events, which torch keeps a thread; so whoever changes the position says
so on the thread that goes on allocating.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final

import torch
import torch.fx.traceback
from torch.autograd import Variable

from oomscope.probe.recording.collector import KeptObjects
from oomscope.probe.recording.replaced import Place, backward_through, creates_graph, replaced, replaced_in
from oomscope.snapshot.forward_frames import number_text
from oomscope.snapshot.metadata import Metadata, to_text
from oomscope.snapshot.trace import Category, Frame, Moment, Stack

_COUNTED: Final = ("alloc", "free_requested")
"""Events that the allocator's statistics count when they happen (PyTorch, ``CUDACachingAllocator.cpp``)."""

_TRACE_KEY: Final = "traceback_"
"""Key of a node's metadata for the answer of ``format_stack`` (PyTorch, ``python_anomaly_mode.h``)."""


class Position:
    """The program's position, announced whenever it changes.

    Args:
        announce: takes the text that goes with every following event of the calling thread; None where torch has no
            such thing.
    """

    def __init__(self, announce: Callable[[str], None] | None) -> None:
        self._announce = announce
        self._set_by_program: list[Moment] = []
        self._implied = Moment("init", -1, -1)
        self._modules: list[str] = []
        self._texts: dict[str, str] = {}
        """Texts of positions, by a text: Python's collector, which counts tuples, runs as without oomscope."""

    @property
    def moment(self) -> Moment:
        """Phase, iteration and microbatch."""
        return self._set_by_program[-1] if self._set_by_program else self._implied

    @property
    def is_set_by_program(self) -> bool:
        """Whether the program itself sets its phase."""
        return bool(self._set_by_program)

    @property
    def is_training(self) -> bool:
        """Whether an iteration runs."""
        return self.moment.iteration >= 0

    @property
    def module(self) -> str:
        """The dotted name of the innermost module whose forward runs; empty where none does or it has no name."""
        return self._modules[-1] if self._modules else ""

    @property
    def module_depth(self) -> int:
        """How many forwards run inside each other."""
        return len(self._modules)

    def announce(self) -> None:
        """Let what the calling thread allocates from now on carry the position."""
        if self._announce is not None:
            self._announce(self._text())

    @contextmanager
    def phase(self, phase: str, *, iteration: int | None = None, microbatch: int | None = None) -> Iterator[None]:
        """Set the phase of what runs inside, as the program reports it; None keeps the enclosing value."""
        outer, depth = self.moment, len(self._set_by_program)
        self._set_by_program.append(
            Moment(
                phase,
                outer.iteration if iteration is None else iteration,
                outer.microbatch if microbatch is None else microbatch,
            )
        )
        self.announce()
        try:
            yield
        finally:
            del self._set_by_program[depth:]
            self.announce()

    def imply(self, phase: str, *, iteration: int | None = None, microbatch: int = -1) -> None:
        """Set the phase of a program that does not report its own; None keeps the iteration."""
        number = self._implied.iteration if iteration is None else iteration
        self._implied = Moment(phase, number, microbatch)
        self.announce()

    def enter_module(self, name: str) -> None:
        """Note that a module's forward begins; one without a name goes by the module round it."""
        self._modules.append(name or self.module)
        self.announce()

    def leave_module(self) -> None:
        """Note that the innermost module's forward ended, also by an error."""
        if self._modules:
            self._modules.pop()
            self.announce()

    def _text(self) -> str:
        """Return the text of the position; a forward inside backward recomputes activations."""
        moment, module = self.moment, self.module
        recomputes = bool(self._modules) and moment.phase == "backward"
        key = f"{moment.phase} {moment.iteration} {moment.microbatch} {recomputes} {module}"
        text = self._texts.get(key)
        if text is None:
            category = Category.ACTIVATION if recomputes else Category.UNKNOWN
            text = self._texts[key] = to_text(Metadata(moment, category, module))
        return text


class PositionLog:
    """Remembers positions by how many blocks were handed out and given back: before torch 2.10 events carry no text.

    Args:
        counts: returns for each card how many blocks its allocator has handed out and was given back, in sum.
        max_entries: size of the ring of events: no more positions are kept than it has events.
    """

    def __init__(self, counts: Callable[[], Sequence[int]], *, max_entries: int) -> None:
        self._counts = counts
        self._texts: deque[tuple[Sequence[int], str]] = deque(maxlen=max_entries + 1)

    def note(self, text: str) -> None:
        """Note that the position is that of ``text`` from now on."""
        if self._texts and self._texts[-1][1] == text:
            return
        counts = self._counts()
        if self._texts and self._texts[-1][0] == counts:
            self._texts.pop()  # no event had that position
        self._texts.append((counts, text))

    def mark(self, traces: Sequence[list[dict[str, Any]]], counts: Sequence[int]) -> None:
        """Write the positions into the events of each card, the oldest event first.

        Args:
            traces: the events of each card.
            counts: as they stood when the events were read.
        """
        for card, (trace, count) in enumerate(zip(traces, counts, strict=False)):
            done = count - sum(event["action"] in _COUNTED for event in trace)
            texts, text = iter([*((each[card], said) for each, said in self._texts), (sys.maxsize, "")]), ""
            begins, following = next(texts)
            for event in trace:
                while begins <= done and event["action"] != "free_completed":  # a completed free follows its request
                    text = following
                    begins, following = next(texts)
                event["user_metadata"] = text
                done += event["action"] in _COUNTED


class ForwardStacks:
    """Numbers the places at which nodes of autograd's graph are made, so that events of backward name forward lines.

    In anomaly mode torch asks ``torch.fx.traceback.format_stack`` for the stack of every node of the graph that is
    made, and puts the answer of the node that runs into the events of backward (``forward_frames`` of torch's
    snapshots). Here the answer is a number that stands for stack and module, so that neither is copied into each event.
    Nothing is checked for NaN, and no memory of the card is used. The mode lets a node that backward makes hold the one
    that ran, and so what that has saved. It is off while backward creates a graph; such nodes are numbered afterwards.

    It is off as well while torch.compile compiles, often inside backward: it keeps nodes of what it traces.

    Args:
        position: knows the module.
        kept: leaves what is made here out of the collector's count.
        max_frames: frames kept of each stack, innermost first.
    """

    def __init__(self, position: Position, kept: KeptObjects, *, max_frames: int) -> None:
        self._position = position
        self._kept = kept
        self._max_frames = max_frames
        self._numbers: dict[tuple[tuple[int, ...], str], str] = {}
        self._codes: dict[int, CodeType] = {}
        self._seen: dict[int, Frame] = {}
        """Frames by the address of their instruction, each once: stacks share most of them."""
        self.places: list[tuple[Stack, str]] = []
        """Stack and module of each number."""

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Number the nodes that are made while the block runs."""
        original, engine = torch.fx.traceback.format_stack, Variable._execution_engine.run_backward

        def format_stack() -> list[str]:
            if torch.fx.traceback.has_preserved_node_meta():
                return original()
            return self._number(sys._getframe().f_back)  # None: autograd made the node on a thread of its own

        set_enabled = torch.set_anomaly_enabled

        def kept_enabled(mode: bool, check_nan: bool = True) -> None:
            set_enabled(mode or not is_compiling, mode and check_nan)  # Lightning's Trainer switches it off

        is_compiling = False

        def off_while_compiling(module: Any) -> list[Place]:
            install = module.callback_handler.install_callbacks

            @contextmanager
            def installed(*args: Any, **kwargs: Any) -> Iterator[None]:
                nonlocal is_compiling
                was_compiling, checks_nan = is_compiling, torch.is_anomaly_check_nan_enabled()
                is_compiling = True
                set_enabled(checks_nan, checks_nan)
                try:
                    with install(*args, **kwargs):
                        yield
                finally:
                    is_compiling = was_compiling
                    set_enabled(checks_nan or not is_compiling, checks_nan)

            return [(module.callback_handler, "install_callbacks", installed)]

        def unheld(*args: Any, **kwargs: Any) -> Any:
            if not creates_graph(args) or torch.compiler.is_compiling() or torch.is_anomaly_check_nan_enabled():
                return engine(*args, **kwargs)  # NaN is checked in a mode of the program's own, which does hold nodes
            was_enabled = torch.is_anomaly_enabled()
            set_enabled(False, False)
            try:
                gradients = engine(*args, **kwargs)
            finally:
                set_enabled(was_enabled, False)
            self._number_nodes(gradients or (), sys._getframe())  # Tensor.backward returns none
            return gradients

        places = [(torch.fx.traceback, "format_stack", format_stack), (torch, "set_anomaly_enabled", kept_enabled)]
        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True, check_nan=False):
            warnings.filterwarnings("ignore", message="Error detected in ")  # the number would be printed for a stack
            off = replaced_in("torch._dynamo.callback", off_while_compiling)
            with replaced(places), backward_through(unheld), off:
                yield

    def _number_nodes(self, gradients: Iterable[torch.Tensor | None], frame: FrameType) -> None:
        """Give the nodes behind ``gradients`` that have no number that of ``frame``."""
        nodes: list[Any] = [each.grad_fn for each in gradients if each is not None]
        while nodes:
            node = nodes.pop()
            if node is not None and _TRACE_KEY not in node.metadata:
                node.metadata[_TRACE_KEY] = self._number(frame)
                nodes += [following for following, _ in node.next_functions]

    def _number(self, frame: FrameType | None) -> list[str]:
        """Return the text for the stack of ``frame``, whose frames are read only at first sight.

        An instruction goes by its address: the bytecode lies inside its code object, which is kept.
        """
        path: list[int] = []
        outer = frame
        while outer is not None:
            path.append(id(outer.f_code) + outer.f_lasti)
            outer = outer.f_back
        key = (tuple(path), self._position.module)
        text = self._numbers.get(key)
        if text is None:
            with self._kept:
                text = self._numbers[key] = number_text(len(self.places))
                self.places.append((self._frames(frame), self._position.module))
        return self._kept.text_of_node(text)

    def _frames(self, frame: FrameType | None) -> Stack:
        frames: list[Frame] = []
        while frame is not None:
            self._codes[id(frame.f_code)] = frame.f_code
            if len(frames) < self._max_frames:
                place = id(frame.f_code) + frame.f_lasti
                if place not in self._seen:
                    self._seen[place] = Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
                frames.append(self._seen[place])
            frame = frame.f_back
        return tuple(frames)
