"""Runs git, and opens repositories with GitPython, independently of the user's environment and settings.

Variables such as ``GIT_DIR`` (set inside hooks) would point git at another repository, and settings can run programs.
GitPython takes both from its own process, which therefore gets an isolated environment while it reads.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.errors import GitError, MachineUnfitError, OomscopeError
from oomscope.probe.machine.environment import ON_LOAN, own_environment
from oomscope.units import format_size

if TYPE_CHECKING:
    import git


_SETTINGS = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.attributesFile", os.devnull),
    ("core.excludesFile", os.devnull),
    ("core.quotePath", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    ("log.showSignature", "false"),
    ("i18n.logOutputEncoding", "UTF-8"),
    ("advice.detachedHead", "false"),
    ("advice.graftFileDeprecated", "false"),
    ("checkout.workers", "1"),
)
"""Settings on git's command scope, which wins over those in a repository (git-config(1), SCOPES): no hook or monitor
runs, nothing is collected, and output does not depend on taste. Filters that the repository itself sets have names of
their own: see :mod:`oomscope.bisect.vcs.uncommitted`."""

_LONGEST = 400
"""Characters of an error message: git repeats whole paths."""

_UNWRITTEN = re.compile(
    r"No space left|quota exceeded|(?:unable to|could ?n[o']t|cannot|failed to) write", re.IGNORECASE
)
"""Git's messages on a full disk: of a file written in parts it does not repeat the system's error."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The system's error numbers on a full disk."""

_VARIABLES = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",  # status and diff do not refresh the index
    "GIT_NO_REPLACE_OBJECTS": "1",  # a commit is what its hash says,
    "GIT_GRAFT_FILE": os.devnull,  # its parents too
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
    "LANGUAGE": "C",
}


class NoGitError(GitError):
    """There is no program ``git``."""

    def __init__(self) -> None:
        super().__init__("there is no git", where="PATH", remedy="install git")


@dataclass(frozen=True)
class Git:
    """git with some directories trusted.

    Args:
        directory: where it runs.
        trusted: repositories that may belong to somebody else (git-config(1), ``safe.directory``): those that the
            user named.
        settings: further settings, which win over the repository's.
    """

    directory: Path
    trusted: tuple[Path, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def output(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Return what git prints.

        Raises:
            GitError: there is no git, or it failed; with git's message in one line.
            MachineUnfitError: it could not write, as on a full disk.
        """
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=self.directory,
                env=isolated(own_environment(), self.trusted, self.settings),
                input=stdin,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            raise NoGitError from None
        if done.returncode != 0:
            raise _failure(done.stderr.decode(errors="replace"), done.returncode, self.directory)
        return done.stdout

    def text(self, *arguments: str) -> str:
        """Return what git prints, as text without the last newline."""
        return self.output(*arguments).decode(errors="replace").rstrip("\n")

    def listed(self, *arguments: str) -> list[str]:
        """Return what git lists under ``-z``; bytes of a name that are not text survive (PEP 383)."""
        return [os.fsdecode(row) for row in self.output(*arguments).split(b"\0") if row]


def isolated(
    environment: Mapping[str, str], trusted: Sequence[Path] = (), settings: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Return git's environment: the user's without any variable of git's, with fixed settings and ``settings``."""
    kept = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    settings = [*_SETTINGS, *(("safe.directory", str(path)) for path in trusted), *settings]
    numbered = {
        name: value
        for index, (key, setting) in enumerate(settings)
        for name, value in ((f"GIT_CONFIG_KEY_{index}", key), (f"GIT_CONFIG_VALUE_{index}", setting))
    }
    return {**kept, **_VARIABLES, "GIT_CONFIG_COUNT": str(len(settings)), **numbered}


def error_line(stderr: str, status: object) -> str:
    """Return the first error of git's standard error in one line."""
    lines = stderr.splitlines()
    errors = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    text = next(iter(errors), f"status {status}").removeprefix("fatal: ").removeprefix("error: ")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    return f"git: {text}"


def no_room(message: str, directory: Path) -> MachineUnfitError:
    """Return the error of a file that could not be written to ``directory``."""
    free = format_size(shutil.disk_usage(directory).free)
    remedy = "free space on it or within your quota, or point --state to another disk"
    return MachineUnfitError(f"{message}, with {free} free on the disk", where=str(directory), remedy=remedy)


def _failure(stderr: str, status: object, directory: Path) -> OomscopeError:
    is_denied = "Permission denied" in stderr
    if _UNWRITTEN.search(stderr) and not is_denied:
        return no_room(error_line(stderr, status), directory)
    remedy = "run git fsck to check the repository"
    if is_denied:
        remedy = "see that the repository can be read, and that --state can be written to"
    return GitError(error_line(stderr, status), where=str(directory), remedy=remedy)


@contextmanager
def reading(directory: Path) -> Iterator[git.Repo]:
    """Open git's own directory ``directory`` (``.git``, or that of a work tree below ``.git/worktrees``) for reading.

    Read everything that is needed inside the block: GitPython's objects ask git when an attribute is first used.

    Raises:
        GitError: there is no git, it failed, or GitPython cannot read what it found; also where the block fails so.
        MachineUnfitError: git could not write.
    """
    # The directory stands in for the work tree as well: git then runs there, so that paths count from the root of
    # the repository wherever the process stands, and no setting of the repository sends it elsewhere.
    place = {"GIT_DIR": str(directory), "GIT_WORK_TREE": str(directory)}
    with _environment({**isolated(os.environ), **place, "GIT_PYTHON_REFRESH": "quiet"}):
        import git

        try:
            with git.Repo(directory, expand_vars=False) as repo:
                yield repo
        except git.GitCommandNotFound:
            raise NoGitError from None
        except git.CommandError as error:
            stderr = error.stderr.strip().removeprefix("stderr: '").removesuffix("'")
            raise _failure(stderr, error.status, directory) from None
        except (git.GitError, ValueError, LookupError) as error:  # the last two: an object is missing or damaged
            first = next(iter(str(error).splitlines()), type(error).__name__)
            remedy = "run git fsck, and fetch what a partial clone lacks"
            raise GitError(f"GitPython cannot read it: {first}", where=str(directory), remedy=remedy) from None


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Give the process the environment ``wanted`` and restore what differed."""
    with ON_LOAN:  # two readings in two threads would restore each other's, too
        before = dict(os.environ)
        changed = {name for name in before.keys() | wanted.keys() if before.get(name) != wanted.get(name)}
        try:
            _put(wanted, changed)
            yield
        finally:
            _put(before, changed)


def _put(values: Mapping[str, str], names: set[str]) -> None:
    for name in names:
        if name in values:
            os.environ[name] = values[name]
        else:
            os.environ.pop(name, None)
