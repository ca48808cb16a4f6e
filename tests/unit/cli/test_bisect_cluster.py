"""``--executor`` and ``--slurm``, from the words of the command line to jobs, or to one line that refuses them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.run.slurm import ClusterSettings
from oomscope.cli.main import run
from oomscope.errors import ExitCode
from tests.unit.bisect.repos import Repo


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], None),
        (["--executor", "local"], None),
        (["--executor", "slurm"], ClusterSettings()),
        (
            ["--executor", "slurm", "--slurm", "partition=gpu", "--slurm", "exclusive"],
            ClusterSettings(options={"partition": "gpu", "exclusive": True}),
        ),
    ],
)
def test_where_probes_run(requests: list[CommitRequest], options: list[str], wanted: ClusterSettings | None) -> None:
    assert run(["bisect", *options, "v1..v2", "--config", "a.yaml"]) == 0
    assert requests[0].cluster == wanted


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--slurm", "partition=gpu"], "--slurm without jobs"),
        (["--executor", "slurm", "--slurm", "output=x"], "output cannot be chosen"),
        (["--executor", "slurm", "--slurm", "-p"], "is not an option of sbatch"),
        (["--executor", "pbs"], "pbs"),
    ],
)
def test_options_that_make_no_sense(capsys: pytest.CaptureFixture[str], options: list[str], text: str) -> None:
    assert run(["bisect", *options, "v1..v2", "--config", "a.yaml"]) == ExitCode.USAGE
    assert text in capsys.readouterr().err


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a search as jobs, on a machine with git and without Slurm."""
    programs = tmp_path / "bin"
    programs.mkdir()
    git = shutil.which("git")
    assert git is not None
    (programs / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(programs))
    repo = Repo(tmp_path / "repo")
    first, *_ = repo.import_line("a.yaml", ["preset: gpt-tiny\n", "preset: gpt-tiny\nseed: 2\n"])
    state = ["--state", str(tmp_path / "state")]
    return ["bisect", f"{first}..main", "--repo", str(repo.path), "--config", "a.yaml", "--executor", "slurm", *state]


def test_without_slurm(search: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(search) == ExitCode.MACHINE_UNFIT
    assert "there is no srun here" in capsys.readouterr().err


def test_without_submitit(
    search: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert run(search) == ExitCode.USAGE
    assert "pip install 'oomscope[slurm]'" in capsys.readouterr().err
