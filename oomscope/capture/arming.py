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
    from collections.abc import Mapping

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
        from oomscope.capture.import_hook import AroundImport

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
