"""Whose memory ran out: the card's as the code used it, or what the rest of the machine had left by chance."""

from __future__ import annotations

from oomscope.probe.result import ProbeResult
from oomscope.snapshot.verdict_types import VerdictKind

_MEMORY_OF_THE_MACHINE: frozenset[VerdictKind] = frozenset({"host", "outside"})
"""Who refused memory where it was not the caching allocator: how much they had left depends on what else runs."""
_OTHERS_ON_THE_CARD = "foreign"


def is_of_the_machine(result: ProbeResult) -> bool:
    """Whether ``result`` ran out of memory that other programs may have taken, so that it says little of the code.

    That is an OOM of the host or of a library beside the caching allocator, and one that other processes on the card
    had a part in. On a virtual card what others hold is a setting, and repeats.
    """
    verdict = result.verdict
    if verdict is None:
        return False
    with_others = _OTHERS_ON_THE_CARD in verdict.tags and result.backend == "cuda"
    return verdict.kind in _MEMORY_OF_THE_MACHINE or with_others
