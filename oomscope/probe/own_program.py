"""Starting this very oomscope in another process, whatever package of that name lies in the way there.

A checkout may hold an ``oomscope`` of its own, and a relative ``PYTHONPATH`` would find it. So the package is imported
by its place first, and that place is taken off ``sys.path`` again before anything else is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import oomscope

_BEGIN: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); import oomscope; del sys.path[0]; "


def own_program(statements: str) -> tuple[str, ...]:
    """Return the command that runs ``statements`` with this oomscope; arguments after it are in ``sys.argv[1:]``.

    ``-P`` keeps the working directory, a checkout, off ``sys.path``.
    """
    place = str(Path(oomscope.__file__).resolve().parent.parent)
    return (sys.executable, "-P", "-c", _BEGIN + statements, place)


COMMAND_LINE: Final = own_program("from oomscope.cli.main import main; main()")
"""This ``oomscope`` as a command."""
