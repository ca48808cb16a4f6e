"""Finds mistakes in what a configuration or the environment says of card and allocator, before anything is measured.

The schema knows that these values are text; what the text means is known to the allocator, to the list of cards and to
cuBLAS's own variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from oomscope.allocator.settings import AllocatorSettings
from oomscope.errors import AllocatorConfError, ConfigError, OomscopeError
from oomscope.printable import quoted
from oomscope.probe.job import ProbeJob
from oomscope.probe.machine.environment import CUBLAS_VARIABLE, allocator_variable
from oomscope.probe.machine.fingerprint import installed_torch
from oomscope.torch_versions import CONF_VARIABLE
from oomscope.units import format_size
from oomscope.virtual.cards import DEFAULT_CARD, Card, find_card

if TYPE_CHECKING:
    from oomscope.config.load import LoadedConfig

_FLASH_SINCE = (8, 0)
"""First compute capability with flash attention: Ampere's."""


def check_card(loaded: LoadedConfig, *, has_model: bool = True) -> None:
    """Check the card's name, the allocator's settings and cuBLAS's; unless it is another program's, the model as well.

    Raises:
        ConfigError: no card goes by that name, nothing of it is left, it lacks the kernels of the model's attention, or
            torch would not take the settings; names key and place.
    """
    allocator, device = loaded.config.allocator, loaded.config.device
    checks: tuple[tuple[str, str | None, Callable[[str], object]], ...] = (
        ("device.gpu", device.gpu, find_card),
        ("allocator.conf", allocator.conf, _allocator),
        ("device.cublas_workspace_config", device.cublas_workspace_config, _check_workspace),
    )
    for key, value, parse in checks:
        try:
            if value is not None:
                parse(value)
        except OomscopeError as error:
            inside = f"{error.where}: {error.message}" if error.where else error.message
            raise ConfigError(f"{key}: {inside}", where=loaded.where((key,)), remedy=error.remedy) from None
    if loaded.config.probe.backend == "cuda":
        return
    if has_model and device.gpu is not None:
        _check_attention(loaded, find_card(device.gpu))
    taken = device.non_torch_bytes + device.other_process_bytes
    card = find_card(device.gpu or DEFAULT_CARD)
    if device.limit is None and taken >= card.total_bytes:
        raise ConfigError(
            f"a card of {format_size(card.total_bytes)} ({card.name}) has nothing left after {format_size(taken)} "
            "that are not the allocator's",
            where=loaded.where(("device.non_torch_bytes", "device.other_process_bytes", "device.gpu")),
            remedy="lower device.non_torch_bytes and device.other_process_bytes, or name a larger card",
        )


def _check_attention(loaded: LoadedConfig, card: Card) -> None:
    """Refuse flash attention on a card that is older than its kernels.

    Source: PyTorch aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd.
    """
    if loaded.config.attention_backend != "flash" or card.capability >= _FLASH_SINCE:
        return
    major, minor = card.capability
    raise ConfigError(
        f"device.gpu: a {card.name} (compute capability {major}.{minor}) has no kernels of flash attention, which need "
        f"{_FLASH_SINCE[0]}.{_FLASH_SINCE[1]}",
        where=loaded.where(("device.gpu",)),
        remedy="set model.attention_backend=unfused, or name another card",
    )


def check_environment(job: ProbeJob, environment: Mapping[str, str]) -> None:
    """Check the variable of torch's allocator, where it is in force because ``job`` sets nothing.

    Raises:
        AllocatorConfError: torch would not take it.
    """
    name = allocator_variable(environment)
    if name is None or job.allocator_conf:
        return
    try:
        _allocator(environment[name])
    except AllocatorConfError as error:
        place = (error.where or CONF_VARIABLE).replace(CONF_VARIABLE, name, 1)
        raise AllocatorConfError(error.message, where=f"environment variable {place}", remedy=error.remedy) from None


def _allocator(conf: str) -> AllocatorSettings:
    return AllocatorSettings.parse(conf, torch_version=installed_torch())


def _check_workspace(config: str) -> None:
    """Refuse what torch would warn of, and take its default for.

    Source: PyTorch aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.
    """
    if not re.search(r":(\d+):(\d+)", config):
        raise ConfigError(f"cannot read {quoted(config)}", where=CUBLAS_VARIABLE, remedy="give it as :4096:8")
