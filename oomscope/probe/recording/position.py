"""Where in training the program is: phase, iteration, microbatch, module. Every event of the allocator carries it.

The text travels in ``user_metadata`` of the events, which torch keeps a thread; so whoever changes the position says
so on the thread that goes on allocating.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oomscope.snapshot.metadata import Metadata, to_text
from oomscope.snapshot.trace import Category, Moment

Announce = Callable[[str], None]
"""Takes the text that goes with every following event of the calling thread."""

OTHER = "other"
"""The phase of what is neither forward, loss, backward nor optimizer: what follows a step, such as logging."""


class Position:
    """The program's position, announced whenever it changes.

    Args:
        announce: see :data:`Announce`; None where torch has no such thing.
    """

    def __init__(self, announce: Announce | None) -> None:
        self._announce = announce
        self._told: list[Moment] = []
        self._implied = Moment("init", -1, -1)
        self._modules: list[str] = []
        self._texts: dict[tuple[Moment, str, bool], str] = {}

    @property
    def moment(self) -> Moment:
        """Phase, iteration and microbatch."""
        return self._told[-1] if self._told else self._implied

    @property
    def is_told(self) -> bool:
        """Whether the program itself says in which phase it is."""
        return bool(self._told)

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
        """Mark what runs inside as told by the program; None keeps the enclosing value."""
        outer, depth = self.moment, len(self._told)
        self._told.append(
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
            del self._told[depth:]
            self.announce()

    def imply(self, phase: str, *, iteration: int | None = None, microbatch: int = -1) -> None:
        """Set the phase of a program that does not tell its own; None keeps the iteration."""
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
        key = (moment, module, recomputes)
        text = self._texts.get(key)
        if text is None:
            category = Category.ACTIVATION if recomputes else Category.UNKNOWN
            text = self._texts[key] = to_text(Metadata(moment, category, module))
        return text
