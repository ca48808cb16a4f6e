"""Checkpoints from before a run on a virtual card stay as they are, and what is saved there is gone after it.

Programs run in processes of their own: what stands in the place of Python's functions does so until a process ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.probe.targets.program.receipt import Receipt, path_of, remove_saved

BEGIN = """
import io, json, os, pathlib, shutil, sys, time, types
from oomscope import virtual
virtual.load()
import torch
from oomscope.probe.targets.program.checkpoints import Checkpoints

checkpoints = Checkpoints(time.time() - 100, on_change=lambda: None)
checkpoints.follow(torch)
checkpoints.begin()
for line in sys.stdin:
    code, folder = json.loads(line)
    os.chdir(folder)
    checkpoints._saved, checkpoints.left = {}, []
    exec(code)
    print(json.dumps([checkpoints.saved, checkpoints.left]), flush=True)
"""
OLD = ("last.pt", "best.ckpt", "log.txt", "weights", "step-1/model.safetensors", "step-1/config.json", "latest.pt")


def tree(folder: Path) -> dict[str, str]:
    """Return the files and links below a folder, each with its text or its target."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file())
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
        for path in paths
    }


@pytest.fixture(scope="module")
def program():
    """A program on a virtual card, which runs lines of Python one after the other."""
    with subprocess.Popen(
        (sys.executable, "-c", BEGIN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        yield it


@pytest.fixture
def run(program, tmp_path: Path):
    """Run lines in a folder of checkpoints from before; return what is there then, and what is after the run."""
    work = tmp_path / "work"
    for name in OLD[:-1]:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(f"old {name}")
        os.utime(work / name, (1e9, 1e9))
    (work / "latest.pt").symlink_to("last.pt")
    os.utime(work / "latest.pt", (1e9, 1e9), follow_symlinks=False)

    def run_lines(code: str) -> tuple[set[str], dict[str, str], list[str]]:
        before = set(tree(work))
        program.stdin.write(json.dumps([code, str(work)]) + "\n")
        program.stdin.flush()
        saved, left = json.loads(program.stdout.readline())
        assert all(Path(path).is_relative_to(work) for path, _, _ in saved), "it would be removed"
        during = set(tree(work))
        receipt = Receipt.of_this_process()
        receipt.saved = saved
        receipt.write(path_of(tmp_path, 1))
        remove_saved(tmp_path)
        return during ^ before, tree(work), [str(Path(each).relative_to(work)) for each in left]

    return run_lines


@pytest.mark.parametrize(
    ("code", "new", "left"),
    [
        ("torch.save({}, 'last.pt')", [], ["last.pt"]),
        ("torch.serialization.save({}, f=pathlib.Path('weights'))", [], ["weights"]),
        ("torch.save({}, 'latest.pt')", [], ["latest.pt"]),
        ("torch.save({}, 'new.pt'); torch.save({1: 2}, 'new.pt')", ["new.pt"], []),
        ("torch.save({}, 'tmp'); os.replace('tmp', 'last.pt')", [], ["last.pt"]),
        ("torch.save({}, 'tmp'); shutil.move('tmp', 'new.pt')", ["new.pt"], []),
        ("open('best.ckpt', 'wb').write(b'new')", [], ["best.ckpt"]),
        ("import numpy; numpy.memmap('last.pt', mode='w+', shape=3)[:] = 7", [], ["last.pt"]),
        ("pathlib.Path('new.ckpt').write_bytes(b'new')", ["new.ckpt"], []),
        ("os.makedirs('tmp/a'); torch.save({}, 'tmp/a/b.pt'); os.rename('tmp', 'step-2')", ["step-2/a/b.pt"], []),
        ("os.remove('last.pt'); pathlib.Path('best.ckpt').unlink()", [], ["last.pt", "best.ckpt"]),
        ("os.rename('last.pt', 'before.pt'); torch.save({}, 'last.pt')", [], ["last.pt"]),
        ("shutil.rmtree('step-1'); os.makedirs('step-1', exist_ok=True)", [], ["step-1"]),
        (
            "torch.save({}, 'a.pt'); os.remove('a.pt'); os.mkdir('b'); torch.save({}, 'b/a.pt'); shutil.rmtree('b')",
            [],
            [],
        ),
        ("open('tmp', 'w').write('new'); shutil.move('tmp', 'new.pt')", ["new.pt"], []),
        (
            "file = open('last.pt', 'wb'); file.write(b'new'); os.fsync(file.fileno()); file.tell() or 1 / 0",
            [],
            ["last.pt"],
        ),
        ("torch.save({}, io.BytesIO()); torch.save({}, '/dev/null')", [], []),
        ("for name in os.listdir(): os.path.isfile(name) and name.endswith('.pt') and os.remove(name)", [], None),
    ],
)
def test_checkpoints_are_as_they_were(run, code: str, new: list[str], left: list[str] | None) -> None:
    changed, after, reported = run(code)
    assert changed == set(new)
    assert after == {name: f"old {name}" for name in OLD[:-1]} | {"latest.pt": "last.pt"}
    assert left is None or reported == left


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('log.txt', 'w').write('new')", {"log.txt": "new"}),
        ("os.rename('log.txt', 'log.old')", {"log.txt": None, "log.old": "old log.txt"}),
        ("os.mkdir('old'); os.rename('log.txt', 'old/log.txt')", {"log.txt": None, "old/log.txt": "old log.txt"}),
        ("os.remove('log.txt')", {"log.txt": None}),
        ("open('other.txt', 'x').write(open('last.pt').read())", {"other.txt": "old last.pt"}),
        ("class A: read = open\nprint(file=A().read('a.txt', 'w'))", {"a.txt": "\n"}),
        (
            "os.environ['HF_HOME'] = '.'; open('x', 'w').write('x'); os.rename('x', 'a.pt'); del os.environ['HF_HOME']",
            {"a.pt": "x"},
        ),
        ("try: os.rename('missing', 'last.pt')\nexcept OSError: open('failed', 'w').close()", {"failed": ""}),
        ("torch.save({}, 'a.pt'); os.remove('a.pt'); os.link('log.txt', 'a.pt')", {"a.pt": "old log.txt"}),
    ],
)
def test_all_else_is_the_programs_business(run, code: str, expected: dict[str, str | None]) -> None:
    before = {name: f"old {name}" for name in OLD[:-1]} | {"latest.pt": "last.pt"}
    _, after, reported = run(code)
    assert after == {name: text for name, text in (before | expected).items() if text is not None}
    assert not reported
