"""Lets the Python processes that a target starts import torch, such as the workers of a DataLoader.

A forked process has the virtual card of its parent. One that was spawned, or that a fork server started (the default
from Python 3.14 on), imports torch anew, and torch's CUDA build cannot be imported without the card. Nothing is
recorded there, so such a process sees no device: work on one would be memory that nobody counts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

from oomscope import virtual
from oomscope.capture.arming import STARTED, AroundImport, with_startup
from oomscope.errors import MachineUnfitError


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which Python processes that are started in ``environment`` load the card."""
    return with_startup(environment) | {STARTED: __name__}


def arm_from_environment() -> None:
    """Load the card when this process imports torch."""
    if "torch" not in sys.modules:
        AroundImport("torch", before=_load_card, then=lambda: None).install()


def _load_card() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with contextlib.suppress(MachineUnfitError):  # it is another torch, which may need none
        virtual.load()
