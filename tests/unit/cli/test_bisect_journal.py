"""The commands about searches, by their words, on a repository whose commits a fake probe measures."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from oomscope.bisect.journal.journal_state import begun_event
from oomscope.bisect.journal.store import JournalStore
from oomscope.bisect.run.runner import LocalRunner
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.cli.main import run
from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.journal.test_journal_state import begun
from tests.unit.bisect.repos import Repo
from tests.unit.bisect.worlds import measure

CONFIG = (
    "preset: gpt-tiny\nmodel: {{position_embedding_type: rope}}\n"
    "data: {{seq_length: {0}}}\nprobe: {{backend: virtual}}\n"
)
LENGTHS = [100 + index for index in range(8)] + [2000 + index for index in range(8)]


class Searches:
    """A repository with a configuration in it, in whose directory commands are given."""

    def __init__(self, directory: Path) -> None:
        self.repo = Repo(directory / "repo")
        self.hashes = self.repo.import_line("a.yaml", [CONFIG.format(length) for length in LENGTHS], "commit {0}")
        self.repo.git("tag", "good", self.hashes[0])
        self.ran: list[int] = []
        self.kill_after: int | None = None

    def measure(self, job: ProbeJob, progress: object = None, /, *, stop: object = None) -> ProbeResult:
        if self.kill_after is not None and len(self.ran) >= self.kill_after:
            raise KeyboardInterrupt
        assert isinstance(job.target, BundledTarget)
        self.ran.append(job.target.config["data"]["seq_length"])
        return measure(self.ran[-1])

    def interrupted(self, after: int, *words: str) -> None:
        self.kill_after = after
        assert run(["bisect", "good..main", "--config", "a.yaml", "--quiet", *words]) == 130
        self.kill_after = None


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searches:
    made = Searches(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg-cache"))
    monkeypatch.setattr("oomscope.bisect.run.prober.runner_of", lambda *_: LocalRunner(run=made.measure))
    monkeypatch.chdir(made.repo.path)
    return made


def store() -> JournalStore:
    return JournalStore(StateDirs.default().journals)


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict:
    capsys.readouterr()
    assert run(["bisect", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_an_interrupt_says_how_to_go_on(searches: Searches, tmp_path: Path, capsys) -> None:
    searches.interrupted(1)
    said = capsys.readouterr().err
    assert said.endswith("interrupted; results are kept; continue with oomscope bisect resume 1\n")
    searches.interrupted(len(searches.ran), "--fresh", "--state", str(tmp_path / "an other"))
    assert f"oomscope bisect resume 1 --state '{tmp_path}/an other'" in capsys.readouterr().err


def test_a_search_that_its_deadline_ended_says_how_to_go_on(searches: Searches, capsys) -> None:
    words = ("good..main", "--config", "a.yaml", "--quiet", "--deadline", "0")
    remedy = document(capsys, *words, code=7)["remedy"]
    assert remedy == "results are kept; continue with oomscope bisect resume 1"
    assert document(capsys, "resume", "1", "--deadline", "60")["outcome"] == "culprit"


def test_a_search_of_another_repository_is_named(searches: Searches, tmp_path: Path, capsys, monkeypatch) -> None:
    searches.interrupted(2)
    other = Repo(tmp_path / "other")
    other.commit("one", {"x": ""})
    monkeypatch.chdir(other.path)
    assert run(["bisect", "log"]) == 2
    said = capsys.readouterr().err
    assert f"; there is search 1 of {searches.repo.path / '.git'}; name a search by its number" in said
    assert "name a search by its number" in said
    assert run(["bisect", "resume", "1", "--quiet"]) == 0, "by its number it goes on from anywhere"


def test_resume_takes_the_newest_and_repeats_no_probe(searches: Searches, capsys) -> None:
    searches.interrupted(2, "--fresh")
    searches.interrupted(len(searches.ran) + 3, "--fresh", "--bad", "requested>1500B")
    searches.ran.clear()
    result = document(capsys, "resume", "--quiet", "--jobs", "2", "--deadline", "500")
    assert (result["search"], result["bad_class"]) == (2, "requested>1500B")
    assert result["culprit"]["commit"] == searches.hashes[8]
    cached = [probe["cached"] for probe in result["probes"]]
    assert cached[:3] == [True, True, True]
    assert not any(cached[3:])


def test_resume_writes_its_page_where_it_was_called(searches: Searches, tmp_path: Path, monkeypatch, capsys) -> None:
    searches.interrupted(2)
    monkeypatch.chdir(tmp_path)
    assert run(["bisect", "resume", "1", "--quiet", "--html", "page.html"]) == 0
    assert (tmp_path / "page.html").stat().st_size > 0
    assert run(["bisect", "resume", "1", "--quiet", "--html", "page.html"]) == 2
    assert "file exists" in capsys.readouterr().err


def test_a_deadline_of_nothing_is_one(searches: Searches, capsys) -> None:
    searches.interrupted(3)
    assert run(["bisect", "resume", "1", "--deadline", "0", "--quiet"]) == 7
    assert len(searches.ran) == 3


def test_log_shows_where_a_search_stands_and_every_answer(searches: Searches, capsys) -> None:
    searches.interrupted(4)
    logged = document(capsys, "log")
    assert (logged["state"], logged["title"], len(logged["probes"])) == ("interrupted", "good..main", 4)
    with store().open(1):
        assert document(capsys, "log")["state"] == "running"
    assert Path(logged["journal"]) == store().path(1)
    assert run(["bisect", "log", "1"]) == 0
    shown = capsys.readouterr().out
    assert "oomscope bisect good..main --config a.yaml --quiet" in shown
    assert searches.hashes[0][:10] in shown
    assert run(["bisect", "resume", "--quiet"]) == 0
    logged = document(capsys, "log")
    assert (logged["state"], logged["outcome"]) == ("ended", "culprit")


def test_export_is_replayed_by_git(searches: Searches, tmp_path: Path, capsys) -> None:
    assert run(["bisect", "good..main", "--config", "a.yaml", "--quiet"]) == 0
    log = document(capsys, "export")["log"]
    assert run(["bisect", "export"]) == 0
    assert capsys.readouterr().out == log
    (tmp_path / "log").write_text(log)
    replay = ["git", "bisect", "replay", str(tmp_path / "log")]
    done = subprocess.run(replay, cwd=searches.repo.path, capture_output=True, text=True, check=True)
    assert re.search(f"{searches.hashes[8]} is the first '?bad'? commit", done.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume", "9"], "there is no search 9"),
        (["log"], "no search of"),
        (["resume", "0"], "Invalid value"),
        (["log", "x"], "Invalid value"),
    ],
)
def test_what_there_is_not_is_one_line(searches: Searches, capsys, words: list[str], said: str) -> None:
    assert run(["bisect", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_cannot_be_asked_again_is_one_line(searches: Searches, tmp_path: Path, capsys) -> None:
    for fields in ({"words": ()}, {"cwd": str(tmp_path / "gone")}):
        with store().begin() as journal:
            journal.append(begun_event(begun(journal.number, place=str(searches.repo.path / ".git"), **fields)))
    copy = store().path(3)
    copy.write_bytes(store().path(1).read_bytes())
    for number, said in ((1, "was started by a program"), (2, "cannot be entered"), (3, "it is a copy")):
        assert run(["bisect", "resume", str(number)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_running_search_is_left_alone(searches: Searches, capsys, monkeypatch) -> None:
    monkeypatch.setattr("oomscope.bisect.journal.store._PATIENCE_S", 0.0)
    searches.interrupted(2)
    with store().open(1):
        assert run(["bisect", "resume"]) == 2
        assert "search 1 is still running" in capsys.readouterr().err
        assert run(["bisect", "log"]) == 0
