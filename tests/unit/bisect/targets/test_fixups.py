"""A repair is read before any probe, reaches exactly its commits, and is gone with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oomscope.bisect.targets.preparation import Fixup
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import GitError, TargetError, UsageError
from tests.unit.bisect.repos import Repo, fingerprint
from tests.unit.bisect.worlds import show


def around(line: str) -> str:
    lines = [f"line {number}\n" for number in range(12)]
    return "".join([*lines[:5], line, *lines[5:]])


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Four commits; the third moves the broken line and changes the lines around, the fourth mends it."""
    made = Repo(tmp_path / "répo")
    made.commit("0", {"a.py": around("import gone\n"), ".gitignore": "*.log\n"})
    made.commit("1", {"b.py": "1\n"})
    made.commit("2", {"a.py": "# new\n" * 9 + around("import gone\n").replace("line 2", "line two")})
    made.commit("3", {"a.py": "# new\n" * 9 + around("import here\n").replace("line 2", "line two")})
    return made


@pytest.fixture
def patch(repo: Repo, tmp_path: Path) -> Path:
    """As the user makes it: an edit of the first commit."""
    work = Repo(tmp_path / "work")
    work.commit("0", {"a.py": around("import gone\n")})
    (work.path / "a.py").write_text(around("import here\n"))
    file = tmp_path / "mend it.patch"
    file.write_text(work.git("diff") + "\n")
    return file


def mend(repo: Repo, clone: Path, revision: str, text: str) -> Path:
    repository = Repository.open(repo.path)
    commit = repository.resolve(revision)
    place = show(repository, clone, revision)
    fixup = Fixup.parse(text)
    commits = fixup.commits(repository)
    if commits is None or commit.hash in commits:
        fixup.apply(place, 60.0)
    return place.directory


def test_a_patch_finds_lines_that_moved_and_leaves_alone_what_has_it(repo: Repo, patch: Path, tmp_path: Path) -> None:
    before = fingerprint(repo.path)
    for revision in ("main~3", "main~2", "main~1", "main"):
        clone = mend(repo, tmp_path / "clone", revision, f"*: {patch}")
        assert "import here\n" in (clone / "a.py").read_text()
        assert "<<<<" not in (clone / "a.py").read_text()
    assert fingerprint(repo.path) == before, "also the times of its objects"


def test_a_patch_that_does_not_apply_says_so(repo: Repo, tmp_path: Path) -> None:
    other = tmp_path / "other.diff"
    other.write_text("--- a/c.py\n+++ b/c.py\n@@ -1 +1 @@\n-nothing\n+like it\n")
    with pytest.raises(TargetError, match=r"--fixup \*: .*other.diff: does not apply: git: c.py: "):
        mend(repo, tmp_path / "clone", "main", f"*: {other}")


@pytest.mark.parametrize(
    ("range_", "reached"),
    [("*", "0123"), ("main~1", "2"), ("main~3..main~1", "12"), ("main~2..", "23"), ("..main", None), ("v1", "1")],
)
def test_the_commits_of_a_range(repo: Repo, range_: str, reached: str | None) -> None:
    repo.git("tag", "-a", "-m", "annotated", "v1", "main~2")
    repo.git("checkout", "--quiet", "--detach", "main" if reached else "main~1")
    repository = Repository.open(repo.path)
    chosen = Fixup.parse(f"{range_}: true").commits(repository)
    commits = [repository.resolve(f"main~{3 - number}") for number in range(4)]
    assert "".join(commit.subject for commit in commits if chosen is None or commit.hash in chosen) == (reached or "3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("main", "is not a repair"),
        ("main:", "is not a repair"),
        (": sed", "is not a repair"),
        ("main: missing.patch", "no such patch file"),
        ("main: /tmp/missing.diff", "no such patch file"),
        ("main: dir.patch", "cannot be read: Is a directory"),
        ("main..main: true", "no commit lies in this range"),
        ("main..main~2: true", "no commit lies in this range"),
        ("main...main~2: true", "symmetric difference"),
        ("mian: true", "no such commit"),
        ("mian..main: true", "no such commit"),
        ("--all: true", "is not a revision"),
        ("main: notes.txt", "is not a patch"),
    ],
)
def test_what_cannot_be_a_repair_is_refused_in_one_line(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.patch").mkdir()
    (tmp_path / "notes.txt").write_text("mend it\n")
    with pytest.raises((UsageError, GitError)) as caught:
        Fixup.parse(text).commits(Repository.open(repo.path))
    assert said in str(caught.value)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


LEAKY = """\
echo left > left.py; echo left > left.log; mkdir -p build && echo left > build/left
git config core.hooksPath "$PWD/hooks"; mkdir hooks; printf '#!/bin/sh\\ntouch ran' > hooks/post-checkout
chmod +x hooks/post-checkout; git config core.sparseCheckout true; echo /b.py > .git/info/sparse-checkout
echo '*.py filter=trap' > .git/info/attributes; git config filter.trap.smudge 'echo trapped'
echo changed > a.py; git update-index --assume-unchanged a.py; git tag v9; echo '*' > .git/info/exclude
chmod -R a-w build; mkfifo pipe
"""


def test_nothing_of_a_command_reaches_the_next_commit(repo: Repo, tmp_path: Path) -> None:
    before = fingerprint(repo.path)
    for revision in ("main~2", "main~1", "main~1", "main"):
        clone = mend(repo, tmp_path / "clone", f"{revision}", f"main~2..main~1: {LEAKY}")
        if revision == "main~2":
            mend(repo, tmp_path / "clone", revision, f"*: {LEAKY}")
    found = {str(path.relative_to(clone)) for path in clone.rglob("*") if ".git" not in path.relative_to(clone).parts}
    assert found == {"a.py", "b.py", ".gitignore"}
    assert "import here" in (clone / "a.py").read_text()
    settings = subprocess.run(["git", "-C", clone, "config", "--list", "--local"], capture_output=True, check=True)
    assert b"trap" not in settings.stdout
    assert fingerprint(repo.path) == before
