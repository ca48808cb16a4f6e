"""Folders of installed packages, one for each set, made by pip when first needed and kept beside the results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oomscope.errors import TargetError
from oomscope.probe.process.tempdirs import room

_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check")
_ROOM = "see that it can be written to and that its disk has room"


@dataclass(frozen=True)
class Overlays:
    """Folders under ``root``, named by what is in them. Several searches may share it."""

    root: Path

    def folder(self, requirements: Sequence[str]) -> Path:
        """Return where ``requirements`` are, or will be."""
        made_of = [sys.version, sys.platform, *sorted(requirements)]
        return self.root / hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]

    def install(self, requirements: Sequence[str]) -> None:
        """Install ``requirements``, and nothing that they depend on, unless they are there already.

        pip takes its index from its own variables and settings (``PIP_INDEX_URL``, ``PIP_NO_INDEX``,
        ``PIP_FIND_LINKS``). A folder is there whole or not at all.

        Raises:
            TargetError: pip failed; says what it said, in one line.
        """
        folder = self.folder(requirements)
        if folder.is_dir():
            return
        with room(self.root, "install") as place:
            made = place / "packages"
            command = [*_PIP, "--target", str(made), *sorted(requirements)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode != 0:
                said = _complaint(done.stderr.decode(errors="replace"), done.returncode)
                raise TargetError(said, where="pip install", remedy="see that pip's index has these versions")
            with contextlib.suppress(OSError):  # another search made it meanwhile
                made.rename(folder)
        if not folder.is_dir():
            raise TargetError("the folder of packages could not be put in its place", where=str(folder), remedy=_ROOM)


def _complaint(said: str, status: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].removeprefix("ERROR: ") if errors else f"status {status}"
