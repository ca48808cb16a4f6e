"""Files that a commit at an end of a search lacks, since git does not track them and the user's checkout has them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final, NamedTuple

from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.bisect.vcs.git import Git
from oomscope.errors import OomscopeError

_NOT_FOUND: Final = re.compile(r"No such file or directory: '([^'\n]{1,500})'")
_LAST_BYTES: Final = 16_384


class MissingFile(NamedTuple):
    """What the program did not find."""

    name: str
    link: str
    """The file, or the folder around it, of which git tracks nothing: what checkouts are to link to."""


def missing_file(result: BisectResult, folder: Path) -> MissingFile | None:
    """Return the file of ``folder`` that git does not track, and that an end of a search lacks.

    None where the ends lack no such file.
    """
    git = Git(folder, (folder,))

    def is_untracked(path: str) -> bool:
        return not git.listed("ls-files", "-z", "--", f":(literal){path}")

    for probe in result.untestable:
        for name in _NOT_FOUND.findall(_last_output(probe)) if probe.role in {"good end", "bad end"} else ():
            parts = Path(name).parts
            if Path(name).is_absolute() or ".." in parts or not (folder / name).exists():
                continue
            with contextlib.suppress(OomscopeError, OSError):
                beginnings = (str(Path(*parts[:length])) for length in range(1, len(parts) + 1))
                if is_untracked(name) and (link := next(filter(is_untracked, beginnings), None)):
                    return MissingFile(name, link)
    return None


def _last_output(probe: ProbeRecord) -> str:
    """Return the end of the output of a failed target."""
    with contextlib.suppress(OSError):
        if probe.log is not None:
            with Path(probe.log).open("rb") as file:
                file.seek(max(0, Path(probe.log).stat().st_size - _LAST_BYTES))
                return file.read().decode(errors="replace")
    return probe.reason
