"""Lets the Python processes that a target or a test starts import torch, such as the workers of a DataLoader.

A forked process has the virtual card of its parent. One that was spawned, or that a fork server started (the default
from Python 3.14 on), imports torch anew, and torch's CUDA build cannot be imported without the card. Nothing is
recorded there, so a target's process sees no device: work on one would be memory that nobody counts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Final

from oomscope.capture.arming import STARTED, AroundImport, with_startup

_SEE_CARD: Final = "OOMSCOPE_CHILDREN_SEE_CARD"


def variables(environment: Mapping[str, str], *, see_card: bool = False) -> dict[str, str]:
    """Return the variables by which Python processes that are started in ``environment`` load the card.

    They see no device of it unless they shall ``see_card``. What else they start with, as in a probe of pytest, stays.
    """
    started = [name for name in environment.get(STARTED, "").split(",") if name not in {"", __name__}]
    return with_startup(environment) | {STARTED: ",".join([*started, __name__]), _SEE_CARD: "1" if see_card else ""}


def arm_from_environment() -> None:
    """Load the card when this process imports torch."""
    if "torch" not in sys.modules:
        AroundImport("torch", before=_load_card, then=lambda: None).install()


def _load_card() -> None:
    from oomscope import virtual
    from oomscope.errors import MachineUnfitError

    if not os.environ.get(_SEE_CARD):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with contextlib.suppress(MachineUnfitError):  # it is another torch, which may need none
        virtual.load()
