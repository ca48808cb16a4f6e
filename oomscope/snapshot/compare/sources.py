"""The source of a recorded program, looked up in a checkout that the user names.

A recorded path is of another machine: what counts is its longest end that exists in the checkout. Nothing outside the
checkout is read, whatever path a snapshot holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oomscope.errors import InputError
from oomscope.snapshot.compare.matching import Text, no_text
from oomscope.units import MiB

LARGEST_FILE: Final = 4 * MiB
LONGEST_END: Final = 32
"""Components of a recorded path that are tried at most."""


@dataclass(frozen=True)
class SourceTree:
    """A checkout.

    Args:
        root: its folder.
    """

    root: Path

    def __call__(self, file: str) -> list[str] | None:
        """Return the lines of a recorded file; None where the checkout does not have it, or it is no text."""
        found = self._find(file)
        if found is None:
            return None
        try:
            return lines_of(found.read_bytes())
        except OSError:
            return None

    def _find(self, file: str) -> Path | None:
        """Return the file of the checkout at the longest end of the recorded path."""
        parts = [part for part in file.replace("\\", "/").split("/") if part][-LONGEST_END:]
        if not parts or any(part in {".", ".."} or "\0" in part for part in parts):
            return None
        root = self.root.resolve()
        ends = (root.joinpath(*parts[start:]) for start in range(len(parts)))
        return next((path for path in ends if _is_source(path, root)), None)


def lines_of(content: bytes) -> list[str] | None:
    """Return the lines of a source file as Python counts them; None where it is no text.

    ``str.splitlines`` would break a line at a form feed as well, and all numbers after it would be wrong.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return text.removesuffix("\n").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def text_of(source: Path | None) -> Text:
    """Return what looks the lines of a program up in a checkout; None: its text is not at hand.

    Raises:
        InputError: the checkout is no folder.
    """
    if source is not None and not source.is_dir():
        raise InputError("is no folder", where=str(source), remedy="give the checkout that was recorded")
    return SourceTree(source) if source else no_text


def _is_source(path: Path, root: Path) -> bool:
    try:
        return path.is_file() and path.resolve().is_relative_to(root) and path.stat().st_size <= LARGEST_FILE
    except OSError:
        return False
