"""Files of a commit whose content the repository does not hold, as after ``git clone --filter=blob:limit=1m``.

git lays out such a commit in part and fails. What lacks is mostly data that a measurement does not read, so the rest is
laid out and what lacks is named. A commit that lacks code is not laid out: whatever ran would not be that commit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath

from oomscope.bisect.git import Git
from oomscope.errors import GitError
from oomscope.printable import printable

_CODE = {".py", ".pyi", ".pyx"}
_GITLINK = "commit"


def absent_files(git: Git, commit: str) -> list[str]:
    """Return the paths in ``commit`` whose content is not at hand.

    Raises:
        GitError: directories of the commit are not at hand either.
    """
    rows = [row.partition("\t") for row in git.listed("ls-tree", "-r", "-z", commit)]
    files = [(path, head.split()[2]) for head, _, path in rows if head.split()[1] != _GITLINK]
    asked = "".join(f"{name}\n" for _, name in files).encode()
    answers = git.output("cat-file", "--batch-check", stdin=asked).decode().splitlines()
    return [path for (path, _), answer in zip(files, answers, strict=True) if answer.endswith(" missing")]


def lay_out_rest(git: Git, commit: str, absent: Sequence[str]) -> None:
    """Make the work tree and the index of ``git`` those of ``commit`` without the files ``absent``.

    Raises:
        GitError: code is among them, or git failed.
    """
    code = next((path for path in absent if PurePosixPath(path).suffix in _CODE), None)
    if code is not None:
        raise GitError(f"{code} is not in the repository", where=commit, remedy="fetch what the partial clone left out")
    git.output("update-ref", "--no-deref", "HEAD", commit)
    git.output("read-tree", "--reset", commit)
    git.output("update-index", "--force-remove", "-z", "--stdin", stdin=os.fsencode("".join(f"{p}\0" for p in absent)))
    git.output("checkout-index", "--all", "--force", "--quiet")


def absence(absent: Sequence[str]) -> str:
    """Return the line that names what ``lay_out_rest`` left out."""
    what, named = named_few(absent, "file is", "files are")
    return f"{what} not in the repository and left out ({named})"


def named_few(names: Sequence[str], one: str, more: str) -> tuple[str, str]:
    """Return how many ``names`` there are, in words, and the first of them."""
    first = printable(names[0])
    return (f"1 {one}", first) if len(names) == 1 else (f"{len(names)} {more}", f"{first} …")
