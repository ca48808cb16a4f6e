"""Recording without a change to the program: the environment asks for it, and it begins when the program uses CUDA.

Importing torch takes seconds and most processes of a job never do, so an import hook waits for it; and torch itself
calls when CUDA is initialised. Until then nothing is changed, and little is imported: every Python process of a job
pays for it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from oomscope.capture.messages import Messages
    from oomscope.capture.settings import Settings

STARTUP: Final = os.path.join(os.path.dirname(__file__), "startup")  # noqa: PTH118, PTH120 - pathlib takes its time
"""Holds ``sitecustomize.py``."""
PYTHON_PATH: Final = "PYTHONPATH"
STARTED: Final = "OOMSCOPE_STARTUP"
"""Names modules, separated by commas, whose ``arm_from_environment`` that file calls."""


def with_startup(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which every Python program in ``environment``, and its children, arms itself."""
    return {PYTHON_PATH: os.pathsep.join([STARTUP, *filter(None, [environment.get(PYTHON_PATH)])])}


def variables(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make every Python program in ``environment``, and its children, record."""
    return settings.to_environment() | with_startup(environment)


def arm_from_environment() -> None:
    """Start recording at the first CUDA call, with the settings in the environment; invalid ones are reported then."""
    if "torch" in sys.modules:
        _arm()
    else:
        AroundImport("torch", then=_arm).install()


def _arm() -> None:
    from oomscope.capture.messages import Messages

    messages = Messages(quiet=False, strict=False)
    messages.attempt("nothing is recorded", lambda: _arm_recording(messages))


def _arm_recording(messages: Messages) -> None:
    import torch

    from oomscope.capture.recording import Recording
    from oomscope.capture.settings import from_environment

    settings = from_environment(os.environ)
    if settings is None:
        return
    if torch.backends.cuda.is_built():  # whether there is a device is not asked: that would begin CUDA before a fork
        Recording(settings).arm()
    else:
        messages.refuse("torch is built without CUDA")


class AroundImport:
    """A finder for ``sys.meta_path`` that finds nothing itself, and calls back when the module ``name`` is run.

    It stays in place until the module has run: a program may look for the module (``importlib.util.find_spec``) long
    before it imports it, as transformers and accelerate do with torch.

    Args:
        name: of the module.
        before: called just before the module is made and runs; what it raises ends the import, and the hook stays.
        then: called once, when the module has run.
        within: makes a context for the module's run and the call after it.
    """

    def __init__(
        self,
        name: str,
        *,
        then: Callable[[], None],
        before: Callable[[], None] | None = None,
        within: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._name = name
        self._before = before
        self._within = within
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
            if self._before is not None:
                self._before()  # sys.modules has no such module yet
            made: ModuleType | None = make(spec)
            return made

        def run_then_call(module: ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        def run_within(module: ModuleType) -> None:
            if self._within is None:
                run_then_call(module)
            else:
                with self._within():
                    run_then_call(module)

        loader.create_module = call_then_make  # type: ignore[method-assign]
        loader.exec_module = run_within  # type: ignore[method-assign]
