"""The platform tag of a wheel that carries the card, read from the symbol versions that its library wants.

A wheel may be tagged ``manylinux_X_Y`` where it runs on every Linux with glibc X.Y or newer (PEP 600): it wants no
newer symbol, and no library that is not everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from oomscope.errors import MachineUnfitError
from oomscope.virtual.elf import read_elf

_EVERYWHERE = re.compile(r"(libc|libm|libdl|libpthread|librt)\.so\.\d|ld-linux-[a-z0-9-]+\.so\.\d")
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(\.\d+)?")
_OLDEST = (2, 17)
"""What every platform of PEP 600 with 64 bits has at least; older symbols need no older tag."""


def platform_tag(library: Path) -> str:
    """Return the tag of a wheel whose only compiled code is ``library`` and what needs it.

    Raises:
        MachineUnfitError: it wants libraries or versions that a machine need not have.
        OSError, ValueError: it cannot be read.
    """
    elf = read_elf(library)
    foreign = [name for name in elf.needed if not _EVERYWHERE.fullmatch(name)]
    foreign += sorted({symbol.version for symbol in elf.wanted if symbol.version and not _GLIBC.match(symbol.version)})
    if foreign:
        raise MachineUnfitError(
            f"needs {', '.join(foreign)}, which is not on every Linux", where=str(library), remedy="link it statically"
        )
    versions = [match for symbol in elf.wanted if (match := _GLIBC.match(symbol.version))]
    major, minor = max([(int(match[1]), int(match[2])) for match in versions] + [_OLDEST])
    return f"manylinux_{major}_{minor}_{elf.machine}"
