"""Which backend measures a job on this machine, found without importing torch and without a call of CUDA.

After a call of CUDA no fork of a process could use a card, and importing torch takes a second.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Final

from oomscope import virtual
from oomscope.errors import MachineUnfitError
from oomscope.probe.job import Backend, ProbeJob, ProgramTarget, RunsOn
from oomscope.probe.machine.environment import VISIBLE_CARDS, environment_of
from oomscope.probe.machine.nvml import list_cards
from oomscope.virtual import loading
from oomscope.virtual.installed_torch import find_torch

_HIDES_CARDS: Final = {"", "-1", "NoDevFiles"}
"""Values of CUDA_VISIBLE_DEVICES that leave a process no card."""


def backend_of(job: ProbeJob, environment: Mapping[str, str] = os.environ) -> RunsOn:
    """Return the backend that ``job.backend`` stands for here.

    ``auto`` is cuda where there is a card and a torch that can use it, else virtual. A program brings its own torch.
    """
    if job.backend != "auto":
        return job.backend
    is_program = isinstance(job.target, ProgramTarget)
    if is_program and job.world_size > 1:  # only a virtual card plays a rank whose peers are not there
        return "virtual"
    hidden = environment_of(job, environment).get(VISIBLE_CARDS) in _HIDES_CARDS
    if not hidden and (is_program or _torch_has_cuda()) and has_card():
        return "cuda"
    return "virtual"


def has_card() -> bool:
    """Whether the driver lists a card; none is seen where the virtual one has taken the driver's place."""
    if virtual.is_loaded() or not loading.has_gpu():
        return False
    try:
        return bool(list_cards())
    except MachineUnfitError:
        return False


def refuse_without_card(backend: Backend) -> None:
    """Refuse a backend that needs a GPU where there is none.

    Raises:
        MachineUnfitError: cuda is asked for.
    """
    if backend == "cuda" and not has_card():
        remedy = "use --backend virtual, which needs none"
        raise MachineUnfitError("there is no GPU", where="--backend cuda", remedy=remedy)


@cache
def has_virtual_card() -> bool:
    """Whether the virtual card can be loaded for the torch at hand."""
    try:
        loading.check()
    except MachineUnfitError:
        return False
    return True


@cache
def _torch_has_cuda() -> bool:
    torch = find_torch()
    return torch is not None and torch.cuda is not None
