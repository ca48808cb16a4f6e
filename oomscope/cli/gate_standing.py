"""Where a case of the gate stands in git: which commit is checked out there, and which of earlier ones is nearest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.errors import GitError
from oomscope.files import real_path

if TYPE_CHECKING:
    from oomscope.gate.result import Standing
    from oomscope.gate.run import StandsAt
    from oomscope.gate.suite import Case


def folder_of(case: Case) -> Path:
    """Return the folder whose history can change what ``case`` measures."""
    if case.own_kind is not None:
        return case.checkout
    return case.path.parent if case.kind == "config" else case.folder


def newest_before(folder: Path, head: str, commits: Collection[str]) -> str | None:
    """Return that of ``commits`` in the history of ``head`` which none of the others there comes after.

    None where that history has none of them. Dates do not count, and commits that the repository lacks do no harm.

    Raises:
        GitError: the history cannot be read.
    """
    from oomscope.bisect.vcs.git import Git

    history = Git(folder, (folder,)).text("rev-list", "--topo-order", "--end-of-options", head).split()
    return next((commit for commit in history if commit in commits), None)


def place_inside(file: Path) -> str:
    """Return what :func:`path_inside` does; empty where ``file`` lies in no repository."""
    try:
        return path_inside(file)
    except GitError:
        return ""


def path_inside(file: Path) -> str:
    """Return the path of ``file`` from the root of its repository, with slashes.

    Raises:
        GitError: it lies in none, or git cannot read it.
    """
    from oomscope.bisect.vcs.git import Git

    folder = real_path(file.parent)
    return Git(folder, (folder,)).text("rev-parse", "--show-prefix") + file.name


def standings() -> StandsAt:
    """Return what says where a case stands: None where there is no repository, or no commit yet.

    Each repository is looked at once, so that all cases of a night stand where they stood when it began.
    """
    known: dict[Path, Standing | None] = {}

    def standing_of(case: Case) -> Standing | None:
        folder = real_path(folder_of(case))
        if folder not in known:
            known[folder] = _standing(folder)
        standing = known[folder]
        return standing if standing is None or not _is_in_no_commit(case, folder) else replace(standing, dirty=True)

    return standing_of


def _is_in_no_commit(case: Case, folder: Path) -> bool:
    """Whether the configuration or harness lies in the repository of ``folder``, and git does not know it.

    A harness elsewhere is kept out of the history on purpose, and says nothing of a commit.
    """
    from oomscope.bisect.vcs.git import Git

    if case.kind not in {"config", "harness"}:
        return False
    git, path = Git(folder, (folder,)), real_path(case.path)
    root = Path(git.text("rev-parse", "--show-toplevel"))
    if not path.is_relative_to(root):
        return False
    return not git.listed("ls-files", "-z", "--", f":(top,literal){path.relative_to(root)}")


def _standing(folder: Path) -> Standing | None:
    from oomscope.bisect.vcs.repository import Repository
    from oomscope.bisect.vcs.uncommitted import has_uncommitted_changes
    from oomscope.gate.result import Standing

    try:
        commit = Repository.open(folder).resolve("HEAD")
        dirty = has_uncommitted_changes(folder)
    except (GitError, OSError):  # of a folder that nobody can enter the case itself says what is wrong
        return None
    return Standing(commit=commit.hash, subject=commit.subject, dirty=dirty)
