"""Builds the git history of tinytrain, the small training program of the demo.

The history lies beside this file as mail, so that it can be read as it is. Names and dates are fixed, and with them the
hashes. To change it, build it, edit the history, and export it again::

    git format-patch --stdout --zero-commit --no-signature --no-stat --root v0.2
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oomscope.bisect.vcs.git import Git

HERE: Final = Path(__file__).resolve().parent
HARNESS: Final = HERE / "harness.py"
"""Drives tinytrain, which knows nothing of oomscope."""
_TAGS: Final = {"v0.1": "Say how to run it", "v0.2": "Release 0.2"}
_COMMITTER: Final = (("user.name", "tinytrain"), ("user.email", "tinytrain@example.org"))


def build(repo: Path) -> None:
    """Make the repository ``repo``: the branch main, the tags v0.1 and v0.2.

    Raises:
        FileExistsError: there is something at ``repo``.
        GitError: there is no git, or it failed.
    """
    repo.mkdir(parents=True)
    git = Git(repo, settings=_COMMITTER)
    git.output("init", "--quiet", "--initial-branch=main")
    git.output("am", "--quiet", "--committer-date-is-author-date", str(HERE / "main.mbox"))
    log = git.text("log", "--format=%s%x00%H").splitlines()
    commits = dict(line.split("\0") for line in log)
    for tag, subject in _TAGS.items():
        git.output("tag", tag, commits[subject])
