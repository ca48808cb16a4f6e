"""Whether the torch at hand was built for a card: a real one that it has no kernels for fails at the first launch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oomscope.virtual.cards import Card


def card_is_supported(card: Card, arch_list: Iterable[str]) -> bool:
    """Whether a torch built for ``arch_list`` has kernels that run on ``card``.

    Code for ``sm_XY`` runs on the same major capability and an equal or higher minor one, with an ``a`` behind only
    on that very capability; ``compute_XY`` is compiled by the driver for any capability that is not lower (CUDA C++
    Programming Guide, "Application Compatibility").

    Args:
        card: the card.
        arch_list: as ``torch.cuda.get_arch_list()`` returns it: ``sm_80``, ``sm_90a``, ``compute_120``.
    """
    return any(_runs_on(card.capability, arch) for arch in arch_list)


def _runs_on(capability: tuple[int, int], arch: str) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
    if match is None:
        return False
    built = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return built == capability
    return built <= capability and (match[1] == "compute" or built[0] == capability[0])
