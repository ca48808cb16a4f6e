"""Finds the commands in the pages: every fenced block of the language ``console``, and what is said of it.

A line that begins with ``$ `` is a command and the lines below it are what it prints; ``...`` or ``…`` alone on a line
stands for lines that were cut. Without any ``$ `` each line is a command, and what it prints is not shown. A comment
above the block says what is special about it::

    <!-- not run: needs a GPU -->
    <!-- run by tests/integration/test_demo.py -->
    <!-- exits 3 -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = {ROOT / "docs" / "examples" / name for name in ("comment.md", "summary.md")}
"""Pages that oomscope wrote, for others to post."""
PAGES = [*sorted(ROOT.glob("*.md")), *sorted({*ROOT.glob("docs/**/*.md"), *ROOT.glob("fixtures/**/*.md")} - MADE)]
REASONS = frozenset(
    {
        "needs a GPU",
        "needs a cluster",
        "needs a program",
        "needs the network",
        "takes minutes",
        "installs packages",
        "runs the tests",
    }
)
"""Why a block may stand unrun."""

_FENCE = re.compile(
    r"^(?:<!-- (?P<remark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_PROGRAM = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:oomscope|git|make|python|pip) ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line, and what the page shows of its standard output (None: nothing is shown)."""

    text: str
    shown: str | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of commands."""

    page: str
    """The page's path from the root of the project."""
    line: int
    """Where the block's first command stands."""
    commands: tuple[Command, ...]
    remark: str = ""
    """What the comment above it says."""

    @property
    def name(self) -> str:
        """Where it stands, for people."""
        return f"{self.page}:{self.line}"

    @property
    def not_run(self) -> str | None:
        """Why it is not run; None where it is."""
        return self.remark.removeprefix("not run: ") if self.remark.startswith("not run: ") else None

    @property
    def run_by(self) -> str | None:
        """The test that runs it in place of these."""
        return self.remark.removeprefix("run by ") if self.remark.startswith("run by ") else None

    @property
    def is_run(self) -> bool:
        """Whether it is run here."""
        return self.not_run is None and self.run_by is None

    @property
    def exit_code(self) -> int:
        """What each of its commands ends with."""
        return int(self.remark.removeprefix("exits ")) if self.remark.startswith("exits ") else 0

    @property
    def is_understood(self) -> bool:
        """Whether the remark is one of those that there are."""
        if self.not_run is not None:
            return set(self.not_run.split(", ")) <= REASONS
        if self.run_by is not None:
            return (ROOT / self.run_by).is_file()
        return not self.remark or re.fullmatch(r"exits \d+", self.remark) is not None


def blocks(text: str, page: str) -> list[Block]:
    """Return the blocks of commands in ``text``, the Markdown of ``page``."""
    return [
        Block(
            page=page,
            line=text.count("\n", 0, fence.start("text")) + 1,
            commands=tuple(_commands(fence["text"])),
            remark=fence["remark"] or "",
        )
        for fence in _FENCE.finditer(text)
        if fence["language"] == "console"
    ]


def strays(text: str) -> list[str]:
    """Return the first lines of blocks that hold commands and are in no language, so that nobody would run them."""
    return [
        fence["text"].partition("\n")[0]
        for fence in _FENCE.finditer(text)
        if fence["language"] != "console" and _PROGRAM.match(fence["text"])
    ]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of commands in the file ``page``."""
    return blocks(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))


def _commands(text: str) -> Iterator[Command]:
    if not re.search(r"^\$ ", text, re.MULTILINE):
        yield from (Command(text=line) for line in _joined(text).splitlines() if line.strip())
        return
    for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        first, _, shown = _joined(piece, first_only=True).partition("\n")
        yield Command(text=first, shown=shown or None)


def _joined(text: str, *, first_only: bool = False) -> str:
    """Join lines that end in a backslash with the next; only the lines of the command where output follows."""
    if not first_only:
        return text.replace("\\\n", " ")
    lines = text.split("\n")
    while lines[0].endswith("\\"):
        lines[:2] = [lines[0][:-1] + lines[1].strip()]
    return "\n".join(lines)
