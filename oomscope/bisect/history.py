"""Opens a repository with GitPython so that nothing but the directory named decides what is read.

GitPython takes variables such as ``GIT_DIR`` (set inside hooks) from its own process and hands them on to git, so for
the time of the reading the process has the environment of :func:`oomscope.bisect.git.isolated`, and this directory in
``GIT_DIR``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.bisect.git import NoGitError, complaint, isolated, remedy
from oomscope.errors import GitError
from oomscope.probe.machine.environment import ON_LOAN

if TYPE_CHECKING:
    import git


@contextmanager
def reading(directory: Path) -> Iterator[git.Repo]:
    """Open git's own directory ``directory`` (``.git``, or that of a work tree below ``.git/worktrees``) for reading.

    Read everything that is needed inside the block: GitPython's objects ask git when an attribute is first used.

    Raises:
        GitError: there is no git, it failed, or GitPython cannot read what it found; also where the block fails so.
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
            said = error.stderr.strip().removeprefix("stderr: '").removesuffix("'")
            raise GitError(complaint(said, error.status), where=str(directory), remedy=remedy(said)) from None
        except (git.GitError, ValueError, LookupError) as error:
            # GitPython says the last two of an object that is missing or damaged.
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise GitError(
                f"GitPython cannot read it: {said}",
                where=str(directory),
                remedy="run git fsck, and fetch what a partial clone lacks",
            ) from None


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Give the process the environment ``wanted`` and put back what differed."""
    with ON_LOAN:  # also since two readings in two threads would put back each other's
        names = os.environ.keys() | wanted.keys()
        before = {name: os.environ.get(name) for name in names if os.environ.get(name) != wanted.get(name)}
        try:
            for name in before:
                _put(name, wanted.get(name))
            yield
        finally:
            for name, value in before.items():
                _put(name, value)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
