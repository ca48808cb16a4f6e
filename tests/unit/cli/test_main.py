from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oomscope.cli import entry as program_entry
from oomscope.cli import main as entry
from oomscope.cli.doctor import available_backends
from oomscope.cli.terminal.output import refused_by_system
from oomscope.errors import ExitCode, InconclusiveError, MachineUnfitError, TargetError, UsageError

HEAVY = ["torch", "pandas", "numba", "numpy", "matplotlib", "pydantic", "git", "jinja2", "yaml"]


def program(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from oomscope.cli.main import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Make the command ``fail`` raise what it is given."""

    def register(error: BaseException | None, result: object = None) -> None:
        @click.command("fail")
        @click.option("--json", "as_json", is_flag=True)
        @click.option("--git-bisect", is_flag=True)
        def fail(as_json: bool, git_bisect: bool) -> object:
            if error is not None:
                raise error
            return result

        monkeypatch.setattr(entry.LazyGroup, "get_command", lambda self, ctx, name: fail)

    return register


def test_no_help_imports_anything_heavy() -> None:
    code = (
        "import sys\n"
        "from oomscope.cli.main import COMMANDS, run\n"
        "assert not any(run([*words, '--help']) for words in ([], *([name] for name in COMMANDS)))\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run([]) == ExitCode.USAGE
    assert "Usage: oomscope" in capsys.readouterr().out


def test_internal_error_leaves_the_traceback_in_a_file(failing, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(ZeroDivisionError("oops"))
    assert entry.run(["fail"]) == ExitCode.INTERNAL
    (file,) = tmp_path.glob("oomscope-*.txt")
    assert "ZeroDivisionError: oops" in file.read_text()
    assert str(file) in capsys.readouterr().err


def test_errors_under_json_are_a_document(failing, capsys) -> None:
    failing(UsageError("no such rank", where="--rank", remedy="give 0 to 31"))
    assert entry.run(["fail", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "schema_version": 1,
        "error": {
            "kind": "UsageError",
            "exit_code": 2,
            "message": "no such rank",
            "where": "--rank",
            "remedy": "give 0 to 31",
        },
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no such rank"), 2),
        (MachineUnfitError("no GPU"), 5),
        (TargetError("it crashed"), 6),
        (InconclusiveError("only suspects left"), 7),
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (ZeroDivisionError("oops"), 70),
    ],
)
def test_every_error_is_one_line_and_its_exit_code(failing, capsys, error: BaseException, code: int) -> None:
    failing(error)
    assert entry.run(["fail"]) == code
    said = capsys.readouterr().err
    assert said.startswith("oomscope: ") or code == 143
    assert said.count("\n") == (code != 143)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("error", "result", "code"),
    [
        (None, 0, 0),
        (None, 1, 1),
        (None, 125, 125),
        (UsageError("x"), None, 130),
        (TargetError("x"), None, 134),
        (ZeroDivisionError("x"), None, 198),
        (KeyboardInterrupt(), None, 130),
    ],
)
def test_git_bisect_never_takes_an_error_for_an_answer(failing, error, result, code) -> None:
    failing(error, result)
    assert entry.run(["fail", "--git-bisect"]) == code


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["--version", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["backends"][-1] == "virtual"


@pytest.mark.parametrize("path", [(), ("bisect",), ("gate",)])
def test_the_help_line_of_a_command_is_its_own(path: tuple[str, ...]) -> None:
    group: click.Command | None = entry.cli
    for name in path:
        group = entry.cli.get_command(click.Context(entry.cli), name)
    assert isinstance(group, entry.LazyGroup)
    lines = {name: line for name, (_, line) in group.lazy.items()}
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    assert lines == {name: command.get_short_help_str(limit=100) for name, command in commands.items() if command}


class Interrupts:
    """A finder during which Ctrl-C is pressed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "oomscope.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_program_is_imported(monkeypatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "oomscope.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        program_entry.main()
    assert left.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "oomscope: interrupted\n"


def test_ctrl_c_before_a_command_has_begun(monkeypatch, capsys) -> None:
    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "named_failures", pressed)
    monkeypatch.setattr(sys, "argv", ["oomscope", "--version"])
    with pytest.raises(SystemExit) as left:
        program_entry.main()
    assert left.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "oomscope: interrupted\n"


@pytest.mark.parametrize(
    ("torch", "device", "backends"),
    [
        (None, "nvidia0", []),
        ("2.13.0+cpu", "nvidia0", []),
        ("2.13.0", "nvidiactl", []),
        ("2.13.0", "nvidia0", ["cuda"]),
        ("2.13.0+cu130", "dxg", ["cuda"]),
    ],
)
@pytest.mark.parametrize("card", [True, False])
def test_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str | None, device: str, backends: list[str], card: bool
) -> None:
    monkeypatch.setattr("oomscope.probe.machine.backends.has_virtual_card", lambda: card)
    (tmp_path / device).touch()
    expected = [*backends, *(["virtual"] if card and torch else [])]
    assert available_backends(torch, tmp_path) == expected


@pytest.mark.parametrize(
    ("number", "name", "code", "said"),
    [
        (errno.ENOSPC, "/d/f", ExitCode.MACHINE_UNFIT, "/d/f: cannot be used: No space left on device; free space"),
        (errno.EROFS, "/d/f", ExitCode.MACHINE_UNFIT, "/d/f: cannot be used: Read-only file system; set TMPDIR"),
        (errno.EFBIG, None, ExitCode.MACHINE_UNFIT, "File too large; allow larger files"),
        (errno.EACCES, b"/d/f", ExitCode.USAGE, "/d/f: cannot be used: Permission denied; check"),
        (errno.ENAMETOOLONG, "x" * 5000, ExitCode.USAGE, "x: cannot be used: File name too long; give a shorter"),
    ],
)
def test_what_the_system_refuses_is_one_line(number: int, name: object, code: ExitCode, said: str) -> None:
    error = refused_by_system(OSError(number, "words of this machine", name))
    assert error is not None
    assert error.exit_code is code
    assert said in str(error)
    assert len(str(error)) < 500


def test_a_full_disk_where_no_code_handles_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full", "/state/x")

    monkeypatch.setattr(entry.LazyGroup, "get_command", full)
    assert entry.run(["probe"]) == ExitCode.MACHINE_UNFIT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("oomscope: /state/x: cannot be used: No space left on device; free space")
    assert captured.err.count("\n") == 1
