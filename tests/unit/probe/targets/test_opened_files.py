"""Which files of a process count as what it reads from outside its checkout."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.probe.targets import opened_files

PROGRAM = """
import os, pathlib, shutil, subprocess, sys
import source_module, compiled_module, numbers
open("own.txt").close()
open("../data.bin").close()
open(b"../as-bytes.bin").close()
pathlib.Path("../data.bin").read_bytes()
os.makedirs("../there", exist_ok=True)
open("../there/kept.bin").close()
open("link/linked.bin").close()
try:
    open(pathlib.Path("../missing.json"))
except FileNotFoundError as error:
    assert str(error.filename).endswith("missing.json")
with open("../log.txt", "a") as log:
    log.write("more")
with open("../made.txt", "w") as made:
    made.write("then read")
open("../made.txt").close()
os.makedirs("../new/folder")
os.close(os.open("../there", os.O_RDONLY))
open("/proc/self/stat").close()
open(0, closefd=False).close()
if not (child := os.fork()):
    open("../by-fork.bin").close()
    os._exit(0)
os.waitpid(child, 0)
follows = "from oomscope.probe.targets import opened_files; opened_files.arm_from_environment()"
opens = "open('../made.txt').close(); open('../new/folder/x', 'w').close(); open('../by-child.bin').close()"
subprocess.run([sys.executable, "-c", f"{follows}; {opens}"], check=True)
shutil.rmtree("../new")
"""


class Place:
    """A checkout, with files beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "probe" / "opened"
        for folder in ("checkout", "modules", "probe", "there", "elsewhere"):
            (root / folder).mkdir()
        names = "checkout/own.txt data.bin as-bytes.bin by-fork.bin by-child.bin log.txt there/kept.bin"
        for name in (*names.split(), "elsewhere/linked.bin", "modules/source_module.py", "modules/compiled_module.py"):
            (root / name).touch()
        py_compile.compile(str(root / "modules" / "compiled_module.py"))
        (root / "checkout" / "link").symlink_to(root / "elsewhere")

    def run(self, program: str) -> tuple[str, ...] | None:
        """Run a program that is followed, and return the files that it read, from here."""
        armed = "from oomscope.probe.targets import opened_files; opened_files.arm_from_environment()\n"
        environment = os.environ | opened_files.variables(str(self.record), str(self.root / "checkout"))
        environment["PYTHONPATH"] = os.pathsep.join([str(self.root / "modules"), *sys.path])
        command = [sys.executable, "-c", armed + program]
        subprocess.run(command, cwd=self.root / "checkout", env=environment, check=True)
        found = opened_files.read(self.record)
        return found and tuple(name.removeprefix(f"{self.root}/") for name in found)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path.resolve())


def test_files_that_were_read_from_outside_are_told(place: Place) -> None:
    assert opened_files.read(place.record) == ()
    names = "as-bytes.bin by-child.bin by-fork.bin data.bin elsewhere/linked.bin missing.json"
    modules = "modules/compiled_module.py modules/source_module.py"
    assert place.run(PROGRAM) == (*names.split(), *modules.split(), "there/kept.bin")


@pytest.mark.parametrize(
    "program",
    [
        "open('../data.bin').close(); open('../data.bin', 'w').write('next')",
        "import contextlib\nwith contextlib.suppress(OSError): open('../state')\nopen('../state', 'w').close()",
        "open('../data.bin', 'r+').write('next')",
    ],
)
def test_a_state_that_is_read_and_written_back_makes_each_run_another(place: Place, program: str) -> None:
    assert place.run(program) is None


def test_the_first_files_count(place: Place) -> None:
    program = f"""
for number in range({opened_files.MOST + 100}):
    try:
        open(f"/nowhere/{{number:05d}}")
    except OSError:
        pass
"""
    found = place.run(program)
    assert found is not None
    assert (len(found), found[-1]) == (opened_files.MOST, f"/nowhere/{opened_files.MOST - 1:05d}")
    assert place.record.stat().st_size < opened_files.MOST * 64


def test_a_record_that_cannot_be_written_ends_nothing() -> None:
    follow = "from oomscope.probe.targets import opened_files; opened_files.follow('/nowhere/opened', '')"
    subprocess.run([sys.executable, "-c", f"{follow}; open('/etc/passwd').close()"], check=True)
