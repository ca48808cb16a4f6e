from __future__ import annotations

import errno

import pytest

from oomscope.cli import main as entry
from oomscope.cli.terminal.output import refused_by_system
from oomscope.errors import ExitCode


@pytest.mark.parametrize(
    ("number", "name", "code", "said"),
    [
        (errno.ENOSPC, "/d/f", ExitCode.MACHINE_UNFIT, "/d/f: cannot be used: No space left on device; make room"),
        (errno.EROFS, "/d/f", ExitCode.MACHINE_UNFIT, "/d/f: cannot be used: Read-only file system; let TMPDIR"),
        (errno.EFBIG, None, ExitCode.MACHINE_UNFIT, "File too large; allow larger files"),
        (errno.EACCES, b"/d/f", ExitCode.USAGE, "/d/f: cannot be used: Permission denied; see that"),
        (errno.ENAMETOOLONG, "x" * 5000, ExitCode.USAGE, "x: cannot be used: File name too long; give a shorter"),
    ],
)
def test_what_the_system_refuses_is_one_line(number: int, name: object, code: ExitCode, said: str) -> None:
    error = refused_by_system(OSError(number, "words of this machine", name))
    assert error is not None
    assert error.exit_code is code
    assert said in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no name"), OSError("of a library"), ValueError("no")])
def test_what_tells_of_no_place_stays_a_defect(error: Exception) -> None:
    assert refused_by_system(error) is None


def test_a_full_disk_in_a_place_that_nobody_guards(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full", "/state/x")

    monkeypatch.setattr(entry.LazyGroup, "get_command", full)
    assert entry.run(["probe"]) == ExitCode.MACHINE_UNFIT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("oomscope: /state/x: cannot be used: No space left on device; make room")
    assert captured.err.count("\n") == 1
