"""Where an operation comes from; in backward also the forward operation that it is the gradient of."""

from __future__ import annotations

from types import FrameType

import torch
from torch.autograd.graph import Node

from oomscope.probe.sim.autograd import BackwardGuard
from oomscope.probe.sim.backend import module
from oomscope.probe.sim.position import Origin, Position


class Origins:
    """Follows autograd's numbers from forward to backward.

    An autograd node is numbered just before its operation is dispatched, so the latest number names the operation at
    hand in forward, and ``_current_autograd_node`` gives it back in backward.

    Args:
        position: where the program is.
        guard: knows whether backward runs, and on which stream it was called.
    """

    def __init__(self, position: Position, guard: BackwardGuard) -> None:
        self._position = position
        self._guard = guard
        self._forward_of: dict[int, Origin] = {}

    def locate(self, frame: FrameType, *, from_engine: bool) -> tuple[Origin, int]:
        """Return an operation's origin and, in backward, the stack of the forward operation behind it (else 0).

        The engine runs a node on the stream of its forward, unless code inside the node chose another.

        Args:
            frame: where it was called.
            from_engine: the autograd engine itself calls, not Python code.
        """
        origin = self._position.origin(frame, module.current_stream().stream_id)
        forward = 0
        if self._guard.active:
            node = torch._C._current_autograd_node()
            cause = self._forward_of.get(node._sequence_nr()) if node is not None else None
            if cause is not None:
                forward = cause.stack
                stream = cause.stream if origin.stream == self._guard.stream else origin.stream
                origin = Origin(origin.stack, cause.module or origin.module, stream)
        if not from_engine:
            self._forward_of.setdefault(torch._C._autograd._get_sequence_nr() - 1, origin)
        return origin, forward

    def note(self, frame: FrameType) -> None:
        """Note where autograd's latest node was made, unless an operation has already told."""
        if torch._C._autograd._get_sequence_nr() - 1 not in self._forward_of:
            self.locate(frame, from_engine=False)

    def runs_on(self, node: Node, stream: int) -> None:
        """Note that the engine runs ``node``'s backward on ``stream``, whatever its operations told."""
        number = node._sequence_nr()
        origin = self._forward_of.get(number)
        if origin is not None:
            self._forward_of[number] = origin._replace(stream=stream)

    def forget(self) -> None:
        """Drop what is known of autograd nodes; called between iterations."""
        self._forward_of.clear()
