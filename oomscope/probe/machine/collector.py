"""Keeps Python's collector of cycles out of imports.

Importing torch makes a third of a million objects, nearly all of which stay. The collector would look through them
again and again, which takes as long as a fifth of the imports.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage unasked inside the block; what is imported may set the collector as it likes, which lasts.

    Training that collects by hand (``gc.disable()``) or seldom (``gc.set_threshold(...)``) holds more memory for it.
    """
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])  # which Python takes for never, and isenabled() does not tell
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)
