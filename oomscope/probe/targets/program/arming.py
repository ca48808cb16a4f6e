"""How a started program comes by its card and its recorder: its environment asks for them when it imports torch.

Every Python process of the program pays for what is imported here, and most of them never import torch.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from oomscope.capture.arming import PYTHON_PATH, STARTUP
from oomscope.capture.import_hook import AroundImport
from oomscope.capture.singleton import PROBE_MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from oomscope.probe.targets.program.settings import ProgramSettings

STARTED: Final = "OOMSCOPE_STARTUP"
"""Names the module whose :func:`arm_from_environment` the ``sitecustomize`` in ``STARTUP`` calls."""
_LOCAL_WORLD: Final = "LOCAL_WORLD_SIZE"
_VARIABLE: Final = "OOMSCOPE_PROGRAM"  # as in settings, which is imported with torch


def variables(settings: ProgramSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let a program in ``environment``, and its children, be measured."""
    path = os.pathsep.join([STARTUP, *filter(None, [environment.get(PYTHON_PATH)])])
    return settings.variables() | {PYTHON_PATH: path, STARTED: __name__}


def arm_from_environment() -> None:
    """Measure this process from the moment that it imports torch, if it belongs to a started program.

    A worker of a probe that the program runs does not.
    """
    if not os.environ.get(_VARIABLE) or os.environ.get(PROBE_MARK) or "torch" in sys.modules:
        return
    AroundImport("torch", before=_before_torch, then=_after_torch).install()


def _before_torch() -> None:
    """Take the card into this process; one that cannot have it ends here, and its receipt says why."""
    from oomscope.errors import OomscopeError
    from oomscope.probe.targets.program.settings import from_environment

    settings = from_environment(os.environ)
    if settings is None or settings.backend != "virtual":
        return
    from oomscope import virtual

    _have_a_card_each(os.environ)
    try:
        _check_place(settings, os.environ)
        virtual.load()
    except OomscopeError as error:
        sys.stderr.write(f"oomscope: {error}\n")
        _leave_unfit(settings.folder, str(error))


def _have_a_card_each(environment: MutableMapping[str, str]) -> None:
    """Let each process of a launcher on this machine, such as torchrun, see as many cards as there are processes."""
    from oomscope.virtual.settings import VARIABLE

    ranks, card = environment.get(_LOCAL_WORLD, ""), environment.get(VARIABLE, "")
    if ranks.isdecimal() and card:
        keys = (f"devices={ranks}" if key.startswith("devices=") else key for key in card.split(";"))
        environment[VARIABLE] = ";".join(keys)


def _check_place(settings: ProgramSettings, environment: Mapping[str, str]) -> None:
    """Refuse to play one rank in each process of a launcher.

    Raises:
        MachineUnfitError: torchrun started this process, and a rank is to be played.
    """
    from oomscope.errors import MachineUnfitError
    from oomscope.probe.targets.world.environment import LAUNCHED

    if settings.world_size > 1 and LAUNCHED in environment:
        raise MachineUnfitError(
            "torchrun makes a world of its own, and --world-size plays one rank of another",
            remedy="leave out --world-size, or torchrun",
        )


def _leave_unfit(folder: str, why: str) -> NoReturn:
    from pathlib import Path

    from oomscope.probe.targets.program import receipt
    from oomscope.probe.targets.program.ending import EnoughSeen

    mine = receipt.Receipt.of_this_process()
    mine.unfit, mine.state = why, "ended"
    mine.write(receipt.path_of(Path(folder), mine.pid))
    raise EnoughSeen


def _after_torch() -> None:
    try:
        from oomscope.probe.targets.program.process import measure_this_process
        from oomscope.probe.targets.program.settings import from_environment

        settings = from_environment(os.environ)
        if settings is not None:
            _place_in_world(settings)
            measure_this_process(settings)
    except Exception as error:  # noqa: BLE001 - the program starts all the same, and leaves no receipt
        sys.stderr.write(f"oomscope: nothing is recorded: {type(error).__name__}: {error}\n")


def _place_in_world(settings: ProgramSettings) -> None:
    """Let torch.distributed find its world on a virtual card; a torch that is built without it has none."""
    import torch

    if settings.backend != "virtual" or not torch.distributed.is_available():
        return
    from oomscope.probe.targets.world.one_rank import play_one_rank

    if settings.world_size > 1:
        play_one_rank(settings.world_size)
