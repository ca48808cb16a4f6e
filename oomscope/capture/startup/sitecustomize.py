"""Found by Python at start-up because its folder is on PYTHONPATH: runs the next file of its name, then arms.

Whatever goes wrong here is one line on standard error, for the program that starts is somebody else's. Every Python
process of a job pays for what is imported here, hence no pathlib.
"""

# ruff: noqa: PTH100, PTH120
from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
"""The folder that has the package ``oomscope``."""


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
    """Let the program be recorded as its environment asks: by ``oomscope record``, or by a probe that started it."""
    asked = ["oomscope.capture.arming"] if os.environ.get("OOMSCOPE_RECORD") else []
    asked += filter(None, os.environ.get("OOMSCOPE_STARTUP", "").split(","))
    for module in asked:
        try:
            load(module).arm_from_environment()
        except Exception as error:  # noqa: BLE001 - the program starts all the same
            sys.stderr.write(f"oomscope: nothing is recorded: {error}\n")


def load(module: str) -> ModuleType:
    """Import a module of the oomscope that this file belongs to, which the program's Python may not have installed.

    Its place is on ``sys.path`` for the import of the package alone, so that nothing beside it is found later.
    """
    import importlib

    if "oomscope" not in sys.modules:
        sys.path.insert(0, PLACE)
        try:
            importlib.import_module("oomscope")
        finally:
            sys.path.remove(PLACE)
    return importlib.import_module(module)


try:
    run_next()
finally:
    arm()
