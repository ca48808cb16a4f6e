"""Recording without a word in the program: the environment asks for it, and it begins when the program uses CUDA.

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
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from oomscope.capture.messages import Messages
    from oomscope.capture.settings import Settings

STARTUP: Final = os.path.join(os.path.dirname(__file__), "startup")  # noqa: PTH118, PTH120 - pathlib takes its time
"""Holds ``sitecustomize.py``."""
PYTHON_PATH: Final = "PYTHONPATH"


def variables(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make every Python program in ``environment``, and its children, record."""
    path = os.pathsep.join([STARTUP, *filter(None, [environment.get(PYTHON_PATH)])])
    return settings.to_environment() | {PYTHON_PATH: path}


def arm_from_environment() -> None:
    """Begin a recording as soon as CUDA is used, as the environment says; what is wrong in there is said by then."""
    if "torch" in sys.modules:
        _arm()
    else:
        sys.meta_path.insert(0, AfterImport("torch", _arm))


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


class AfterImport:
    """A finder for ``sys.meta_path`` that calls ``then`` once the module ``name`` is imported; finds nothing itself."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find the module, and its own loader run it, with one more call at the end."""
        if fullname != self._name:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec else None
        if loader is not None:
            run = loader.exec_module

            def run_then_call(module: ModuleType) -> None:
                run(module)
                self._then()

            loader.exec_module = run_then_call  # type: ignore[method-assign]
        return spec
