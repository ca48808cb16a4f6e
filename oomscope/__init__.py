"""oomscope: which change made the run go out of GPU memory, and is it fragmentation or capacity.

Importing this package is cheap: no torch, numpy or pandas is loaded until a command needs it.

PYTEST_DONT_REWRITE: where a start-up file has imported this package already, pytest would warn that it cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomscope.capture.recording import record
    from oomscope.probe.targets.context import Context, Target
    from oomscope.report.exports.notebook import explain

__all__ = ["Context", "Target", "__version__", "explain", "record"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Resolve the public names lazily (PEP 562)."""
    if name in {"Target", "Context"}:
        from oomscope.probe.targets import context

        return getattr(context, name)
    if name == "record":
        from oomscope.capture.recording import record

        return record
    if name == "explain":
        from oomscope.report.exports.notebook import explain

        return explain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
