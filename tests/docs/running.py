"""Runs a command of a page as a reader would, and says where what it prints is not what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from oomscope.cli.main import run

STAND_INS = {"llama3-8b": "gpt-tiny", "llama3-70b": "gpt-tiny"}
"""Presets in commands whose output is not shown, and what is measured in their place in a tenth of the time."""

_SHELL = re.compile(r"[|<>;$]|&&")
_SECONDS = re.compile(r"\((?:\d+\.\d s|cached)\)")
_OWN_LINE = re.compile(r"((?:oomscope|…)/model/(?:\w+/)*\w+\.py|cross_entropy\.py):\d+")
_RULE = re.compile(r"─+")
_CUT = re.compile(r"^(?:\.\.\.|…)\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What came of a command."""

    code: int
    printed: str
    remarks: str


def carry_out(text: str, capsys: pytest.CaptureFixture[str], *, is_shown: bool) -> Done:
    """Run the command line ``text`` in the working directory.

    A command of oomscope alone is run in this process, which has imported torch already, also where its output goes to
    a file, and ``cd`` changes its directory; a shell takes the others.
    """
    if not is_shown:
        for name, stand_in in STAND_INS.items():
            text = text.replace(name, stand_in)
    words = [
        str(Path(word).expanduser()) if word.startswith("~/") else word for word in shlex.split(text, comments=True)
    ]
    if words[0] == "cd":
        os.chdir(words[1])
        return Done(code=0, printed="", remarks="")
    file = words[-1] if words[0] == "oomscope" and words[-2] == ">" else None
    if file is not None:
        del words[-2:]
    if words[0] != "oomscope" or words[1] == "record" or _SHELL.search(shlex.join(words).replace("'", "")):
        done = subprocess.run(["bash", "-ec", text], capture_output=True, text=True, check=False)
        return Done(code=done.returncode, printed=done.stdout, remarks=done.stderr)
    capsys.readouterr()
    code = run(words[1:])
    out = capsys.readouterr()
    if file is not None:
        Path(file).write_text(out.out, encoding="utf-8")
        return Done(code=code, printed="", remarks=out.err)
    return Done(code=code, printed=out.out, remarks=out.err)


def difference(printed: str, shown: str) -> str | None:
    """Return the first piece of ``shown`` that ``printed`` lacks; None where it is all there, in order and in full.

    Seconds and numbers of oomscope's own lines are not compared, nor where lines are broken, how cells are padded and
    how long rules are.
    """
    pieces = [_plain(piece) for piece in _CUT.split(shown)]
    rest = _plain(printed)
    if not rest.startswith(pieces[0]):
        return pieces[0]
    at = len(pieces[0])
    for piece in pieces[1:]:
        found = rest.find(piece, at)
        if found < 0:
            return piece
        at = found + len(piece)
    return rest[at:] if pieces[-1] and at < len(rest) else None


def _plain(text: str) -> str:
    return " ".join(_RULE.sub("─", _OWN_LINE.sub(r"\1", _SECONDS.sub("", text))).split())
