"""Training steps: counted, and marked on the allocator's events, so that a snapshot tells its iterations apart.

A program that says nothing is followed through torch's own hook on optimizers: a step is over when the optimizer that
stepped first has stepped again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from oomscope.capture import history
from oomscope.capture.messages import Messages
from oomscope.snapshot.metadata import Metadata, to_text
from oomscope.snapshot.trace import Moment


class Steps:
    """Counts steps from 0.

    Args:
        after_each: called when a step is complete, with the number of complete ones.
        messages: where it is told what goes wrong.
    """

    def __init__(self, after_each: Callable[[int], None], messages: Messages) -> None:
        self.complete = 0
        self._after_each = after_each
        self._messages = messages
        self._told = False
        self._first: Optimizer | None = None
        self._mark = ""

    def tell(self) -> None:
        """Say that a step is complete; from then on the optimizers are not asked."""
        self._told = True
        self._advance()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the optimizers of the process while the block runs."""
        handle = register_optimizer_step_post_hook(self._optimizer_stepped)
        try:
            yield
        finally:
            handle.remove()
            self._set_mark("")

    def _optimizer_stepped(self, optimizer: Optimizer, *_: object) -> None:
        if self._first is None:
            self._first = optimizer
        if not self._told and optimizer is self._first:
            self._advance()

    def _advance(self) -> None:
        self.complete += 1
        mark = to_text(Metadata(Moment("", self.complete, -1)))
        self._messages.attempt("steps are not marked", lambda: self._set_mark(mark))
        self._after_each(self.complete)

    def _set_mark(self, text: str) -> None:
        """Mark the events to come, unless the program marks them itself."""
        if history.can_mark() and history.marked() == self._mark:
            history.mark(text)
            self._mark = text
