"""What the program was doing at each event, read off stacks, annotations and metadata: forward, backward, a step.

A frame tells by its function and path (PyTorch's own names first, conventions of user code second); the innermost
telling frame of a stack counts, so a forward inside backward is a recomputation, and one inside an optimizer's step is
its closure. Events in between go on doing what the last telling allocation did, but not past the end of an annotated
step: what follows is unknown until something shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.accounting.lifetimes import BEFORE, Indices, Lifetimes, active_blocks
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.distributed_frames import BUCKETS, COLLECTIVES, WEIGHTS
from oomscope.snapshot.infer.spans import spans_of
from oomscope.snapshot.trace import Action, Annotation, Frame, Stack, Trace


class Phase(IntEnum):
    """A phase of training that a stack shows."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    ZERO_GRAD = 4


class Mark(IntFlag):
    """What one frame of a stack shows."""

    NOTHING = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 4
    ZERO_GRAD = 8
    ACCUMULATE_GRAD = 16
    """The node of the autograd graph that stores a parameter's gradient."""
    STATE_INIT = 32
    """A function that makes the optimizer's states, such as ``_init_group``."""
    MODULE_MOVE = 64
    """``Module.to``, ``.cuda()``, ``.half()``: what they allocate are parameters and buffers."""
    CONSTRUCTION = 128
    """A constructor or an initialisation."""
    COMMUNICATION = 256
    WORKSPACE = 512
    INPUT = 1024
    OPTIMIZER_CODE = 2048
    """An optimizer's file, in or out of a step."""
    GRAD_BUFFER = 4096
    """The contiguous buffers of Megatron-Core: parameters and main gradients."""
    RECOMPUTE = 8192
    """A forward inside backward, as the whole stack shows."""
    BUCKETS = 16384
    """A function in which DistributedDataParallel makes the buckets of its gradients."""
    UPDATE = 32768
    """A function that computes a step of an optimizer whose states are made elsewhere, or many results at once
    (foreach)."""
    FUNCTIONAL = 65536
    """A function of layers. Others call these too: optimizers such as Muon, and the user's own backward functions."""
    CALLS_CLOSURE = 131072
    """The step of an optimizer of PyTorch's: what it calls outside PyTorch is its closure."""
    WEIGHTS = 262144
    """A function that makes room for weights that are split between ranks."""


PHASES: Final = {
    Mark.FORWARD: Phase.FORWARD,
    Mark.BACKWARD: Phase.BACKWARD,
    Mark.OPTIMIZER: Phase.OPTIMIZER,
    Mark.ZERO_GRAD: Phase.ZERO_GRAD,
}
OF_METADATA: Final = {
    "forward": Phase.FORWARD,
    "loss": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}
"""Phases as oomscope's own recordings name them."""


class Clue(NamedTuple):
    """A frame whose path and function match has the mark ``mark``."""

    mark: Mark
    path: re.Pattern[str]
    function: re.Pattern[str]


def _clue(mark: Mark, path: str, function: str) -> Clue:
    return Clue(mark, re.compile(path), re.compile(function))


OPTIMIZER_FILE: Final = r"(^|/)([^/]*(optim|adam|muon)[^/]*\.py|optim(s|izers?)?/[^/]*\.py|deepspeed/runtime/.*\.py)$"
"""The file, or the folder that it lies in, is named after optimizers."""
PYTHON_CLUES: Final = (
    *(_clue(Mark.WEIGHTS, *place) for place in WEIGHTS),
    _clue(Mark.ZERO_GRAD, "", r"^zero_grad$"),
    _clue(Mark.NOTHING, r"/lr_scheduler\.py$", ""),
    _clue(Mark.OPTIMIZER | Mark.STATE_INIT, OPTIMIZER_FILE, r"^_?init(ialize)?_(group|states?)$"),
    _clue(Mark.OPTIMIZER | Mark.UPDATE, r"(^|/)torch/optim/", r"^_(multi_tensor|single_tensor|fused)_(?!sgd)"),
    _clue(Mark.OPTIMIZER | Mark.CALLS_CLOSURE, r"(^|/)torch/optim/(?!optimizer\.py)", r"^step$"),
    _clue(Mark.OPTIMIZER, r"(^|/)torch/optim/", r"^(?!__init__)"),
    _clue(Mark.OPTIMIZER, OPTIMIZER_FILE, r"^_?(step|step_\w+|\w+_step)$"),
    _clue(Mark.OPTIMIZER_CODE, OPTIMIZER_FILE, r"."),
    _clue(Mark.GRAD_BUFFER, r"grad_buffer\.py$", r"."),
    _clue(Mark.FORWARD | Mark.BACKWARD, r"(^|/)torch/utils/checkpoint\.py$", r"^(backward|recompute_fn)$"),
    _clue(Mark.BACKWARD, "", r"^(_engine_run_backward|backward|_backward_impl|call_compiled_backward)$"),
    _clue(Mark.BACKWARD, r"(^|/)torch/autograd/graph\.py$", r"."),
    _clue(Mark.MODULE_MOVE, r"(^|/)torch/nn/modules/module\.py$", r"^(_apply|convert|to|cuda|to_empty|half|bfloat16)$"),
    _clue(Mark.FORWARD, r"(^|/)torch/nn/modules/module\.py$", r"^(_call_impl|_wrapped_call_impl|__call__)$"),
    _clue(Mark.FORWARD | Mark.FUNCTIONAL, r"(^|/)torch/nn/functional\.py$", r"."),
    _clue(Mark.FORWARD, "", r"^forward$"),
    _clue(Mark.BUCKETS, *BUCKETS),
    _clue(Mark.COMMUNICATION, *COLLECTIVES),
    _clue(Mark.COMMUNICATION, "", r"^_?(i?(all_?reduce|all_?gather|reduce_scatter|all_?to_?all)\w*|i?send|i?recv)$"),
    _clue(Mark.INPUT, r"(^|/)torch/utils/data/|/data_?(loader|set)?s?(/[^/]*)?\.py$", r"."),
    _clue(Mark.INPUT, "", r"^(get_batch\w*|next_batch|\w*collate\w*|broadcast_data)$"),
    _clue(Mark.CONSTRUCTION, "", r"^(__init__|reset_parameters|init_weights|_init_weights|from_pretrained)$"),
)
"""First match counts. Functions are those of PyTorch (torch/optim, torch/autograd/graph.py, torch/nn/modules/module.py,
torch/distributed/distributed_c10d.py), or what user code commonly calls its own ones. Of PyTorch's optimizers SGD alone
makes a state (the momentum) in the function that computes the step."""

CPP_CLUES: Final = (
    _clue(Mark.BACKWARD | Mark.ACCUMULATE_GRAD, "", r"torch::autograd::AccumulateGrad"),
    _clue(Mark.BACKWARD, "", r"torch::autograd::(Engine|python::PythonEngine|Node::operator\(\))"),
    _clue(Mark.COMMUNICATION, "", r"\bc10d::"),
    _clue(Mark.WORKSPACE, "", r"[wW]orkspace"),
    _clue(Mark.UPDATE, "", r"\bat::.*\b_?foreach_(?!clone|copy|zero)"),
)
"""Functions of torch/csrc/autograd, torch/csrc/distributed and ATen's BLAS and foreach, as the unwinder names them."""

_ANNOTATED: Final = (
    (re.compile(r"^Optimizer\.zero_grad#|zero_grad", re.IGNORECASE), Phase.ZERO_GRAD),
    (re.compile(r"^Optimizer\.step#|^optimizer|^##? ?optimizer", re.IGNORECASE), Phase.OPTIMIZER),
    (re.compile(r"^\W*backward\b", re.IGNORECASE), Phase.BACKWARD),
    (re.compile(r"^\W*forward\b", re.IGNORECASE), Phase.FORWARD),
)
"""Spans that name a phase: those of ``torch.optim.Optimizer`` (its profile hooks), and plain words. The
first match counts."""
_MODEL_RUNS: Final = (Phase.FORWARD, Phase.BACKWARD)
_STEPPING: Final = (Phase.OPTIMIZER, Phase.ZERO_GRAD)
"""Phases that end with their span."""


def _phase_of(mark: Mark) -> Phase:
    return next((what for phase, what in PHASES.items() if phase in mark), Phase.UNKNOWN)


def _mark_of(frame: Frame) -> Mark:
    is_python = frame.filename.endswith(".py")
    name = frame.name.rpartition(".")[2] if is_python else frame.name
    for clue in PYTHON_CLUES if is_python else CPP_CLUES:
        if clue.function.search(name) and clue.path.search(frame.filename):
            return clue.mark
    return Mark.NOTHING


class StackReader:
    """Reads stacks, each function once: its lines make no difference."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str], Mark] = {}
        self._makes_states: set[str] = set()
        """Files of the functions read so far that make an optimizer's states."""

    def __call__(self, stack: Stack) -> tuple[Phase, Mark]:
        """Return the phase under ``stack`` (by its innermost frame with a mark), and the marks of all frames."""
        doing, marks, is_anyones = Phase.UNKNOWN, Mark.NOTHING, True
        for frame in stack:
            function = frame.filename, frame.name
            if function not in self._functions:
                self._functions[function] = _mark_of(frame)
                if Mark.STATE_INIT in self._functions[function]:
                    self._makes_states.add(frame.filename)
            mark = self._functions[function]
            marks |= mark
            if is_anyones and (what := _phase_of(mark)) != Phase.UNKNOWN:
                is_anyones = Mark.FUNCTIONAL in mark
                doing = Phase.FORWARD if doing == Phase.FORWARD and Mark.CALLS_CLOSURE in mark else what
        if doing == Phase.FORWARD and Mark.BACKWARD in marks:
            return Phase.BACKWARD, marks | Mark.RECOMPUTE
        return doing, marks

    def only_updates(self, stack: Stack) -> bool:
        """Return whether ``stack`` is in a step of an optimizer, in a file in which another function makes the states.

        Of the stacks read so far, by the innermost frame of an optimizer.
        """
        for frame in stack:
            mark = self._functions[frame.filename, frame.name]
            if Mark.OPTIMIZER in mark:
                return Mark.STATE_INIT not in mark and frame.filename in self._makes_states
        return False


class Activity(NamedTuple):
    """What the program was doing, event by event and block by block."""

    at: NDArray[np.int8]
    """:class:`Phase` at each event of the trace."""
    after: NDArray[np.int8]
    """:class:`Phase` last known before or at each event; unknown too from the end of an annotated step on where
    no forward or backward is known before the next one."""
    span: Indices
    """Number of the run of events that do the same."""
    silent_steps: Indices
    """Annotated steps without an event that ended before each event, and before the end."""
    own: NDArray[np.int8]
    """:class:`Phase` of each row of the lifetimes, by its own stack or metadata alone."""
    marks: NDArray[np.int32]
    """:class:`Mark` of each row of the lifetimes."""


def activity_of(timeline: Timeline, annotations: Sequence[Annotation] = ()) -> Activity:
    """Return what the program was doing during a trace.

    Metadata of the events counts before annotated spans, these before stacks: of allocations, served or not. What runs
    the model inside an annotated step is its closure (``Optimizer.step(closure)``, as Lightning calls it). The stack of
    a free is left alone: depending on how it was recorded it is the allocation's.
    """
    trace = timeline.trace
    read = StackReader()
    of_stack = [read(stack) for stack in trace.stacks]
    doing_of_stack = np.array([doing for doing, _ in of_stack], dtype=np.int8)
    mark_of_stack = np.array([mark for _, mark in of_stack], dtype=np.int32)
    asks = (trace.action == Action.ALLOC) | (trace.action == Action.OOM)
    by_stack = np.where(asks, doing_of_stack[trace.stack_id], 0).astype(np.int8)
    annotated, is_past, silent_steps = _of_annotations(trace, annotations)
    event = _of_moments(trace)
    event = np.where(event > 0, event, _with_closures(annotated, by_stack, is_past)).astype(np.int8)
    if len(trace.stacks) > 1:  # autograd's threads have no Python frames (torch/csrc/autograd/engine.cpp)
        in_engine = asks & (trace.stack_id == 0) & np.isin(_carried_on(event), _MODEL_RUNS)
        event[in_engine & (event == 0)] = Phase.BACKWARD
    at = _carried_on(event, is_past)
    event = np.where((event == 0) & (annotated == Phase.OPTIMIZER), at, event)
    after = np.where(at > 0, at, _between_steps(event))
    own, marks = _of_blocks(timeline, event, mark_of_stack, read)
    span = np.cumsum(np.append(0, np.diff(at) != 0))[: len(at)]
    return Activity(at=at, after=after, span=span, silent_steps=silent_steps, own=own, marks=marks)


def _of_moments(trace: Trace) -> NDArray[np.int8]:
    known = [OF_METADATA.get(moment.phase, Phase.UNKNOWN) for moment in trace.moments]
    return np.array(known, dtype=np.int8)[trace.moment_id]


def _with_closures(
    annotated: NDArray[np.int8], by_stack: NDArray[np.int8], is_past: NDArray[np.bool_]
) -> NDArray[np.int8]:
    """Return what spans and stacks say of each event; in a step, nothing where no stack shows a phase."""
    stepping = annotated == Phase.OPTIMIZER
    begins = stepping & (np.append(True, ~stepping[:-1]) | is_past)
    in_step = np.where(np.isin(by_stack, _MODEL_RUNS), by_stack, np.where((by_stack > 0) | begins, Phase.OPTIMIZER, 0))
    return np.where(stepping, in_step, np.where(annotated > 0, annotated, by_stack))


def _of_annotations(
    trace: Trace, annotations: Iterable[Annotation]
) -> tuple[NDArray[np.int8], NDArray[np.bool_], Indices]:
    """Return what annotated spans say of each event, which are the first after a step or a ``zero_grad``, and steps.

    The steps are those without an event that ended before each event, and before the end. Where spans nest, the one
    that began last counts.
    """
    doing, is_past = np.zeros(len(trace), dtype=np.int8), np.zeros(len(trace) + 1, dtype=bool)
    silent_steps = np.zeros(len(trace) + 1, dtype=np.int64)
    for name, first, past in sorted(spans_of(trace, annotations), key=lambda span: (span.first, -span.past)):
        what = next((doing for pattern, doing in _ANNOTATED if pattern.search(name)), None)
        if what is not None:
            doing[first:past] = what
            is_past[past] |= what in _STEPPING
            silent_steps[past] += what == Phase.OPTIMIZER and first == past
    return doing, is_past[:-1], np.cumsum(silent_steps)


def _carried_on(doing: NDArray[np.int8], is_past: NDArray[np.bool_] | None = None) -> NDArray[np.int8]:
    """Return the last known value at each place; unknown before the first, and from ``is_past`` to the next."""
    begins = doing > 0 if is_past is None else (doing > 0) | is_past
    last = np.maximum.accumulate(np.where(begins, np.arange(len(doing)), -1)) if len(doing) else doing
    return np.where(last >= 0, doing[last], 0).astype(np.int8)


def _between_steps(doing: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the last known value where a forward or backward is the next to be known but for ``zero_grad``."""
    following = _carried_on(np.where(doing == Phase.ZERO_GRAD, 0, doing)[::-1])[::-1]
    return np.where(np.isin(following, (Phase.FORWARD, Phase.BACKWARD)), _carried_on(doing), 0).astype(np.int8)


def _of_blocks(
    timeline: Timeline, event: NDArray[np.int8], mark_of_stack: NDArray[np.int32], read: StackReader
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return phase and marks of each block; of one from before the recording, by the stack that the segments keep."""
    table: Lifetimes = timeline.lifetimes
    own = np.zeros(len(table), dtype=np.int8)
    marks = np.zeros(len(table), dtype=np.int32)
    inside = table.born != BEFORE
    own[inside] = event[table.born[inside]]
    marks[inside] = mark_of_stack[timeline.trace.stack_id[table.born[inside]]]
    blocks = active_blocks(timeline.segments or ())
    for row in np.flatnonzero(~inside & (table.segment_block >= 0)).tolist():
        _, block = blocks[int(table.segment_block[row])]
        own[row], marks[row] = read(block.stack)
    updates = np.array([read.only_updates(stack) for stack in timeline.trace.stacks], dtype=bool)
    marks[inside] |= np.where(updates[timeline.trace.stack_id[table.born[inside]]], Mark.UPDATE, 0)
    return own, marks
