"""The forward line behind each allocation in backward, from autograd's anomaly mode.

In that mode torch asks ``torch.fx.traceback.format_stack`` for the stack of every node of the graph that is made, and
puts the answer of the node that runs into the events of backward (``forward_frames`` of torch's snapshots). Here
the answer is a number that stands for stack and module, so that neither is copied into each event. Nothing is checked
for NaN, and no memory of the card is used.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

import torch
import torch.fx.traceback

from oomscope.probe.recording.position import Position
from oomscope.snapshot.event_fields import number_text
from oomscope.snapshot.trace import Frame, Stack


class ForwardStacks:
    """Numbers the places that nodes of the graph are made at.

    Args:
        position: knows the module.
        max_frames: frames kept of each stack, innermost first.
    """

    def __init__(self, position: Position, *, max_frames: int) -> None:
        self._position = position
        self._max_frames = max_frames
        self._numbers: dict[tuple[tuple[int, ...], str], list[str]] = {}
        self._codes: dict[int, CodeType] = {}
        self._places: list[tuple[Stack, str]] = []

    @property
    def places(self) -> list[tuple[Stack, str]]:
        """Stack and module of each number."""
        return self._places

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Number the nodes that are made while the block runs."""
        original = torch.fx.traceback.format_stack

        def format_stack() -> list[str]:
            if torch.fx.traceback.has_preserved_node_meta():
                return original()
            return self._number(sys._getframe().f_back)  # None: autograd made the node on a thread of its own

        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True, check_nan=False):
            warnings.filterwarnings("ignore", message="Error detected in ")  # the number would be printed for a stack
            torch.fx.traceback.format_stack = format_stack
            try:
                yield
            finally:
                torch.fx.traceback.format_stack = original

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
            text = self._numbers[key] = [number_text(len(self._places))]
            self._places.append((self._frames(frame), self._position.module))
        return text

    def _frames(self, frame: FrameType | None) -> Stack:
        frames: list[Frame] = []
        while frame is not None:
            self._codes[id(frame.f_code)] = frame.f_code
            if len(frames) < self._max_frames:
                frames.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
            frame = frame.f_back
        return tuple(frames)
