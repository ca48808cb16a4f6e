"""What happens to a command whose output goes nowhere: each case with a real process and a real pipe or device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.cli import main as entry
from oomscope.errors import ExitCode

FULL = (
    "oomscope: standard output: cannot write: No space left on device; "
    "send it where there is room, such as a file on another disk\n"
)
COMMANDS = """
import os, sys, time
import click
from oomscope.cli import main
from oomscope.cli.terminal import output

def say_much():
    for number in range(20000):
        output.say(f"line {number}")

def remark_much():
    for number in range(20000):
        output.remark(f"line {number}")

def print_at_the_end():
    sys.stdout.write("x")  # stays in Python's buffer until the stream is flushed

def swallow():
    try:
        say_much()
    except BaseException:
        pass

def report():
    from rich.table import Table
    table = Table()
    for number in range(2000):
        table.add_row(f"{number:080d}")
    output.print_report(table)

def pipe_lives():
    reader, writer = os.pipe()
    assert min(reader, writer) > 2, "a pipe took the place of a standard stream"
    output.say("fine")

@click.command()
@click.argument("what")
@click.option("--json", "as_json", is_flag=True)
@click.option("--git-bisect", is_flag=True)
def fake(what, as_json, git_bisect):
    globals()[what]()

main.LazyGroup.get_command = lambda self, ctx, name: fake
main.main(["fake", *sys.argv[1:]])
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The shell words that run a command which does what its argument says."""
    script = tmp_path / "program.py"
    script.write_text(COMMANDS)
    return f"{sys.executable} {script}"


def shell(line: str) -> tuple[int, str, str]:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "pipe", "unbuffered"),
    [
        ("say_much --json", "2>&1 |", ""),
        ("say_much --git-bisect", "|", "1"),
        ("remark_much --git-bisect", "2>&1 >/dev/null |", ""),
        ("report", "|", "1"),
        ("swallow", "|", ""),
    ],
)
def test_a_reader_that_goes_away_is_141_and_silence(program, words, pipe, unbuffered) -> None:
    line = f"export PYTHONUNBUFFERED={unbuffered}; {program} {words} {pipe} head -1 >/dev/null"
    assert shell(f"{line}; exit ${{PIPESTATUS[0]}}") == (141, "", "")


@pytest.mark.parametrize("what", ["print_at_the_end", "swallow"])
def test_a_full_disk_is_one_line_and_74(program, what: str) -> None:
    code, _, err = shell(f"{program} {what} --json > /dev/full")
    assert (code, err) == (74, FULL)
    assert shell(f"{program} {what} --git-bisect > /dev/full")[0] == 128 + 74


def test_a_closed_standard_output_is_reported_before_anything_is_done(program) -> None:
    code, _, err = shell(f"{program} say_much >&-")
    assert code == 74
    assert err == "oomscope: standard output: is closed; send it to a file or to /dev/null\n"
    assert shell(f"{program} say_much >&- 2>&-") == (74, "", "")


def test_a_closed_standard_error_is_silence(program) -> None:
    assert shell(f"{program} remark_much 2>&-") == (0, "", "")


@pytest.mark.parametrize("closed", ["2>&- <&-"])
def test_no_file_of_ours_takes_the_number_of_a_closed_stream(program, closed: str) -> None:
    assert shell(f"{program} pipe_lives {closed}") == (0, "fine\n", "")


@pytest.mark.parametrize("encoding", ["latin-1"])
def test_what_the_encoding_lacks_is_escaped(encoding: str) -> None:
    code = "import os; from oomscope.cli.main import run; from oomscope.cli.terminal import output, streams\n"
    code += "with streams.named_failures(): output.say('模 ' + os.fsdecode(b'\\xff'))"
    line = f'PYTHONIOENCODING={encoding} {sys.executable} -c "$CODE"'
    done = subprocess.run(["bash", "-c", line], env={"CODE": code}, capture_output=True, text=True, check=True)
    assert done.stdout == "\\u6a21 \\xff\n"


def test_an_internal_error_is_one_line_also_where_its_traceback_cannot_be_kept(monkeypatch, capsys) -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    monkeypatch.setattr(entry.cli, "invoke", lambda ctx: 1 / 0)
    assert entry.run(["completion", "bash"]) == ExitCode.INTERNAL
    assert capsys.readouterr().err == (
        "oomscope: internal error: ZeroDivisionError: division by zero; please report it, with the steps that led to "
        "it\n"
    )
