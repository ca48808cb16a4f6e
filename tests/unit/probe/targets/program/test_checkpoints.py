"""What a program does to checkpoints is undone after its run.

It is done in a process of its own: what listens to Python's audit events does so until the process ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.probe.targets.program.checkpoints import put_back

BEGIN = """
import os, pathlib, random, shutil, sys, types
from oomscope.probe.targets.program.checkpoints import Checkpoints

def write_outside_of_python(what, f):  # as torch.save does: no audit event tells of it
    os.system(f"echo new > '{f}'")

torch = types.SimpleNamespace(save=write_outside_of_python)
watch = Checkpoints(sys.argv[1])
watch.follow(torch)
"""
WATCHED = f"{BEGIN}watch.begin()\n"


def run(code: str, tmp_path: Path) -> tuple[str, ...]:
    """Run ``code`` in a folder ``work``, undo what it did to checkpoints, and return the notes on it."""
    (tmp_path / "run").mkdir()
    subprocess.run((sys.executable, "-c", code, tmp_path / "run"), cwd=tmp_path / "work", check=True)
    return put_back(tmp_path / "run", tmp_path / "work")


def tree(folder: Path) -> dict[str, str | None]:
    """Return the names below a folder, each with its text, the target of a link, or None for a folder."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_text()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with checkpoints from before, to which ``work/latest.pt`` is a link, and a log."""
    folder = tmp_path / "work"
    for name in ("last.pt", "best.pt", "log.txt", "step-1/model.safetensors", "step-1/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"old {name}")
        os.utime(folder / name, (1e9, 1e9))
    (folder / "latest.pt").symlink_to("best.pt")
    return folder


@pytest.mark.parametrize(
    "code",
    [
        "torch.save({}, 'last.pt')",
        "torch.save({}, f=pathlib.Path('new.pt'))",
        "torch.save({}, 'latest.pt')",  # through a link
        "torch.save({}, 'other_name'); os.rename('other_name', 'last.pt')",
        "torch.save({}, 'tmp.pt'); os.replace('tmp.pt', 'last.pt'); torch.save({}, 'tmp.pt')",
        "open('last.pt', 'wb').write(b'new')",
        "open('last.pt', 'ab').write(b'new')",
        "pathlib.Path('step-2').mkdir(); torch.save({}, 'step-2/a.pt'); open('step-2/config.json', 'w').write('new')",
        "os.makedirs('tmp/a'); torch.save({}, 'tmp/a/b.pt'); os.rename('tmp/a', 'step-2')\nos.rmdir('tmp')",
        "os.remove('last.pt'); os.unlink('latest.pt')",
        "os.rename('last.pt', 'last.old'); torch.save({}, 'last.pt'); os.remove('last.old')",
        "shutil.rmtree('step-1'); os.mkdir('step-1'); torch.save({}, 'step-1/x.pt')",
        "open('last.tmp', 'w').write('new'); os.rename('last.tmp', 'last.pt')",
        "os.rename('log.txt', 'last.pt')",
        "os.remove('latest.pt'); os.symlink('x', 'latest.pt'); os.link('best.pt', 'a.pt'); os.symlink('a', 'b.pt')",
        "pid = os.fork()\nif pid: os.waitpid(pid, 0)\ntorch.save({}, 'last.pt')",
        "shutil.copy2('best.pt', 'last.pt'); shutil.move('best.pt', 'step-1/best.pt')",
    ],
)
def test_checkpoints_are_as_they_were(code: str, work: Path, tmp_path: Path) -> None:
    before = tree(work)
    notes = run(WATCHED + code, tmp_path)
    assert notes[0].startswith("checkpoints that the program wrote or removed are as they were before the run (")
    assert len(notes) == 1, notes
    assert tree(work) == before


def test_any_order_of_changes_is_undone(work: Path, tmp_path: Path) -> None:
    changes = """
names = ["last.pt", "best.pt", "latest.pt", "a.ckpt", "step-1/model.safetensors", "step-2/b.pt"]
changes = [
    lambda: torch.save({}, random.choice(names)),
    lambda: open(random.choice(names), random.choice(["wb", "ab", "r+b"])).write(b"new"),
    lambda: os.remove(random.choice(names)),
    lambda: os.replace(random.choice(names), random.choice(names)),
    lambda: shutil.rmtree(random.choice(["step-1", "step-2"])),
    lambda: os.mkdir(random.choice(["step-1", "step-2"])),
]
for _ in range(12):
    try:
        random.choice(changes)()
    except OSError:
        pass
"""
    before = tree(work)
    for seed in range(25):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "work").symlink_to(work)
        notes = run(f"{WATCHED}random.seed({seed}){changes}", tmp_path / str(seed))
        assert len(notes) <= 1, notes
        after = tree(work)
        assert {name: text for name, text in after.items() if name != "step-2"} == before, seed
        if "step-2" in after:  # an empty folder, to which nothing was saved
            (work / "step-2").rmdir()


@pytest.mark.parametrize(
    "code",
    [
        f"{BEGIN}torch.save({{}}, 'data.pt')\nwatch.begin()",  # before the first use of the card
        f"{WATCHED}open('log.txt', 'a').write('!'); os.mkdir('logs'); print(open('last.pt').read())",
        f"{WATCHED}open(sys.argv[1] + '/x.pt', 'w').write('in the folder of the run')",
    ],
)
def test_all_else_is_left_as_it_is(code: str, work: Path, tmp_path: Path) -> None:
    assert run(code, tmp_path) == ()
    assert not [name for name in tree(work) if name.endswith(".oomscope")]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_probes_at_the_same_time_either_may_end_first(first_to_end: int, work: Path, tmp_path: Path) -> None:
    """The second keeps what the program of the first wrote."""
    before, folders = tree(work), [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
        subprocess.run((sys.executable, "-c", f"{WATCHED}torch.save({{}}, 'last.pt')", folder), cwd=work, check=True)
    assert len(list(work.glob(".last.pt.*.oomscope"))) == 2
    for folder in (folders[first_to_end], folders[1 - first_to_end]):
        assert len(put_back(folder, work)) == 1
    assert tree(work) == before
