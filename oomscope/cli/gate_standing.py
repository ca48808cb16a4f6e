"""Where a case of the gate stands in git: the commit that is checked out where its configuration or code lies."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.errors import GitError

if TYPE_CHECKING:
    from oomscope.gate.result import Standing
    from oomscope.gate.suite import Case


def folder_of(case: Case) -> Path:
    """Return the folder whose history can change what ``case`` measures."""
    if case.kind == "harness":
        return case.checkout
    return case.path.parent if case.kind == "config" else case.folder


def standing_of(case: Case) -> Standing | None:
    """Return where ``case`` stands; None where there is no repository, or no commit yet."""
    return _standing(folder_of(case).resolve())


@cache
def _standing(folder: Path) -> Standing | None:
    from oomscope.bisect.commits import Repository
    from oomscope.bisect.git import Git
    from oomscope.gate.result import Standing

    try:
        commit = Repository.open(folder).resolve("HEAD")
        changed = Git(folder, (folder,)).text("status", "--porcelain", "--untracked-files=no")
    except GitError:
        return None
    return Standing(commit=commit.hash, subject=commit.subject, dirty=bool(changed))
