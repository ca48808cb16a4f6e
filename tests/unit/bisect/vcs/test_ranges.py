"""What a range on the command line means, and what it must not mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.vcs.ranges import (
    FileAt,
    FileRange,
    RevisionRange,
    parse_range,
)
from oomscope.errors import UsageError


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("v1.2..main", "v1.2", "main"),
        ("HEAD~3..", "HEAD~3", "HEAD"),
        ("abc123..HEAD^2", "abc123", "HEAD^2"),
        ("release/1.0..feature/x", "release/1.0", "feature/x"),
        ("main@{1 week ago}..main", "main@{1 week ago}", "main"),
    ],
)
def test_two_revisions(text: str, good: str, bad: str) -> None:
    assert parse_range(text) == RevisionRange(good=good, bad=bad)


@pytest.mark.parametrize(
    "text",
    ["", "main", "..main", "..", "a...b", "a..b..c", "--output=x..main", "main..--exec=x", "^a..b", "a\n..b", " ..b"],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_range(text)


def test_two_files_also_with_dots_in_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("good.yaml", "bad..yaml", "sub/b.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / "sub")
    assert parse_range("../good.yaml..b.yaml") == FileRange(good=Path("../good.yaml"), bad=Path("b.yaml"))
    assert parse_range("../good.yaml..../bad..yaml") == FileRange(good=Path("../good.yaml"), bad=Path("../bad..yaml"))
    assert parse_range("../bad..yaml..b.yaml") == FileRange(good=Path("../bad..yaml"), bad=Path("b.yaml"))


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.yaml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"gone\.yaml: no such configuration file"):
        parse_range("good.yaml..gone.yaml")
    with pytest.raises(UsageError, match=r"gone\.sh: no such configuration file"):
        parse_range("good.yaml..gone.sh")


def test_files_as_they_stand_in_commits(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.touch()
    old, new = FileAt(revision="v1.2", path="conf/a.yaml"), FileAt(revision="HEAD~1", path="b.yaml")
    assert parse_range("v1.2:conf/a.yaml..HEAD~1:b.yaml") == FileRange(good=old, bad=new)
    assert parse_range(f"v1.2:conf/a.yaml..{file}") == FileRange(good=old, bad=file)
    assert str(FileRange(good=old, bad=new)) == "v1.2:conf/a.yaml..HEAD~1:b.yaml"
