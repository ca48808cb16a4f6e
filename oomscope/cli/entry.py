"""Where the installed program begins: Ctrl-C is one line from here on, also while the rest is still being imported."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Value of ``ExitCode.INTERRUPTED``, whose module may not be imported yet."""


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    try:
        from oomscope.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("oomscope: interrupted\n")
        sys.exit(INTERRUPTED)
