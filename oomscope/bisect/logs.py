"""What probes said that failed, as files: a traceback or the end of the output, which one line cannot hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oomscope.files import write_whole

_DIGITS = 10


@dataclass(frozen=True)
class Logs:
    """One file for each thing said; what is said again is the same file.

    Args:
        directory: where the files are; made when first written to.
        warn: told, in one line, of a file that cannot be written.
    """

    directory: Path
    warn: Callable[[str], None]

    def keep(self, text: str, name: str) -> str | None:
        """Write ``text``, said by the probe of ``name``, and return the file's path; None where nothing was kept."""
        if not text:
            return None
        data = text.encode(errors="backslashreplace")
        path = self.directory / f"{name}-{hashlib.sha256(data).hexdigest()[:_DIGITS]}.txt"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, force=True)
        except OSError as error:
            self.warn(f"{path}: cannot be written ({error.strerror})")
            return None
        return str(path)
