"""Programs that know nothing of oomscope record because their environment says so; real processes, a torch of paper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from oomscope.capture.arming import STARTUP, variables
from oomscope.capture.settings import Settings, from_environment
from oomscope.snapshot.read.load import load_snapshot
from oomscope.virtual.settings import CardSettings

PAPER = Path(__file__).parent / "paper"
ROOT = Path(__file__).resolve().parents[3]
OOMSCOPE = (sys.executable, "-c", "from oomscope.cli.main import main; main()")
TRAIN = """
    import sys
    assert "torch" not in sys.modules
    import torch
    assert not torch.cuda.memory.log
    torch.cuda.init()
"""


@pytest.fixture
def python(tmp_path: Path):
    """Run a program with a torch of paper, under ``oomscope record`` unless told otherwise."""

    def run(program: str, *options: str, record: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(program))
        words = [*OOMSCOPE, "record", *options, "--"] if record else []
        return subprocess.run(
            [*words, sys.executable, "train.py"],
            cwd=tmp_path,
            env=clean() | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def clean() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OOMSCOPE_", "COV_"))}
    card = CardSettings().variables()  # without which it is said that there is no GPU
    return kept | card | {"PYTHONPATH": os.pathsep.join([str(PAPER), str(ROOT)])}


def snapshots(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.pickle*"))


def test_a_program_that_uses_cuda_leaves_a_snapshot(python, tmp_path: Path) -> None:
    done = python(TRAIN, RANK="3", WORLD_SIZE="8")
    assert done.returncode == 0, done.stderr
    assert snapshots(tmp_path) == ["snap-3.pickle"]
    told = load_snapshot(tmp_path / "snap-3.pickle").provenance
    assert (told.rank, told.world_size, told.torch_version) == (3, 8, "2.13.0+paper")
    assert done.stderr.count("oomscope: wrote") == 1


def test_a_program_without_cuda_leaves_no_file_and_sees_no_message(python, tmp_path: Path) -> None:
    done = python("import torch; print('ran')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert snapshots(tmp_path) == []


def test_a_torch_without_cuda_is_a_line(python, tmp_path: Path) -> None:
    done = python("import torch; print('ran')", WITHOUT_CUDA="1")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr == "oomscope: nothing is recorded: torch is built without CUDA\n"
    assert snapshots(tmp_path) == []


def test_children_of_the_program_record_too(python, tmp_path: Path) -> None:
    launcher = """
        import os, subprocess, sys
        for rank in "01":
            subprocess.run([sys.executable, "-c", "import torch; torch.cuda.init()"], env=os.environ | {"RANK": rank})
    """
    assert python(launcher).returncode == 0
    assert snapshots(tmp_path) == ["snap-0.pickle", "snap-1.pickle"]


def test_the_environment_alone_is_enough(python, tmp_path: Path) -> None:
    path = os.pathsep.join([STARTUP, str(PAPER), str(ROOT)])
    done = python(TRAIN, record=False, PYTHONPATH=path, OOMSCOPE_RECORD="mine.pickle.gz", OOMSCOPE_RECORD_QUIET="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert snapshots(tmp_path) == ["mine.pickle.gz"]
    assert load_snapshot(tmp_path / "mine.pickle.gz").provenance is not None


def test_a_wrong_variable_is_a_line(python, tmp_path: Path) -> None:
    path = os.pathsep.join([STARTUP, str(PAPER), str(ROOT)])
    done = python(TRAIN, record=False, PYTHONPATH=path, OOMSCOPE_RECORD="a.pickle", OOMSCOPE_RECORD_MAX_ENTRIES="many")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        (
            "oomscope: warning: nothing is recorded: "
            "OOMSCOPE_RECORD_MAX_ENTRIES: 'many' is not a number; give a whole number"
        )
    ]


def test_another_oomscope_on_the_path_is_not_taken(python, tmp_path: Path) -> None:
    path = os.pathsep.join([STARTUP, str(PAPER)])
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "oomscope.py").write_text("raise ImportError('this one is not meant')")
    (tmp_path / "hide" / "conftest.py").write_text("raise ImportError('beside it')")
    done = python(TRAIN, record=False, PYTHONPATH=f"{tmp_path / 'hide'}:{path}", OOMSCOPE_RECORD="a.pickle")
    assert done.returncode == 0, done.stderr
    assert snapshots(tmp_path) == ["a.pickle"]


def test_a_startup_file_without_oomscope_runs_the_program_all_the_same(python, tmp_path: Path) -> None:
    alone = tmp_path / "no" / "oomscope" / "here"
    alone.mkdir(parents=True)
    (alone / "sitecustomize.py").write_bytes(Path(STARTUP, "sitecustomize.py").read_bytes())
    done = python("print('ran')", record=False, PYTHONPATH=str(alone), OOMSCOPE_STARTUP="oomscope.no_such_module")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr.startswith("oomscope: nothing is recorded: No module named 'oomscope.no_such_module'")


def test_the_user_s_own_sitecustomize_runs_first(python, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os, sys; OWN = True; sys.stdout.write('own ')")
    path = os.pathsep.join([str(tmp_path / "own"), str(PAPER), str(ROOT)])
    done = python(TRAIN + "    import sitecustomize; print(sitecustomize.OWN)\n", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["own", "own", "True"], "once for oomscope record itself, once for the program"
    assert snapshots(tmp_path) == ["snap-0.pickle"]


def test_sigterm_reaches_the_program_and_ends_it(tmp_path: Path) -> None:
    waits = "import torch, time\ntorch.cuda.init()\nprint('up', flush=True)\nfor _ in range(600): time.sleep(0.1)\n"
    (tmp_path / "train.py").write_text(waits)
    with subprocess.Popen(
        [*OOMSCOPE, "record", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        up = running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=30)
    assert up == "up\n", said
    assert running.returncode == -signal.SIGTERM, "whoever waits sees why"
    assert snapshots(tmp_path) == ["snap-0.pickle"], said
    assert load_snapshot(tmp_path / "snap-0.pickle").provenance.reason == "signal"


def test_a_real_fork_of_the_program_writes_nothing(python, tmp_path: Path) -> None:
    forking = """
        import os, sys, torch
        torch.cuda.init()
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
    """
    assert python(forking).returncode == 0
    assert snapshots(tmp_path) == ["snap-0.pickle"]


def test_settings_survive_the_environment() -> None:
    settings = Settings(path="/a/{rank}.pickle", max_entries=7, stacks="all", every=3, force=True, quiet=True)
    assert from_environment(variables(settings, {})) == settings
    assert from_environment({}) is None
    assert variables(settings, {"PYTHONPATH": "mine"})["PYTHONPATH"] == f"{STARTUP}{os.pathsep}mine"
