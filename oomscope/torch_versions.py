"""The versions of torch that oomscope supports. Support for a new one begins here.

Where versions differ in behaviour: keys of ``PYTORCH_ALLOC_CONF`` (``SINCE`` in ``oomscope/allocator/alloc_conf.py``),
the allocator's rules (``oomscope/allocator/settings.py``), versions that share them (``STAND_FOR`` in
``oomscope/snapshot/replay/recording.py``), functions of CUDA that a build asks for
(``oomscope/virtual/csrc/names/``). ``make test-torch VERSION=…`` shows what a version needs.
"""

from __future__ import annotations

from typing import Final

OLDEST: Final = (2, 11)
"""The first torch with a CUDA 13 build, for which the virtual card is made."""
NEWEST: Final = (2, 15)
"""The newest torch that was tried."""
KEEPS_WORKSPACES: Final = (2, 14)
"""The newest torch that keeps the workspaces of cuBLAS; later ones allocate one for each product."""
OLDEST_RULES: Final = (2, 0)
"""The first torch whose allocator can be replayed: it writes snapshots with a trace."""
DEFAULT_RULES: Final = "2.13"
"""The torch whose allocator's rules count if the version is not known."""
CONF_VARIABLE: Final = "PYTORCH_ALLOC_CONF"
"""Variable with the allocator's settings since torch 2.10."""
OLD_CONF_VARIABLE: Final = "PYTORCH_CUDA_ALLOC_CONF"
"""Variable with the allocator's settings before torch 2.10, and a second name since."""


def text_of(version: tuple[int, int]) -> str:
    """Return ``2.11`` of ``(2, 11)``."""
    return ".".join(map(str, version))
