"""What ``torch.compile`` and Triton keep on disk while something is measured on a virtual card.

Choices that inductor finds in its cache need no autotuning, and autotuning allocates: a run with a warm cache asks for
other bytes than the one that filled it. So each run begins with an empty cache. It also keeps what was chosen on a
virtual card from a real one. Triton's compiled kernels decide nothing and take most of the time: they are kept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

INDUCTOR: Final = "TORCHINDUCTOR_CACHE_DIR"
TRITON: Final = "TRITON_CACHE_DIR"
_TRITON_HOME: Final = "TRITON_HOME"
_TRITON_AUTOTUNING: Final = "TRITON_CACHE_AUTOTUNING"


def variables(room: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one run.

    Args:
        room: gone after the run; inductor's cache is made in it.
        environment: tells where Triton keeps its kernels (triton/knobs.py); inductor would put them into its own cache.
    """
    home = Path(environment.get(_TRITON_HOME) or Path.home())
    kept = home / ".triton" / "cache" if os.access(home, os.W_OK) else room / "triton"
    return {
        INDUCTOR: tempfile.mkdtemp(prefix="inductor-", dir=room),
        TRITON: environment.get(TRITON) or str(kept),
        _TRITON_AUTOTUNING: "0",
    }
