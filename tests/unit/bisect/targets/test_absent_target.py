"""What no end has is refused in one line before anything is probed, and what one of them may have is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.targets.absent_target import refuse_absent
from oomscope.bisect.targets.preparation import Preparation, Setup
from oomscope.bisect.targets.subjects import InCheckout
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import ExitCode, UsageError
from oomscope.probe.job import EntryTarget
from tests.unit.bisect.worlds import SETTINGS, World

HERE = "def build(ctx):\n    return ctx\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refuse(world: World, entry: str, preparation: Preparation | None = None, *, inside: str = "") -> None:
    repository = Repository.open(world.repo.path / inside)
    ends = [repository.resolve(name) for name in ("HEAD~1", "HEAD")]
    choice = InCheckout(target=EntryTarget(entry=entry, repo=""), settings=SETTINGS)
    refuse_absent(choice, preparation or Preparation(), repository, ends)


def two_commits(world: World, first: dict[str, str | bytes | None], second: dict[str, str | bytes | None]) -> None:
    world.repo.commit("one", first)
    world.repo.commit("two", second)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("tiny.train:biuld", "has biuld in tiny.train"),
        ("tiny.train:Trainer.build", "has Trainer.build in tiny.train"),
        ("tiny.trian:build", "has a module tiny.trian"),
        ("tiny:build", "has build in tiny"),
        ("build:build", "has a module build"),
    ],
)
def test_a_slip_in_the_name_is_refused_by_it(world: World, entry: str, what: str) -> None:
    two_commits(world, {"tiny/__init__.py": "", "tiny/train.py": HERE}, {"README": "2"})
    with pytest.raises(UsageError, match=rf"--entry {entry}: neither \w+ nor \w+ {what}") as caught:
        refuse(world, entry)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "src/" in str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        {"tiny/train.py": HERE},
        {"src/tiny/train.py": HERE},
        {"tiny/train/__init__.py": HERE},
        {"tiny/train.py": "from tiny.other import *\n"},
        {"tiny/train.py": "def __getattr__(name):\n    return print\n"},
        {"tiny/train.cpython-311-x86_64-linux-gnu.so": "compiled"},
        {"tiny/__init__.py": "import sys, types\nsys.modules['tiny.train'] = types.SimpleNamespace(build=print)\n"},
    ],
)
def test_what_one_end_may_have_is_left_to_the_probes(world: World, files: dict[str, str | bytes | None]) -> None:
    two_commits(world, {"README": "1"}, files)
    refuse(world, "tiny.train:build")


def test_a_link_may_lead_to_it(world: World) -> None:
    world.repo.commit("one", {"elsewhere/train.py": HERE})
    (world.repo.path / "tiny").symlink_to("elsewhere")
    world.repo.commit("two", {"README": "2"})
    refuse(world, "tiny.train:build")


def test_what_a_set_up_may_write_is_not_refused(world: World) -> None:
    two_commits(world, {"README": "1"}, {"README": "2"})
    with pytest.raises(UsageError, match="a module tiny"):
        refuse(world, "tiny:build")
    refuse(world, "tiny:build", Preparation(setup=Setup(command="make")))


@pytest.mark.parametrize("range_", [("HEAD~1", "HEAD"), None])
def test_nothing_is_probed_of_what_is_refused(world: World, range_: tuple[str, str] | None) -> None:
    two_commits(world, {"README": "1"}, {"README": "2"})
    ends = RevisionRange(good=range_[0], bad=range_[1]) if range_ else RevisionRange(good="", bad="HEAD")
    subject = InCheckout(target=EntryTarget(entry="tiny:build", repo=""), settings=SETTINGS)
    request = CommitRequest(repo=world.repo.path, range=ends, subject=subject, places=world.places)
    with pytest.raises(UsageError, match="a module tiny"):
        bisect_commits(request, probe=world.probe, environment={})
    assert world.probe.ran == []


def test_an_entry_is_looked_for_in_the_folder_that_is_measured(world: World) -> None:
    two_commits(world, {"lib/tiny/train.py": HERE, "tiny/wide.py": HERE}, {"README": "2"})
    refuse(world, "tiny.train:build", inside="lib")
    with pytest.raises(UsageError, match=r"has a module tiny\.wide") as caught:
        refuse(world, "tiny.wide:build", inside="lib")
    assert "lib/" in str(caught.value)
    with pytest.raises(UsageError, match=r"has a module tiny\.train"):
        refuse(world, "tiny.train:build")
