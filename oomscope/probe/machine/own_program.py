"""Starting this very oomscope in another process, whatever package of that name lies in the way there.

A checkout may hold an ``oomscope`` of its own, and a relative ``PYTHONPATH`` would find it. So the package is imported
by its place first, and that place is taken off ``sys.path`` again before anything else is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import oomscope

_PROGRAM: Final = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); import oomscope; del sys.path[0]; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def own_program(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of this oomscope as ``python -m`` does; its arguments come after it.

    ``-P`` keeps the working directory, a checkout, off ``sys.path``.
    """
    place = str(Path(oomscope.__file__).resolve().parent.parent)
    return (sys.executable, "-P", "-c", _PROGRAM, place, module)


COMMAND_LINE: Final = own_program("oomscope")
"""This ``oomscope`` as a command."""
