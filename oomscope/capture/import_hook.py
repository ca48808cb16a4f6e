"""A hook around the first import of one module: something is called just before the module runs, and just after.

It stays in place until the module has run: a program may look for the module (``importlib.util.find_spec``) long
before it imports it, as transformers and accelerate do with torch. Little is imported here, for every Python process of
a started program pays for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def _nothing() -> None:
    """Do nothing."""


class AroundImport:
    """A finder for ``sys.meta_path`` that finds nothing itself, and calls back when the module ``name`` is run.

    Args:
        name: of a top-level module.
        before: called just before the module is made and runs; what it raises ends the import, and the hook stays.
        then: called once, when the module has run.
    """

    def __init__(
        self, name: str, *, before: Callable[[], None] = _nothing, then: Callable[[], None] = _nothing
    ) -> None:
        self._name = name
        self._before = before
        self._then = then

    def install(self) -> None:
        """Come before all other finders."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the finders after this one find the module, and its own loader run it, with the calls around that."""
        if fullname != self._name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                self._wrap(spec)
                return spec
        return None

    def _wrap(self, spec: ModuleSpec) -> None:
        """Let the loader of ``spec`` call back; one that runs nothing (a folder without ``__init__``) is left alone."""
        loader = spec.loader
        make, run = getattr(loader, "create_module", None), getattr(loader, "exec_module", None)
        if loader is None or make is None or run is None:
            return

        def call_then_make(spec: ModuleSpec) -> ModuleType | None:
            self._before()  # sys.modules has no such module yet
            made: ModuleType | None = make(spec)
            return made

        def run_then_call(module: ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        loader.create_module = call_then_make  # type: ignore[method-assign]
        loader.exec_module = run_then_call  # type: ignore[method-assign]
