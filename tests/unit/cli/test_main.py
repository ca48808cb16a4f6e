from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oomscope.cli import main as entry
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


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from oomscope.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "probe" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("name", list(entry.COMMANDS))
def test_help_of_every_command_imports_nothing_heavy(name: str) -> None:
    code = (
        "import sys\n"
        "from oomscope.cli.main import run\n"
        f"assert run([{name!r}, '--help']) == 0\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run([]) == ExitCode.USAGE
    assert "Usage: oomscope" in capsys.readouterr().out


def test_unknown_command_is_one_line_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["nothing-like-it"]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "nothing-like-it" in captured.err
    assert "--help" in captured.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no such rank"), 2),
        (MachineUnfitError("no GPU"), 5),
        (TargetError("it crashed"), 6),
        (InconclusiveError("only suspects left"), 7),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("oops"), 70),
    ],
)
def test_every_error_is_one_line_and_its_exit_code(failing, capsys, error: BaseException, code: int) -> None:
    failing(error)
    assert entry.run(["fail"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("oomscope: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


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


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = f"{sys.executable} -c 'from oomscope.cli.main import main; main()' completion bash"
    pipeline = f"set -o pipefail; (sleep 0.5; {script}; echo code $? >&2) | true"
    done = subprocess.run(["bash", "-c", pipeline], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == "code 141\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["--version"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("oomscope ")
    assert "torch" in line
    assert "virtual" in line


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["--version", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["backends"][-1] == "virtual"


def test_completion_proposes_commands() -> None:
    environment = {
        **os.environ,
        "COMP_WORDS": "oomscope pro",
        "COMP_CWORD": "1",
        entry.COMPLETE_VARIABLE: "bash_complete",
    }
    assert "probe" in program(env=environment).stdout


def test_help_takes_at_most_three_times_as_long_as_importing_click() -> None:
    def seconds(*words: str) -> float:
        took = []
        for _ in range(7):
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], capture_output=True, check=True)
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
        return min(took)

    assert seconds("-m", "oomscope", "--help") <= 3 * seconds("-c", "import click")


@pytest.mark.parametrize("path", [(), ("bisect",), ("gate",)])
def test_the_line_of_a_command_is_its_own(path: tuple[str, ...]) -> None:
    group: click.Command | None = entry.cli
    for name in path:
        group = entry.cli.get_command(click.Context(entry.cli), name)
    assert isinstance(group, entry.LazyGroup)
    lines = {name: line for name, (_, line) in group.lazy.items()}
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    assert lines == {name: command.get_short_help_str(limit=100) for name, command in commands.items() if command}


def test_installed_program_runs() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("oomscope"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("oomscope ")
