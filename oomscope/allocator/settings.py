"""What a ``PYTORCH_ALLOC_CONF`` means to the allocator of a torch version; ``alloc_conf.py`` reads the text.

A key that torch knows and that changes what the caching allocator does on the device becomes a field. Keys of host
memory, of CUDA graph capture and of locking have no effect on what is modelled, and are accepted after the same checks.
What has no rules here is refused with the reason: ``backend:cudaMallocAsync`` and smaller address reservations.

Sources: c10/core/AllocatorConfig.cpp, c10/cuda/CUDAAllocatorConfig.cpp (before 2.10 only the latter), and observation
of the compiled allocators of torch 2.6 to 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomscope.allocator.alloc_conf import Version, parse_conf
from oomscope.allocator.engine.constants import (
    DIVISION_INTERVALS,
    LARGE_SEGMENT_DEFAULT,
    TIE_ADDRESS,
    TIE_BLOCK,
    TIE_SEGMENT,
    UNLIMITED,
)
from oomscope.errors import AllocatorConfError
from oomscope.printable import quoted
from oomscope.torch_versions import DEFAULT_RULES, OLDEST_RULES


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What an allocator configuration string means.

    Sizes are bytes. ``max_split_size`` is ``UNLIMITED`` unless set; ``roundup_power2_divisions`` holds one number for
    each interval from 1 MiB (and below) to 32 GiB (and above), 0 or 1 for plain rounding to 512 bytes.
    """

    conf: str = ""
    torch_version: str = DEFAULT_RULES
    expandable_segments: bool = False
    max_split_size: int = UNLIMITED
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * DIVISION_INTERVALS
    large_segment_size: int = LARGE_SEGMENT_DEFAULT
    max_non_split_rounding: int = LARGE_SEGMENT_DEFAULT
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False

    @classmethod
    def parse(cls, conf: str, *, torch_version: str = DEFAULT_RULES) -> AllocatorSettings:
        """Return the settings that ``conf`` gives an allocator of ``torch_version`` at its start.

        Raises:
            AllocatorConfError: an unknown version, key or value, with the column; or what has no rules here.
        """
        return cls(torch_version=torch_version).updated(conf)

    def updated(self, conf: str) -> AllocatorSettings:
        """Return the settings after ``conf`` is set at run time (``torch.cuda.memory._set_allocator_settings``).

        Torch resets ``max_split_size``, the divisions and the garbage collection threshold first (since 2.11 the
        non-split rounding too) and keeps the rest. The memory fraction counts only at the start.
        """
        fresh = AllocatorSettings()
        values = parse_conf(conf, self.version, self.large_segment_size)
        changes: dict[str, object] = {
            "max_split_size": fresh.max_split_size,
            "roundup_power2_divisions": fresh.roundup_power2_divisions,
            "garbage_collection_threshold": fresh.garbage_collection_threshold,
        }
        if self.version >= (2, 11):
            changes["max_non_split_rounding"] = values.get("large_segment_size_mb", self.large_segment_size)
        named = {key.removesuffix("_mb"): value for key, value in values.items()}
        changes |= {name: value for name, value in named.items() if hasattr(fresh, name)}
        changes["max_split_size"] = min(_int(changes["max_split_size"]), UNLIMITED)
        return replace(self, conf=conf, **changes)  # type: ignore[arg-type]

    @property
    def version(self) -> Version:
        """Major and minor of ``torch_version``."""
        return parse_version(self.torch_version)

    @property
    def tie_rule(self) -> int:
        """What orders equally large free blocks (pytorch PRs 178362 and 183591)."""
        if self.version >= (2, 13):
            return TIE_SEGMENT
        return TIE_BLOCK if self.version == (2, 12) else TIE_ADDRESS

    @property
    def pools_retry(self) -> bool:
        """Whether a request in a ``MemPool`` may give back cached blocks before it fails (pytorch PR 175374).

        Before, no request of a private pool could, as if a graph were being captured. Observed of torch 2.12 and 2.14.
        """
        return self.version >= (2, 13)

    @property
    def frees_short_reservations(self) -> bool:
        """Whether a reservation of addresses that is shorter than the request is given back before pages are mapped.

        Since torch 2.15, where reservations can be made smaller by a setting; before, it is mapped until memory runs
        out, and kept.
        """
        return self.version >= (2, 15)

    def limit_bytes(self, fraction: float | None, total_bytes: int) -> int | None:
        """Return what ``set_per_process_memory_fraction`` allows of the device; None where nothing is limited.

        A fraction of 1 lifts the limit since torch 2.10 (``setMemoryFraction``); before, all of the device is one.
        """
        if fraction is None or (fraction >= 1 and self.version >= (2, 10)):
            return None
        exact = fraction * total_bytes
        return int(exact + 0.5) if self.version >= (2, 13) else int(exact)


def parse_version(text: str) -> Version:
    """Return major and minor of a torch version such as ``2.11.0+cu130``.

    Raises:
        AllocatorConfError: no version, or one older than 2.0.
    """
    parts = text.split(".")
    if len(parts) < 2 or not parts[0].isdecimal() or not parts[1].isdecimal():
        raise AllocatorConfError(f"{quoted(text)} is no torch version", remedy="give one such as 2.13")
    version = int(parts[0]), int(parts[1])
    if version < OLDEST_RULES:
        raise AllocatorConfError(f"torch {text} is older than any supported version", remedy="give 2.0 or newer")
    return version


def _int(value: object) -> int:
    return value if isinstance(value, int) else UNLIMITED
