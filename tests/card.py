"""Loads the virtual card, as its sources stand, into the process that imports this, before anything imports torch.

The project's torch cannot be imported otherwise. A GPU is tested on itself, and a torch without CUDA as it is.
"""

from __future__ import annotations

from oomscope import virtual
from oomscope.virtual import build
from oomscope.virtual.installed_torch import find_torch
from oomscope.virtual.loading import has_gpu

_torch = find_torch()
if _torch is not None and _torch.cuda is not None and not has_gpu():
    build.build()
    virtual.load()
