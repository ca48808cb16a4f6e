"""Lets the Python processes that a target starts load the virtual card as well, such as the workers of a DataLoader.

A forked process has the card of its parent. One that was spawned, or that a fork server started (the default from
Python 3.14 on), imports torch anew, and torch's CUDA build cannot be imported without the card.
"""

from __future__ import annotations

import os
import sys

from oomscope import virtual
from oomscope.capture.arming import STARTED, AroundImport, with_startup


def load_card() -> None:
    """Load the virtual card into this process, and into those that it starts once they import torch.

    Raises:
        MachineUnfitError: as for :func:`oomscope.virtual.load`.
    """
    virtual.load()
    if os.environ.get(STARTED) != __name__:
        os.environ.update(with_startup(os.environ) | {STARTED: __name__})


def arm_from_environment() -> None:
    """Load the card when this process imports torch."""
    if "torch" not in sys.modules:
        AroundImport("torch", before=virtual.load, then=lambda: None).install()
