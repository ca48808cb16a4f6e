"""Lines of two commits are told apart by their texts; what no commit changes, by its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from oomscope.bisect.results.growth import SiteGrowth, grew
from oomscope.bisect.vcs.repository import Repository
from oomscope.bisect.vcs.source_text import NO_SOURCES, SAME_CODE, Source, Sources
from oomscope.probe.result import SiteBytes
from tests.unit.bisect.probe_results import row
from tests.unit.bisect.repos import Repo

BEFORE = "def forward(x):\n    y = a(x)\n    pass\n    x = b(y)\n    return c(x)\n"
AFTER = BEFORE.replace("pass", "y = d(y)")
HELD = (row(8, 2), row(160, 4), row(4, 5))
"""By line; the line that came holds as much as one that was there, which holds less."""
HOLDS = (row(8, 2), row(160, 3), row(30, 4))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    made.commit("before", {"model.py": BEFORE, "net/part.py": "\x0c\n\r\nx\n", "net/blob.py": b"\xff\xfe"})
    made.commit("after", {"model.py": AFTER})
    return made


def source(repo: Repo, revision: str, **options: bool) -> Source:
    repository = Repository.open(repo.path)
    return Source(repository, repository.resolve(revision), **options)


def by_line(rows: Iterable[SiteGrowth]) -> dict[int, int]:
    return {grown.site.line: grown.delta_bytes for grown in rows if grown.site}


def test_a_line_that_begins_to_allocate_is_none_of_its_neighbours(repo: Repo) -> None:
    sources = Sources(source(repo, "HEAD~"), source(repo, "HEAD"))
    assert by_line(grew(HELD, HOLDS, sources)) == {3: 160, 4: -130, 5: -4}
    assert 3 not in by_line(grew(HELD, HOLDS)), "without the texts nothing says so"


def test_lines_of_one_code_are_known_by_their_numbers() -> None:
    assert by_line(grew(HELD, HOLDS, SAME_CODE)) == {3: 160, 4: -130, 5: -4}
    moved = tuple(SiteBytes(site=row(1, 9).site, bytes=each.bytes, count=1, category="activation") for each in HELD[:1])
    assert by_line(grew(HELD[:1], moved, SAME_CODE)) == {2: -8, 9: 8}


@pytest.mark.parametrize("file", ["net/blob.py", "net", "net/gone.py", "", "/etc/passwd", "../model.py", "??", "a\0b"])
def test_what_is_no_text_has_no_lines(repo: Repo, file: str) -> None:
    assert source(repo, "HEAD").lines(file) is None


@pytest.mark.parametrize(
    ("file", "is_fixed"),
    [("torch/nn/functional.py", True), ("h.py", True), ("", True), ("model.py", False), ("net/gone.py", False)],
)
def test_what_lies_beside_all_commits_is_fixed(repo: Repo, file: str, is_fixed: bool) -> None:
    assert source(repo, "HEAD").is_fixed(file) is is_fixed
    assert not source(repo, "HEAD", is_built=True).is_fixed(file), "a set-up may have made it"
    assert not Sources(source(repo, "HEAD"), Source()).are_one(file, file)
    assert not NO_SOURCES.are_one(file, file)
