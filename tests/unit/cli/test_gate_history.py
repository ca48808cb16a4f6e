"""``gate history`` over nights of checkouts that lie elsewhere every time, and of suites with a case of one name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.tuning import variants
from oomscope.units import GiB, MiB
from tests.integration.program import commit, git, new_repo
from tests.unit.gate.nights import measured

SUITE = "cases: [{name: tiny, preset: gpt-tiny}]\n"


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two suites whose cases have one name, and a ledger of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    repo = new_repo(tmp_path / "origin")
    commit(repo, "Begin", {"ci/memory.yaml": SUITE, "nightly/memory.yaml": SUITE})
    return repo


def night(monkeypatch: pytest.MonkeyPatch, checkout: Path, suite: str = "ci/memory.yaml", live: int = GiB) -> None:
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(live))
    monkeypatch.chdir(checkout)
    assert run(["gate", "run", suite, "--quiet"]) == ExitCode.NO_BASELINE


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[tuple[str, list[int]]]:
    """Return what history tells: the suite of each trend, and its values."""
    capsys.readouterr()
    assert run(["gate", "history", *words, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)["trends"]
    return [(trend["suite"], [entry["value"] for entry in trend["nights"]]) for trend in found]


def test_checkouts_in_other_folders_are_one_trend_and_two_suites_are_two(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    for number in range(2):
        checkout = tmp_path / "builds" / str(number) / "proj"
        checkout.parent.mkdir(parents=True)
        git(tmp_path, "clone", "--quiet", str(origin), str(checkout))
        night(monkeypatch, checkout, live=GiB + number * MiB)
    night(monkeypatch, checkout, "nightly/memory.yaml")
    assert shown(capsys) == [("ci/memory.yaml", [GiB, GiB + MiB]), ("nightly/memory.yaml", [GiB])]
    assert shown(capsys, "--last", "1")[0] == ("ci/memory.yaml", [GiB + MiB])
    assert shown(capsys, "--suite", "ci/memory.yaml") == [("ci/memory.yaml", [GiB, GiB + MiB])]
    run(["gate", "history"])
    out = capsys.readouterr().out
    assert "tiny (ci/memory.yaml): peak_requested over 2 nights" in out
    assert "tiny (nightly/memory.yaml): peak_requested over 1 night" in out


def test_without_a_repository_a_suite_is_known_by_its_path(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(origin / "ci", plain / "ci")
    night(monkeypatch, plain)
    assert shown(capsys) == [(str(plain / "ci" / "memory.yaml"), [GiB])]
