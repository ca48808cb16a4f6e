"""Whole searches among commits that need a repair or a build; the probe only reads a number that the build makes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.change_bisect import EnvironmentRequest, bisect_environment
from oomscope.bisect.changes.change_set import ChangeSet
from oomscope.bisect.changes.environment import EnvironmentDeltas
from oomscope.bisect.code_vs_config import bisect_code_vs_config
from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.targets.preparation import Fixup, Preparation
from oomscope.bisect.targets.subjects import ConfigInRepo
from oomscope.errors import UsageError
from tests.unit.bisect.worlds import Listener, World, culprit

GOOD, BAD = 500, 1200


class Workshop(World):
    """Commits whose ``source.txt`` a set-up makes ``size.txt`` of, with a count of how often it did."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.ran = tmp_path / "ran"
        self.ran.touch()
        self.build = f"echo >> '{self.ran}'; expr $(cat source.txt) > size.txt"

    def sources(self, *sources: int | str) -> list[str]:
        """Commit each, and beside it a file that no build reads."""
        return [
            self.repo.commit(
                f"commit {index}", {"source.txt": f"{source}\n", "notes": f"{index}", ".gitignore": "size*"}
            )
            for index, source in enumerate(sources)
        ]

    def prepared(self, *fixups: str, setup: str = "", links: tuple[str, ...] = ()) -> Preparation:
        return Preparation(fixups=tuple(map(Fixup.parse, fixups)), setup=setup or self.build, links=links)

    def bisect(self, good: str, **options: object) -> BisectResult:
        self.listener = Listener()
        return super().bisect(good, **options)

    @property
    def runs(self) -> int:
        return len(self.ran.read_text())


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_a_build_that_fails_makes_its_commit_untestable_and_is_tried_again(shop: Workshop) -> None:
    hashes = shop.sources(GOOD, GOOD + 1, "no number", BAD, BAD)
    for runs in (5, 6):
        result = shop.bisect(hashes[0], preparation=shop.prepared())
        assert result.outcome == "suspects"
        (failed,) = result.untestable
        assert failed.commit == hashes[2]
        assert failed.reason.startswith("--setup: failed (status 2): expr: ")
        assert failed.log is not None
        assert "expr: " in Path(failed.log).read_text()
        assert shop.runs == runs


def test_commits_that_are_broken_in_a_range_are_repaired_there(shop: Workshop, tmp_path: Path) -> None:
    hashes = shop.sources(GOOD, "expr 501", "expr 502", "expr 1203", 1204, 1205)
    asked = shop.prepared(f"{hashes[0]}..{hashes[3]}: sed -i s/expr// source.txt")
    result = shop.bisect(hashes[0], preparation=asked)
    assert culprit(result).commit == hashes[3]
    assert not result.untestable
    assert all("expr" not in ran for ran in shop.probe.ran)
    commands = result.last_good.commands if result.last_good else ()
    place = f"repo-{hashes[2][:10]}"
    assert commands[2] == f"(cd {place} && PIP_TARGET=\"$PWD\" PIP_USER=0 sh -c 'sed -i s/expr// source.txt')"
    assert commands[3] == f'(cd {place} && PIP_TARGET="$PWD" PIP_USER=0 sh -c {shlex.quote(shop.build)})'
    assert result.first_bad is not None
    assert len(result.first_bad.commands) == 5
    without = shop.bisect(hashes[0], preparation=shop.prepared())
    assert without.outcome == "suspects", "a result with a repair is no result without it"


def test_the_environment_and_the_square_are_prepared_too(shop: Workshop) -> None:
    hashes = shop.sources(GOOD, BAD)
    layers: tuple[ChangeSet, ...] = (EnvironmentDeltas(low={"MORE": "0"}, high={"MORE": "700"}, ends=("a", "b")),)
    request = EnvironmentRequest(
        repo=shop.repo.path,
        revision=hashes[0],
        subject=shop.request(hashes[0]).subject,
        layers=layers,
        state_dirs=shop.state_dirs,
        preparation=shop.prepared(setup="expr $(cat source.txt) + $MORE > size.txt"),
    )
    found = bisect_environment(request, probe=shop.probe, environment={})
    assert found.outcome == "culprit", "a set-up sees the variables of the probe"
    asked = shop.request(hashes[0], preparation=shop.prepared())
    square = bisect_code_vs_config(asked, "source.txt", probe=shop.probe, environment={}).square
    assert square is not None
    assert square.guilty == "config", "the other configuration is there before the build"


def test_nothing_is_laid_out_for_a_configuration(shop: Workshop) -> None:
    hashes = shop.sources(GOOD, BAD)
    request = replace(shop.request(hashes[0], preparation=shop.prepared()), subject=ConfigInRepo(path="a.yaml"))
    with pytest.raises(UsageError, match="not for --config"):
        bisect_commits(request)


def test_the_commands_of_a_report_do_what_was_done(shop: Workshop, tmp_path: Path, monkeypatch) -> None:
    import subprocess

    hashes = shop.sources(GOOD, BAD)
    patch = tmp_path / "p q.patch"
    patch.write_text(f"--- a/source.txt\n+++ b/source.txt\n@@ -1 +1 @@\n-{BAD}\n+{BAD + 1}\n")
    result = shop.bisect(hashes[0], preparation=shop.prepared(f"main: {patch}"))
    assert result.first_bad is not None
    *make_ready, probe = result.first_bad.commands
    (tmp_path / "by hand").mkdir()
    monkeypatch.chdir(tmp_path / "by hand")
    subprocess.run(" && ".join(make_ready), shell=True, check=True, capture_output=True)
    place = Path(shlex.split(probe)[shlex.split(probe).index("--repo") + 1])
    assert (place / "size.txt").read_text() == f"{BAD + 1}\n"


def test_every_checkout_links_to_what_git_does_not_track(shop: Workshop) -> None:
    hashes = shop.sources(GOOD, GOOD, GOOD, BAD)
    data = shop.repo.path / "data"
    data.mkdir()
    (data / "extra").write_text("0")
    build = f"echo >> '{shop.ran}'; expr $(cat source.txt) + $(cat data/extra) > size.txt"
    asked = shop.prepared(setup=build, links=("data",))
    result = shop.bisect(hashes[0], preparation=asked)
    assert culprit(result).commit == hashes[3]
    assert result.last_good is not None
    place = f"repo-{hashes[2][:10]}"
    assert result.last_good.commands[2] == f"mkdir -p {place} && ln -s {data} {place}/data"
    runs = shop.runs
    shop.bisect(hashes[0], preparation=asked)
    assert shop.runs == runs, "what was measured with the same data is known"
    (data / "extra").write_text("10")
    shop.bisect(hashes[0], preparation=asked)
    assert shop.runs > runs, "other data may give other bytes"


def test_a_program_that_writes_to_a_link_is_reported(shop: Workshop) -> None:
    hashes = shop.sources(GOOD, GOOD, GOOD, BAD)
    (shop.repo.path / "cache").mkdir()
    asked = shop.prepared(setup=f"{shop.build}; date > cache/$$", links=("cache",))
    result = shop.bisect(hashes[0], preparation=asked)
    assert any("--link cache: the program wrote there, to your own files" in note for note in result.notes)


@pytest.mark.parametrize(
    ("path", "what"), [("absent", "no such file or folder"), ("/etc", "lies outside the repository")]
)
def test_what_cannot_be_linked_is_refused(shop: Workshop, path: str, what: str) -> None:
    hashes = shop.sources(GOOD, BAD)
    with pytest.raises(UsageError, match=what):
        shop.bisect(hashes[0], preparation=shop.prepared(links=(path,)))
