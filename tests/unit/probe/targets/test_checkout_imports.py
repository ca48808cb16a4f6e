"""A program in a clone imports the clone's code; what it takes from elsewhere all the same is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from oomscope.probe.targets.checkout_imports import (
    arm_from_environment,
    imported,
    is_clone,
    variables,
    words_in_clone,
)
from tests.integration.program import git


class Checkouts:
    """A user's checkout with an environment of Python inside, and a clone of it."""

    def __init__(self, place: Path) -> None:
        self.user, self.clone, self.linked = place / "user", place / "clone", place / "linked tree"
        (self.user / "src" / "tiny").mkdir(parents=True)
        (self.user / "src" / "tiny" / "__init__.py").touch()
        (self.user / "train.py").touch()
        git(self.user, "init", "-q")
        git(self.user, "add", "-A")
        git(self.user, "commit", "-qm", "first")
        git(self.user, "worktree", "add", "-q", "--detach", str(self.linked))
        git(place, "clone", "-q", "--shared", str(self.user), str(self.clone))
        (self.user / "new.py").touch()
        self.installed = self.user / ".venv" / "lib" / "python3.12" / "site-packages"


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkouts:
    made = Checkouts(tmp_path)
    measured(made.clone, monkeypatch)
    return made


def measured(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables(str(checkout)).items():
        monkeypatch.setenv(name, value)


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, file: Path) -> None:
    module = ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)


def test_a_clone_is_distinguished_from_a_plain_checkout(checkouts: Checkouts) -> None:
    (checkouts.clone / "src").mkdir(exist_ok=True)
    assert is_clone(str(checkouts.clone))
    assert is_clone(str(checkouts.clone / "src")), "a folder of one"
    assert not is_clone(str(checkouts.user))
    assert not is_clone(str(checkouts.linked))


def test_folders_of_the_checkout_become_those_of_the_clone(
    checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user, clone = checkouts.user, checkouts.clone
    (tmp_path / "link").symlink_to(user)
    kept = [str(clone), str(checkouts.installed), str(user / "untracked"), f"{user}-other", "/usr/lib", user]
    moved = [user, user / "src", checkouts.linked / "src", tmp_path / "link" / "src"]
    monkeypatch.setattr(sys, "path", [*map(str, moved), *kept])
    arm_from_environment()
    assert sys.path == [str(clone), *[str(clone / "src")] * 3, *kept]


@pytest.mark.parametrize("table", ["MAPPING", "NAMESPACES"])
def test_an_editable_installation_finds_the_clone(
    table: str, checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of the finder that setuptools writes."""
    places = [str(each / "src" / "tiny") for each in (checkouts.user, checkouts.clone)]
    of_user, of_clone = places if table == "MAPPING" else ([place] for place in places)
    finder = ModuleType("__editable___tiny_finder")
    setattr(finder, table, {"tiny": of_user, "other": "/opt/other" if table == "MAPPING" else ["/opt/other"]})
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    monkeypatch.setattr(sys, "path", [])
    arm_from_environment()
    assert getattr(finder, table)["tiny"] == of_clone
    assert "/opt/other" in getattr(finder, table)["other"]


def test_words_of_a_command_name_what_the_clone_has(checkouts: Checkouts) -> None:
    user, clone = checkouts.user, checkouts.clone
    words = ["python", f"{user}/train.py", f"--config={user}/train.py", f"{user}/new.py", "train.py", "a=b"]
    assert words_in_clone(words, str(clone)) == [
        *("python", f"{clone}/train.py", f"--config={clone}/train.py", f"{user}/new.py", "train.py", "a=b")
    ]
    assert words_in_clone(words, str(user)) == words


def test_a_module_of_the_users_checkout_is_reported(checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, "a_tiny", checkouts.clone / "src" / "tiny" / "__init__.py")
    loaded(monkeypatch, "a_library", checkouts.installed / "library.py")
    assert imported() == ("", ())
    loaded(monkeypatch, "new", checkouts.user / "new.py")
    assert imported().replaced == ""
    (note,) = imported().notes
    assert note == f"new was imported from your checkout ({checkouts.user}/new.py), and the commit does not have it"
    loaded(monkeypatch, "train", checkouts.linked / "train.py")
    assert imported().replaced == f"train ({checkouts.linked}/train.py)"


def test_what_the_clone_links_to_is_the_clones(checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkouts.clone / "new.py").symlink_to(checkouts.user / "new.py")
    loaded(monkeypatch, "new", Path(os.path.realpath(checkouts.clone / "new.py")))
    assert imported() == ("", ())


@pytest.mark.parametrize("which", ["clone", "user"])
def test_a_copy_of_what_the_checkout_has_is_noted(
    which: str, checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout: Path = getattr(checkouts, which)
    measured(checkout, monkeypatch)
    for name in ("token.py", "oomscope.py"):
        (checkout / name).touch()
    loaded(monkeypatch, "token", Path(os.__file__).with_name("token.py"))  # Python's own
    loaded(monkeypatch, "library", checkouts.installed / "library.py")
    (tmp_path / "link").symlink_to(checkout)
    loaded(monkeypatch, "tiny", tmp_path / "link" / "src" / "tiny" / "__init__.py")
    assert imported() == ("", ())
    for copy in (checkouts.installed, tmp_path / "another checkout"):
        loaded(monkeypatch, "tiny", copy / "tiny" / "__init__.py")
        (note,) = imported().notes
        assert note.startswith(f"tiny was imported from {copy}/tiny/__init__.py, not from the checkout")
        assert note.endswith("the checkout's own tiny, begin the command with env PYTHONPATH=src")


def test_an_installed_build_of_the_clones_sources_is_noted(
    checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = checkouts.installed / "fast.cpython-312-x86_64-linux-gnu.so"
    loaded(monkeypatch, "fast", built)
    assert imported() == ("", ())
    (checkouts.clone / "fast.c").touch()
    (note,) = imported().notes
    assert note.startswith(
        f"fast was imported from {built}, the same build at every commit: bisect --setup 'python setup.py"
    )
    loaded(monkeypatch, "fast", checkouts.clone / built.name)
    assert imported() == ("", ())
    measured(checkouts.user, monkeypatch)
    (checkouts.user / "fast.c").touch()
    loaded(monkeypatch, "fast", built)
    assert imported() == ("", ())


def test_a_module_that_loads_when_it_is_asked_is_not_asked(
    checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> object:
            if name.startswith("__class"):
                return object.__getattribute__(self, name)
            raise RuntimeError(name)

    assert checkouts.clone.is_dir()
    with monkeypatch.context() as patch:  # nothing else may ask
        patch.setitem(sys.modules, "tiny", Lazy("tiny"))
        patch.setitem(sys.modules, "train", None)  # type: ignore[arg-type] # as Python notes what it did not find
        assert imported() == ("", ())


def test_nothing_is_changed_of_a_program_in_the_users_own_checkout(
    checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(checkouts.user, monkeypatch)
    monkeypatch.setattr(sys, "path", before := [str(checkouts.user), checkouts.user, str(checkouts.linked)])
    arm_from_environment()
    assert sys.path == before
