"""The user's set-up of a checkout, such as the build of an extension, done once for all commits with the same inputs.

What lies in the checkout before it is put into the index of the disposable clone. So the inputs have names (those of
git's objects, edits and repairs included), and what the command wrote is what the index does not know. A set-up that
changes files of the commit itself is not kept: over another commit they would be wrong.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from oomscope.bisect.build_cache import Build, BuildCache
from oomscope.bisect.checkouts import editing
from oomscope.bisect.git import Git
from oomscope.bisect.identity import digest_of, hash_of_environment
from oomscope.bisect.packages import installed_packages
from oomscope.bisect.workplace import Workplace
from oomscope.errors import TargetError

TIMEOUT_S = 1800.0
NAME = "--setup"
_NO_ROOM = "see that its disk has room, or give --state another directory"
_GITLINK_MODE = "160000"
_NOT_KEPT = "the set-up is not kept for other commits"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is done in every checkout before it is measured."""

    command: str
    """For ``sh``, run in the root of the checkout."""
    inputs: tuple[str, ...] = ()
    """Paths from the root of the repository; commits that have the same there are set up once. Empty for everything."""
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True)
class SetupRunner:
    """Sets checkouts up, or lays out what an earlier set-up of the same inputs wrote.

    Args:
        setup: what is done.
        builds: what was written before.
    """

    setup: Setup
    builds: BuildCache
    _python: tuple[str, ...] = field(default=(sys.version, sysconfig.get_platform()), init=False)

    def run(self, place: Workplace, repaired: Sequence[str] = ()) -> tuple[str, ...]:
        """Set up the checkout at ``place``, and return what is to be remarked, one line each.

        Args:
            place: a clone of our own with the files laid out.
            repaired: names of what was done to the files before.

        Raises:
            CommandError: the command failed, or took too long.
            TargetError: what an earlier one wrote cannot be laid out.
            GitError: git cannot tell what lies there.
            StoppedError: nobody wants the result any more.
            OutOfTimeError: the deadline of the search has passed.
        """
        git = editing(place.directory)
        git.output("add", "--all", "--force")
        if not place.is_whole:
            self._run(place)
            return ()
        try:
            with self.builds.held(self._key(git, place, repaired), place.check) as build:
                return self._laid_out(build, git, place)
        except OSError as error:
            why = f"{error.strerror or error}: {error.filename or self.builds.root}"
            raise TargetError(
                f"what was written before cannot be laid out ({why})", where=NAME, remedy=_NO_ROOM
            ) from None

    def _laid_out(self, build: Build, git: Git, place: Workplace) -> tuple[str, ...]:
        if build.lay_out(place.directory):
            return ()
        self._run(place)
        if altered := _altered(git):
            return (f"{_NOT_KEPT}: it changes {altered[0]}, which belongs to the commit",)
        written = _written(git)
        try:
            if self.builds.keep(build, place.directory, written):
                return ()
        except OSError as error:
            return (f"{_NOT_KEPT}: {error.strerror or error}",)
        return (f"{_NOT_KEPT}: it wrote more than {self.builds.most_bytes} bytes",)

    def _run(self, place: Workplace) -> None:
        place.run(self.setup.command, name=NAME, timeout_s=self.setup.timeout_s)

    def _key(self, git: Git, place: Workplace, repaired: Sequence[str]) -> str:
        return digest_of(
            {
                "command": self.setup.command,
                "inputs": self._inputs(git),
                "repaired": list(repaired),
                "python": self._python,
                "packages": self._packages,
                "environment": hash_of_environment(place.environment),
            }
        )

    def _inputs(self, git: Git) -> str:
        """Return a name of what lies at the inputs; of everything where one of them is missing."""
        found = [git.output("ls-files", "--stage", "-z", "--", f":(literal){path}") for path in self.setup.inputs]
        if not found or not all(found):
            found = [git.output("ls-files", "--stage", "-z")]
        return hashlib.sha256(b"\0\0".join(found)).hexdigest()

    @cached_property
    def _packages(self) -> str:
        return installed_packages()


def _altered(git: Git) -> list[str]:
    """Return the paths in the index, and in those of submodules, whose files are not as they are there."""
    return _everywhere(git, "--modified", "--deleted")


def _written(git: Git) -> list[str]:
    """Return the files that the index, and those of submodules, do not know; of repositories in it all files."""
    found = []
    for path in _everywhere(git, "--others"):
        if path.endswith("/"):  # a repository that is none of the submodules
            inside = (git.directory / path).rglob("*")
            found += [str(file.relative_to(git.directory)) for file in inside if file.is_symlink() or file.is_file()]
        else:
            found.append(path)
    return found


def _everywhere(git: Git, *options: str) -> list[str]:
    """Return what ``git ls-files`` lists in a checkout and in its submodules, and theirs, as paths from its root."""
    found = git.listed("ls-files", "-z", *options)
    for path in _submodules(git):
        inner = git.directory / path
        listed = _everywhere(Git(inner, (inner, inner / ".git")), *options) if (inner / ".git").exists() else []
        found += [str(Path(path) / name) + "/" * name.endswith("/") for name in listed]
        found = [name for name in found if name != path]
    return list(dict.fromkeys(found))


def _submodules(git: Git) -> list[str]:
    rows = git.listed("ls-files", "--stage", "-z")
    return [row.partition("\t")[2] for row in rows if row.startswith(_GITLINK_MODE)]
