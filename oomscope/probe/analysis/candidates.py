"""Which allocator settings are worth a whole run after a failure by fragmentation, and in which order.

Expandable segments come first, because they leave least overhead on training runs; then what a replay showed to serve
the recorded allocations. The others are for the case that none of these cures it: on 187 programs that some setting
cures, the first ones below cure all but a few (``benchmarks/fragmentation``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from oomscope.allocator import AllocatorSettings
from oomscope.errors import AllocatorConfError
from oomscope.snapshot.replaying.fixes import WITH_FRACTION, Rules, merged
from oomscope.units import MiB

EXPANDABLE: Final = "expandable_segments:True"
_WITH_EXPANDABLE: Final = (
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:16",
)
"""Smaller pages: with the 20 MiB of the default a request above 1 MiB may need 20 MiB that are free in one piece."""
_WITHOUT_EXPANDABLE: Final = (
    "expandable_segments:False",
    "expandable_segments:False,max_split_size_mb:20,large_segment_size_mb:12",
)
"""For a program that runs with expandable segments and fails."""
_SMALL_SEGMENTS: Final = "max_split_size_mb:20,large_segment_size_mb:12"
_SPLIT_MIB: Final = (20, 64, 256, 1024)
"""Values of max_split_size_mb; one that no request reaches changes nothing."""
_ROUNDED: Final = ("max_split_size_mb:64,roundup_power2_divisions:16", "roundup_power2_divisions:16")


def first_candidates(rules: Rules, replayed: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that are run in any case: expandable segments, and those whose replay passes."""
    return _distinct([EXPANDABLE, *replayed], rules)


def further_candidates(rules: Rules, *, largest_request_bytes: int, has_fraction: bool) -> tuple[str, ...]:
    """Return the settings that are run where none of the first leaves room.

    Args:
        rules: whose allocator it is.
        largest_request_bytes: of the recorded run.
        has_fraction: a memory fraction is set, without which a threshold of garbage collection does nothing.
    """
    splits = [f"max_split_size_mb:{size}" for size in _SPLIT_MIB if size * MiB <= largest_request_bytes]
    is_expandable = rules.settings().expandable_segments
    others = _WITHOUT_EXPANDABLE if is_expandable else (_SMALL_SEGMENTS, *splits, *_ROUNDED)
    return _distinct([*_WITH_EXPANDABLE, *others, *(WITH_FRACTION if has_fraction else ())], rules)


def _distinct(names: Iterable[str], rules: Rules) -> tuple[str, ...]:
    """Return the names that make other settings of ``rules``, which this torch knows; the first of those alike."""
    recorded = replace(rules.settings(), conf="")
    found: dict[AllocatorSettings, str] = {}
    for name in names:
        conf = merged(rules.conf, name)
        try:
            settings = AllocatorSettings.parse(conf, torch_version=rules.torch_version)
        except AllocatorConfError:
            continue
        found.setdefault(replace(settings, conf=""), name)
    return tuple(name for settings, name in found.items() if settings != recorded)
