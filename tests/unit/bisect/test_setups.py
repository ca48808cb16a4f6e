"""A set-up is done once for equal inputs and sees all that lies there; what it wrote comes back whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from oomscope.bisect.build_cache import BuildCache
from oomscope.bisect.commits import Repository
from oomscope.bisect.setups import Setup, SetupRunner
from oomscope.bisect.workplace import CommandError
from tests.unit.bisect.repos import Repo
from tests.unit.bisect.workplaces import show

BUILD = "cat csrc/* > pkg/ext.so && mkdir -p build/tmp && cp pkg/ext.so 'build/tmp/an o' && ln -s 'an o' build/tmp/l"


class Builder:
    """Lays commits out and sets them up, counting how often the command really ran."""

    def __init__(self, repo: Repo, tmp_path: Path) -> None:
        self.repo, self.tmp_path, self.ran = repo, tmp_path, tmp_path / "ran"
        self.ran.touch()

    def __call__(
        self, revision: str, command: str = BUILD, *, clone: str = "clone", edit=None, most_bytes: int = 10**9, **of
    ) -> tuple[str, ...]:
        place = show(Repository.open(self.repo.path), self.tmp_path / clone, revision)
        if edit is not None:
            edit(place.directory)
        setup = Setup(command=f"echo >> '{self.ran}'; {command}", inputs=of.pop("inputs", ()))
        runner = SetupRunner(setup, BuildCache(self.tmp_path / "builds", most_bytes))
        return runner.run(place, **of)

    @property
    def runs(self) -> int:
        return len(self.ran.read_text())


@pytest.fixture
def built(tmp_path: Path) -> Builder:
    repo = Repo(tmp_path / "repo")
    repo.commit("0", {"csrc/a.c": "one", "pkg/m.py": "1", ".gitignore": "build/\n*.so\n"})
    repo.commit("1", {"pkg/m.py": "2"})
    repo.commit("2", {"csrc/a.c": "two"})
    repo.commit("3", {"csrc/a.c": "one", "README": ""})
    return Builder(repo, tmp_path)


def files(clone: Path) -> dict[str, str]:
    names = (path for path in clone.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(clone)): path.read_text() for path in names}


def test_commits_with_the_same_inputs_are_set_up_once(built: Builder, tmp_path: Path) -> None:
    for revision, content, runs in (
        ("main~3", "one", 1),
        ("main~2", "one", 1),
        ("main~1", "two", 2),
        ("main", "one", 2),
    ):
        assert built(revision, inputs=("csrc", ".gitignore")) == ()
        assert (tmp_path / "clone/pkg/ext.so").read_text() == content
        assert (tmp_path / "clone/build/tmp/an o").read_text() == content
        assert (tmp_path / "clone/build/tmp/l").is_symlink()
        assert built.runs == runs
    assert built("main~3", inputs=("csrc",)) == ()
    assert built.runs == 3, "other inputs"


def test_by_default_the_whole_tree_counts(built: Builder) -> None:
    for revision in ("main~3", "main~2", "main~1", "main", "main~3"):
        built(revision)
    assert built.runs == 4


def test_where_an_input_is_missing_the_whole_tree_counts(built: Builder) -> None:
    for revision in ("main~3", "main~2", "main~3"):
        built(revision, inputs=("csrc", "cscr"))
    assert built.runs == 2


@pytest.mark.parametrize("name", ["a.c", "new.c", "ignored.so"])
def test_edits_and_repairs_are_inputs(built: Builder, tmp_path: Path, name: str) -> None:
    def edit(directory: Path) -> None:
        (directory / "csrc" / name).write_text("edited")

    built("main", inputs=("csrc",))
    built("main", inputs=("csrc",), edit=edit)
    assert built.runs == 2
    assert "edited" in (tmp_path / "clone/pkg/ext.so").read_text()
    built("main", inputs=("csrc",), edit=edit)
    assert built.runs == 2
    built("main", inputs=("csrc",), repaired=["a name"])
    assert built.runs == 3


def test_another_command_or_environment_is_another_set_up(
    built: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("main")
    built("main", command=f"{BUILD} && true")
    assert built.runs == 2
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    built("main")
    assert built.runs == 3


def test_a_failure_is_not_kept(built: Builder, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(CommandError, match=r"--setup: failed \(status 1\): broken"):
            built("main", command="echo half > pkg/half; echo broken; exit 1")
    assert built.runs == 2
    built("main")
    assert not (tmp_path / "clone/pkg/half").exists()


def test_a_set_up_that_changes_the_commits_own_files_is_not_kept(built: Builder, tmp_path: Path) -> None:
    for command in ("echo stamped > pkg/m.py", "rm pkg/m.py"):
        (note,) = built("main", command=command)
        assert note == "the set-up is not kept for other commits: it changes pkg/m.py, which belongs to the commit"
        built("main", command=command)
    assert built.runs == 4
    assert built("main", command="touch pkg/m.py") == (), "it is as it was"


def test_what_is_too_large_is_not_kept(built: Builder) -> None:
    (note,) = built("main", most_bytes=2)
    assert "more than 2 bytes" in note


def test_a_build_that_lies_where_the_commit_has_a_file_is_made_anew(built: Builder, tmp_path: Path) -> None:
    built.repo.git("add", "--force", "--all")
    built.repo.commit("4", {"build/tmp/other": "own"})
    built.repo.git("add", "--force", "build/tmp/other")
    built.repo.commit("5", {})
    command = "mkdir -p build/tmp && cp csrc/a.c build/tmp/other"
    built("main~2", command=command, inputs=("csrc",))
    (note,) = built("main", command=command, inputs=("csrc",))
    assert "build/tmp/other" in note
    assert built.runs == 2
    assert (tmp_path / "clone/build/tmp/other").read_text() == "one"


def test_submodules_and_repositories_within_are_kept_whole(built: Builder, tmp_path: Path) -> None:
    library = Repo(tmp_path / "library")
    library.commit("library", {"lib.c": "lib", ".gitignore": "*.so"})
    built.repo.git("submodule", "add", "--quiet", str(library.path), "third_party/lib")
    built.repo.commit("4", {})
    built.repo.commit("5", {"README": "more"})
    command = "cd third_party/lib && cp lib.c lib.so && git init --quiet ../../deps && echo d > ../../deps/d.c"
    for revision in ("main", "main~1", "main"):
        assert built(revision, command=command, inputs=("csrc", "third_party")) == ()
        assert (tmp_path / "clone/third_party/lib/lib.so").read_text() == "lib"
        assert (tmp_path / "clone/deps/d.c").read_text() == "d\n"
    assert built.runs == 1


def test_a_checkout_that_lacks_something_shares_nothing(built: Builder, tmp_path: Path) -> None:
    commit = built.repo.head
    built.repo.git("update-index", "--add", "--cacheinfo", f"160000,{commit},gone")
    built.repo.git("commit", "--quiet", "-m", "a submodule that is not at hand")
    built("main", inputs=("csrc",))
    built("main", inputs=("csrc",))
    assert built.runs == 2
    assert not (tmp_path / "builds").exists()


def test_slots_that_need_the_same_build_make_it_once(built: Builder, tmp_path: Path) -> None:
    command = f"sleep 0.3; {BUILD}"
    threads = [
        threading.Thread(target=built, args=("main", command), kwargs={"clone": f"clone-{slot}"}) for slot in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built.runs == 1
    shown = [files(tmp_path / f"clone-{slot}") for slot in range(4)]
    assert shown[0]["pkg/ext.so"] == "one"
    assert shown == [shown[0]] * 4
