"""How a started program gets its card and its recorder: its environment asks for them when it imports torch.

Every Python process of the program pays for what is imported here, and most of them never import torch.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from oomscope.capture.arming import STARTED, STARTUP, AroundImport, with_startup
from oomscope.capture.singleton import PROBE_MARK
from oomscope.probe.targets import checkout_imports, opened_files
from oomscope.probe.targets.compiler import import_compiler_late

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from contextlib import AbstractContextManager

    from oomscope.probe.targets.program.receipt import ProgramSettings

_VARIABLE: Final = "OOMSCOPE_PROGRAM"  # same name as in receipt, which is imported with torch
_LOCAL_WORLD: Final = "LOCAL_WORLD_SIZE"
_LAUNCHED: Final = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets in each process that it starts."""
_PLACE: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", _LOCAL_WORLD)
"""Variables of the place in the world that the program was started with."""


def variables(settings: ProgramSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let a program in ``environment``, and its children, be measured."""
    return settings.variables() | with_startup(environment) | _kept_startup(environment) | {STARTED: __name__}


def _kept_startup(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a script that sets ``PYTHONPATH`` anew keeps oomscope's folder on it."""
    from oomscope.virtual.loading import LIBRARIES
    from oomscope.virtual.sonames import KEEPER

    keeper = LIBRARIES / KEEPER
    if not keeper.is_file() or any(mark in str(keeper) for mark in " :"):  # no card built, or a separator
        return {}
    preloaded = environment.get("LD_PRELOAD", "").split()  # the user's first: a sanitizer requires it
    preloaded += [str(keeper)] if str(keeper) not in preloaded else []
    return {"LD_PRELOAD": " ".join(preloaded), "OOMSCOPE_STARTUP_FOLDER": STARTUP}


def arm_from_environment() -> None:
    """Measure this process from the moment that it imports torch, if it belongs to a started program.

    A worker of a probe that the program runs does not.
    """
    opened_files.arm_from_environment()
    checkout_imports.arm_from_environment()
    if not os.environ.get(_VARIABLE) or os.environ.get(PROBE_MARK) or "torch" in sys.modules:
        return
    import random

    random.seed(_seed())  # before the program does: its own seed wins
    AroundImport("numpy.random", then=_seed_numpy).install()
    import_compiler_late()
    AroundImport("torch", before=_before_torch, within=_gc_paused_import, then=_after_torch).install()


def _seed() -> int:
    """Return the seed for a program without one: if it shuffles, each run then does the same."""
    text = os.environ.get("OOMSCOPE_SEED", "")
    return int(text) if text.isdecimal() else 0


def _seed_numpy() -> None:
    """Seed numpy, and what it takes where a program asks for a generator without a seed (``default_rng()``)."""
    import random

    module: Any = sys.modules["numpy.random"]
    module.seed(_seed() % 2**32)
    module.bit_generator.randbits = random.Random(_seed()).getrandbits  # noqa: S311 - no secret is made of it


def _before_torch() -> None:
    """Load the card into this process; a process that cannot have it ends here, and its receipt says why."""
    from oomscope.errors import MachineUnfitError, OomscopeError
    from oomscope.probe.targets.program.receipt import ProgramSettings

    settings = ProgramSettings.from_environment(os.environ)
    if settings is None or settings.backend != "virtual":
        return
    from oomscope import virtual

    have_a_card_each(os.environ)
    if settings.world_size and "--multiprocessing-fork" in sys.orig_argv:  # as by torch.multiprocessing.spawn
        for name in _PLACE:
            os.environ.pop(name, None)
    try:
        if settings.world_size and _LAUNCHED in os.environ:
            raise MachineUnfitError(
                "torchrun starts its own world, and --world-size plays one rank of another",
                remedy="leave out --world-size, or torchrun",
            )
        virtual.load()
    except OomscopeError as error:
        from oomscope.probe.targets.program.ending import EnoughIterations

        sys.stderr.write(f"oomscope: {error}\n")
        _leave_receipt(settings, unfit=str(error))
        raise EnoughIterations from None


def _leave_receipt(settings: ProgramSettings, **why: Any) -> None:
    """Leave the receipt of a process that is not measured."""
    from dataclasses import replace
    from pathlib import Path

    from oomscope.probe.targets.program.receipt import Receipt, path_of

    mine = replace(Receipt.of_this_process(), state="ended", **why)
    mine.write(path_of(Path(settings.folder), mine.pid))


def have_a_card_each(environment: MutableMapping[str, str]) -> None:
    """Let each process of a launcher on this machine, such as torchrun, see at least as many cards as processes."""
    from oomscope.virtual.settings import VARIABLE

    ranks, card = environment.get(_LOCAL_WORLD, ""), environment.get(VARIABLE, "")
    if ranks.isdecimal() and card:
        keys = dict(key.split("=", 1) for key in card.split(";"))
        keys["devices"] = str(max(int(ranks), int(keys["devices"])))
        environment[VARIABLE] = ";".join(map("=".join, keys.items()))


def _gc_paused_import() -> AbstractContextManager[None]:
    from oomscope.probe.recording.collector import gc_paused_import

    return gc_paused_import()


def _after_torch() -> None:
    """Play one rank where that is asked for, seed torch, and begin to measure."""
    import torch

    from oomscope.probe.targets.program.receipt import ProgramSettings

    settings = ProgramSettings.from_environment(os.environ)
    if settings is None:
        return
    try:
        from oomscope.probe.targets.program.process import MeasuredProcess

        if settings.backend == "virtual" and settings.world_size and torch.distributed.is_available():
            from oomscope.probe.targets.world import play_one_rank

            play_one_rank(settings.world_size)
        torch.manual_seed(_seed())
        MeasuredProcess(settings).arm()
    except Exception as error:  # noqa: BLE001 - the program starts all the same
        defect = f"torch {torch.__version__} cannot be recorded ({type(error).__name__}: {error})"
        sys.stderr.write(f"oomscope: {defect}\n")
        with suppress(OSError):
            _leave_receipt(settings, defect=defect)
