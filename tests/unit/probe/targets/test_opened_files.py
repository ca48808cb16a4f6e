"""Which files of a process count as what it reads from outside its checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oomscope.probe.targets import opened_files

PROGRAM = """
import json, os, pathlib, shutil, sys
from oomscope.probe.targets import opened_files
opened_files.arm_from_environment()
import outside_module, numbers
open("own.txt").close()
open("../data.bin").close()
open(b"../as-bytes.bin").close()
pathlib.Path("../data.bin").read_bytes()
try:
    open(pathlib.Path("../missing.json"))
except FileNotFoundError as error:
    assert str(error.filename).endswith("missing.json")
with open("../written.txt", "w") as file:
    file.write("then read")
open("../written.txt").close()
os.mkdir("../made")
os.close(os.open("../made", os.O_RDONLY))
open("/proc/self/stat").close()
if not (child := os.fork()):
    open("../by-fork.bin").close()
    os._exit(0)
os.waitpid(child, 0)
open(0, closefd=False).close()
"""


def test_files_that_were_read_from_outside_are_told(tmp_path: Path) -> None:
    checkout, modules, record = tmp_path / "checkout", tmp_path / "modules", tmp_path / "probe" / "opened"
    for folder in (checkout, modules, record.parent):
        folder.mkdir()
    (modules / "outside_module.py").touch()
    for name in ("checkout/own.txt", "data.bin", "as-bytes.bin", "by-fork.bin"):
        (tmp_path / name).touch()
    assert opened_files.read(record) == ()
    environment = os.environ | opened_files.variables(str(record), str(checkout))
    python_path = os.pathsep.join([str(modules), *sys.path])
    subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=checkout, env=environment | {"PYTHONPATH": python_path}, check=True
    )
    names = ("as-bytes.bin", "by-fork.bin", "data.bin", "missing.json", "modules/outside_module.py")
    assert opened_files.read(record) == tuple(str(tmp_path / name) for name in names)


def test_the_first_files_count_and_a_record_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    record = tmp_path / "opened"
    record.write_text("".join(f"/data/{number:05d}\0" for number in reversed(range(opened_files.MOST + 1))))
    found = opened_files.read(record)
    assert (len(found), found[0]) == (opened_files.MOST, "/data/00001")
    follow = "from oomscope.probe.targets import opened_files; opened_files.follow('/nowhere/opened', '')"
    subprocess.run([sys.executable, "-c", f"{follow}; open('/etc/passwd').close()"], check=True)
