"""Finds mistakes in what a configuration or the environment says of card and allocator, before anything is measured.

The schema knows that these values are text; what the text means is known to the allocator, to the list of cards and to
cuBLAS's own variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from oomscope.allocator.confparser import VARIABLE
from oomscope.allocator.settings import AllocatorSettings
from oomscope.errors import AllocatorConfError, ConfigError, OomscopeError
from oomscope.probe.job import ProbeJob
from oomscope.probe.machine.environment import CUBLAS_VARIABLE, allocator_variable
from oomscope.probe.machine.fingerprint import installed_torch
from oomscope.units import KiB
from oomscope.virtual.cards import find_card

if TYPE_CHECKING:
    from oomscope.config.load import LoadedConfig


def check_card(loaded: LoadedConfig) -> None:
    """Check the card's name, the allocator's settings and cuBLAS's.

    Raises:
        ConfigError: no card goes by that name, or torch would not take the settings; names key and place.
    """
    allocator, device = loaded.config.allocator, loaded.config.device
    checks: tuple[tuple[str, str | None, Callable[[str], object]], ...] = (
        ("device.gpu", device.gpu, find_card),
        ("allocator.conf", allocator.conf, _allocator),
        ("device.cublas_workspace_config", device.cublas_workspace_config, workspace_bytes),
    )
    for key, value, parse in checks:
        try:
            if value is not None:
                parse(value)
        except OomscopeError as error:
            inside = f"{error.where}: {error.message}" if error.where else error.message
            raise ConfigError(f"{key}: {inside}", where=loaded.where((key,)), remedy=error.remedy) from None


def check_environment(job: ProbeJob, environment: Mapping[str, str]) -> None:
    """Check the variables of torch's allocator and of cuBLAS, where they are in force because ``job`` sets nothing.

    Raises:
        AllocatorConfError: torch would not take the allocator's variable.
        ConfigError: cuBLAS's cannot be read.
    """
    name = allocator_variable(environment)
    if name is not None and not job.allocator_conf:
        try:
            _allocator(environment[name])
        except AllocatorConfError as error:
            place = (error.where or VARIABLE).replace(VARIABLE, name, 1)
            raise AllocatorConfError(
                error.message, where=f"environment variable {place}", remedy=error.remedy
            ) from None
    workspace = environment.get(CUBLAS_VARIABLE)
    if workspace and not job.cublas_workspace_config:
        workspace_bytes(workspace)


def _allocator(conf: str) -> AllocatorSettings:
    return AllocatorSettings.parse(conf, torch_version=installed_torch())


_PAIR = re.compile(r":(\d+):(\d+)")


def workspace_bytes(config: str) -> int:
    """Return the bytes of ``config``, a sum of ``:KiB:count``.

    Source: PyTorch aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.

    Raises:
        ConfigError: there is no ``:KiB:count`` in it. (Torch warns, and takes its default.)
    """
    pairs = _PAIR.findall(config)
    if not pairs:
        raise ConfigError(f"cannot read {config!r}", where=CUBLAS_VARIABLE, remedy="give it as :4096:8")
    return sum(int(size) * int(count) for size, count in pairs) * KiB
