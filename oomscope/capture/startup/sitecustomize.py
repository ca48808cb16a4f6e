"""Found by Python at start-up because its folder is on PYTHONPATH: gives way to the next file of its name, then arms.

Whatever goes wrong here is one line on standard error, for the program that starts is somebody else's. Every Python
process of a job pays for what is imported here, hence no pathlib.
"""

# ruff: noqa: PTH120
from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def run_next() -> None:
    """Run the ``sitecustomize`` that Python would have found without this one: the distribution's or the user's."""
    here = os.path.realpath(os.path.dirname(__file__))
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if os.path.realpath(entry) != here])
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def arm() -> None:
    """Let a recording begin as soon as the program uses CUDA, where the environment asks for one."""
    if not os.environ.get("OOMSCOPE_RECORD"):
        return
    try:
        from oomscope.capture.arming import arm_from_environment

        arm_from_environment()
    except Exception as error:  # noqa: BLE001 - the program starts all the same
        sys.stderr.write(f"oomscope: nothing is recorded: {error}\n")


try:
    run_next()
finally:
    arm()
