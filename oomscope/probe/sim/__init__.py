"""The simulated device: training code runs unchanged, no byte is computed, and every allocation is served by the
emulator of the caching allocator.

``backend`` gives torch a device named ``sim``; ``dispatch`` sees every operation on it and every storage come and
go; ``memory`` serves the storages and writes the trace; ``autograd`` lets an out-of-memory error leave
``backward()``; ``parity`` and ``autocast`` make torch take the paths it takes on CUDA; ``temporaries`` adds what
CUDA kernels allocate inside. ``session`` ties them together.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SimSession"]


def __getattr__(name: str) -> Any:
    """Load the session, and with it torch, on first use (PEP 562)."""
    if name == "SimSession":
        from oomscope.probe.sim.session import SimSession

        return SimSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
