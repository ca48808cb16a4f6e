"""A program in a clone imports the clone's code; what it takes from the user's checkout all the same is told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from oomscope.probe.job import ProgramTarget
from oomscope.probe.targets.checkout_imports import (
    arm_from_environment,
    imported_from_checkout,
    imported_from_copies,
    variables,
    words_in_clone,
)


class Checkouts:
    """A user's checkout with an environment of Python inside, and a clone inside it as well."""

    def __init__(self, place: Path) -> None:
        self.user, self.clone = place / "user", place / "user" / "state" / "clone"
        for checkout in (self.user, self.clone):
            (checkout / "src" / "tiny").mkdir(parents=True)
            (checkout / "src" / "tiny" / "__init__.py").touch()
            (checkout / "train.py").touch()
        (self.user / "new.py").touch()
        self.installed = self.user / ".venv" / "lib" / "python3.12" / "site-packages"
        self.target = ProgramTarget(command="", repo=str(self.clone), origin=str(self.user))


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkouts:
    made = Checkouts(tmp_path)
    for name, value in variables(made.target).items():
        monkeypatch.setenv(name, value)
    return made


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, file: Path) -> None:
    module = ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)


def test_folders_of_the_checkout_become_those_of_the_clone(
    checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, clone = checkouts.user, checkouts.clone
    kept = [str(clone), str(checkouts.installed), str(user / "untracked"), f"{user}-other", "/usr/lib"]
    monkeypatch.setattr(sys, "path", [str(user), str(user / "src"), *kept])
    arm_from_environment()
    assert sys.path == [str(clone), str(clone / "src"), *kept]


def test_words_of_a_command_name_what_the_clone_has(checkouts: Checkouts) -> None:
    user, clone = checkouts.user, checkouts.clone
    words = ["python", f"{user}/train.py", f"--config={user}/train.py", f"{user}/new.py", "train.py"]
    assert words_in_clone(words, checkouts.target) == [
        *("python", f"{clone}/train.py", f"--config={clone}/train.py", f"{user}/new.py", "train.py")
    ]
    alone = ProgramTarget(command="", repo=str(clone))
    assert words_in_clone(words, alone) == words


def test_a_module_of_the_users_checkout_is_told(checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, "a_tiny", checkouts.clone / "src" / "tiny" / "__init__.py")
    loaded(monkeypatch, "a_library", checkouts.installed / "library.py")
    assert imported_from_checkout() is None
    loaded(monkeypatch, "new", checkouts.user / "new.py")
    assert imported_from_checkout() == ("new", str(checkouts.user / "new.py"))


def test_an_installed_copy_of_what_the_clone_has_is_noted(
    checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(monkeypatch, "tiny", checkouts.clone / "src" / "tiny" / "__init__.py")
    loaded(monkeypatch, "library", checkouts.installed / "library.py")
    assert imported_from_copies() == []
    loaded(monkeypatch, "tiny", checkouts.installed / "tiny" / "__init__.py")
    (note,) = imported_from_copies()
    assert note.startswith("tiny was imported from an installed copy (")
    assert note.endswith("begin the command with env PYTHONPATH=src if the checkout's is meant")


def test_of_the_users_own_checkout_only_installed_copies_are_noted(
    checkouts: Checkouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(ProgramTarget(command="", repo=str(checkouts.user))).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "path", before := [*sys.path, str(checkouts.user)])
    arm_from_environment()
    assert sys.path == before
    loaded(monkeypatch, "new", checkouts.user / "new.py")
    assert imported_from_checkout() is None
    assert imported_from_copies() == []
    loaded(monkeypatch, "tiny", checkouts.installed / "tiny" / "__init__.py")
    assert len(imported_from_copies()) == 1
