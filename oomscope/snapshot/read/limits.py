"""How much of the machine an untrusted file may use while it is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Final

from oomscope.errors import InputError, UsageError
from oomscope.units import GiB, MiB, parse_size

ALLOW_MORE: Final = "record fewer events (max_entries), or allow more"
REMEDY: Final = "write it as in memory=32GiB or seconds=60"
UNPACKED_PER_BYTE: Final = 256
"""Unpacked bytes that count for each byte on disk; what is beyond buys no more memory."""
MEMORY_TO_START: Final = 256 * MiB
"""Address space that any file may take beyond the reader's own: buffers, a decompressor's window."""
MEMORY_PER_BYTE: Final = 32
"""Bytes of memory that each unpacked byte may take, so that a small file is never a large one in disguise."""
SECONDS_TO_START: Final = 10
"""Processor time that any file may take."""
SECONDS_PER_MIB: Final = 1
"""Processor time that each unpacked MiB may take."""


def half_of_the_machine() -> int:
    """Return half of the memory that this machine has, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a file may take before it is refused; reading ends at the first of these that is reached."""

    file: int = 4 * GiB
    """Bytes on disk."""
    unpacked: int = 16 * GiB
    """Bytes after decompression."""
    memory: int = field(default_factory=half_of_the_machine)
    """Bytes of address space, whatever the size of the file: half of the machine's memory."""
    seconds: int = 3600
    """Seconds of processor time, whatever the size of the file."""

    def __post_init__(self) -> None:
        """Refuse limits under which nothing could be read."""
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise UsageError("a limit is at least 1", where=each.name, remedy=REMEDY)

    @classmethod
    def of(cls, settings: Iterable[str]) -> Limits:
        """Return the defaults changed by ``settings`` such as ``memory=32GiB``.

        Raises:
            UsageError: one of them is not ``NAME=VALUE``, names no limit, or has a value that is not a whole number.
        """
        limits = cls()
        known = [each.name for each in fields(cls)]
        for setting in settings:
            name, _, text = setting.partition("=")
            if name not in known:
                raise UsageError(f"no such limit; limits are {', '.join(known)}", where=setting, remedy=REMEDY)
            try:
                limits = replace(limits, **{name: parse_size(text)})
            except InputError as error:
                raise UsageError(error.message, where=setting, remedy=REMEDY) from error
        return limits
