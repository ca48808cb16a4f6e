"""Puts other functions in the place of torch's for the length of a block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from oomscope.capture.arming import AroundImport

_ABSENT: Final = object()
Place = tuple[Any, str, Any]
"""Owner, name and value of an attribute."""


@contextmanager
def replaced(places: Iterable[Place]) -> Iterator[None]:
    """Set attributes while the block runs; afterwards all stand as they stood before.

    What a class inherits is looked up in its bases again.
    """
    before: list[Place] = []
    for owner, name, value in places:
        before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def replaced_in(module: str, places: Callable[[Any], Iterable[Place]]) -> Iterator[None]:
    """Replace what ``places`` returns for the module of that name, as soon as a program has imported it."""
    with ExitStack() as patched:

        def patch() -> None:
            patched.enter_context(replaced(places(sys.modules[module])))

        hook = AroundImport(module, then=patch)
        if module in sys.modules:
            patch()
        else:
            hook.install()
        try:
            yield
        finally:
            if hook in sys.meta_path:
                sys.meta_path.remove(hook)
