"""Files damaged by number, and what a command may say of them: one line and an exit code of the table, no defect.

``OOMSCOPE_FUZZ=20`` tries twenty times as many as a usual run of the tests; a number names the same damage always.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode

TIMES: Final = int(os.environ.get("OOMSCOPE_FUZZ", "1"))
DEFECTS: Final = {ExitCode.INTERNAL, ExitCode.BROKEN_PIPE, ExitCode.INTERRUPTED}
_WORDS: Final = """
    null ~ true -1 0 1e400 .nan -.inf 0x1F 1_000 2026-02-30 12:61:61 "" ' [ ] { {} [] [[[[]]]] &a *a | --- ...
    ../../etc/passwd --upload-pack=x $(id) <script>alert(1)</script> é
"""
ODD: Final = (
    *_WORDS.split(),
    *('"\\ud800"', "9" * 400, "{a: {b: {c: 1}}}", "!!python/object/apply:os.system [id]", "!!binary aGk=", "!!set {a}"),
    *("&a [*a]", "<<: {a: 1}", "? x", "%YAML 9.9", "\t", "\x00", "\x1b[31m", "\u202e", "\ufeff", "\u2028", "a" * 5000),
)
_VALUE: Final = re.compile(r"(?<=[:\-\[,] )[^\n,\]]+|(?<=\")[^\"]*(?=\")|\d+")


def damaged(content: bytes, number: int) -> bytes:
    """Return ``content`` damaged in one to three places: bits, cuts and odd values; the same for the same number."""
    dice = random.Random(number)
    for _ in range(dice.randint(1, 3)):
        content = dice.choice((_flip, _cut, _value, _value, _value, _line, _twice))(content, dice)
    return content


def _flip(content: bytes, dice: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _cut(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def _value(content: bytes, dice: random.Random) -> bytes:
    text = content.decode(errors="surrogateescape")
    places = list(_VALUE.finditer(text))
    if not places:
        return content + dice.choice(ODD).encode()
    place = dice.choice(places)
    text = text[: place.start()] + dice.choice(ODD) + text[place.end() :]
    return text.encode(errors="surrogateescape")


def _line(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at = dice.randrange(len(lines))
    lines[at] = dice.choice((b"", b" " + lines[at], lines[at].lstrip(), lines[at].replace(b": ", b" ", 1), b"\xff\n"))
    return b"".join(lines)


def _twice(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    lines.insert(dice.randrange(len(lines)), dice.choice(lines))
    return b"".join(lines)


@dataclass
class Told:
    """What commands said so far: how often they ended how, and what they should not have said."""

    capsys: pytest.CaptureFixture[str]
    codes: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def by(self, name: str, *words: str) -> int:
        """Run a command; ``name`` says of which damage, in what is wrong."""
        self.capsys.readouterr()
        code = run(list(words))
        said = self.capsys.readouterr()
        self.codes[code] += 1
        errors = [line for line in said.err.splitlines() if line.startswith("oomscope: ")]
        lines = len(said.err.splitlines())
        is_one_line = code in {ExitCode.OK, ExitCode.REGRESSION} or said.out or (len(errors) == 1 == lines)
        if code not in set(ExitCode) - DEFECTS or "Traceback" in said.err + said.out or not is_one_line:
            self.wrong.append(f"{name}: {' '.join(words)} ended with {code} and said {said.err[-600:]!r}")
        if any(ord(letter) < 32 and letter not in "\n\t" for letter in said.out + said.err):
            self.wrong.append(f"{name}: {' '.join(words)} sent a control character")
        return code


def numbers(usual: int, first: int = 0) -> Iterator[int]:
    """Return the numbers of this run."""
    return iter(range(first, first + usual * TIMES))


def spoilt(path: Path) -> Iterator[str]:
    """Put one thing after another in the place of ``path``, which no file should be, and yield its name."""
    path.unlink()
    yield "nothing"
    path.write_bytes(b"")
    yield "an empty file"
    path.write_bytes(bytes(range(256)) * 16)
    yield "binary"
    path.unlink()
    path.mkdir()
    yield "a folder"
    path.rmdir()
    path.symlink_to(path)
    yield "a link to itself"
