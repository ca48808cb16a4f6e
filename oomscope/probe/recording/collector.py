"""Lets Python's collector run as often as without oomscope.

The collector looks for reference cycles each time a program has made so many more objects than it has freed
(``gc.get_threshold()``). Until then, what is left in a cycle stays on the card: there are programs that run out of
memory by that. The objects that a recording makes and keeps would bring the collector forward. So for each of them it
deletes one object of a stock that it made beforehand: the count is then that of the program's own objects.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

_STOCK: Final = 1 << 17
"""Spare objects, two for each node of an autograd graph; importing torch's compiler makes about as many."""
_MANY: Final = 100_000
"""Number of new objects after which Python itself would have looked for garbage."""
_OF_A_NODE: Final = 2
"""Objects that anomaly mode keeps with a node: a text, and a dictionary for it."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collector inside the block; what a program sets there (``gc.disable()``) stays.

    Training that collects by hand or seldom (``gc.set_threshold(...)``) holds more memory for it.
    """
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])  # Python takes 0 as never, and isenabled() does not show that
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


@contextmanager
def gc_paused_import() -> Iterator[None]:
    """Pause the collector while modules are imported, and run it once after many objects.

    Torch makes a third of a million, nearly all of which stay; to look through them again and again takes a fifth of
    its import. The one collection counts them as old, as those of a plain import would: Python looks through all
    objects again when a quarter as many are new.
    """
    heeded = gc.get_threshold()[0]
    with gc_paused():
        yield
        if heeded and gc.isenabled() and gc.get_count()[0] > _MANY:
            gc.collect()


class _Spare:
    """An object that the collector counts, for it might refer to another."""

    __slots__ = ("_other",)


class KeptObjects:
    """The objects of a recording, which the collector does not count.

    As a context manager it leaves out what is made and kept inside, where nothing of the program's is made.
    """

    def __init__(self) -> None:
        with gc_paused():
            self._stock = stock = [_Spare() for _ in range(_STOCK)]
            gc.collect(0)
        self._counts: list[int] = []

        class TextOfNode(list[str]):
            __slots__ = ()

            def __del__(self) -> None:
                stock.extend([_Spare() for _ in range(_OF_A_NODE)])

        self._text_of_node = TextOfNode

    def __enter__(self) -> None:
        """Note how many objects are counted."""
        self._counts.append(gc.get_count()[0])

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Delete as many spare objects as were made since then."""
        self._give_up(gc.get_count()[0] - self._counts.pop())

    def text_of_node(self, text: str) -> list[str]:
        """Return what anomaly mode keeps with a node for its stack: ``text``."""
        self._give_up(_OF_A_NODE)
        return self._text_of_node((text,))

    def _give_up(self, count: int) -> None:
        if count > 0:
            del self._stock[-count:]
