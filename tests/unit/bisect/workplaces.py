"""A clone of a repository in which a commit lies, ready for repairs and set-ups."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from oomscope.bisect.checkouts import Checkout
from oomscope.bisect.commits import Repository
from oomscope.bisect.deadline import Deadline
from oomscope.bisect.workplace import Workplace


def show(repository: Repository, path: Path, revision: str = "HEAD") -> Workplace:
    """Lay ``revision`` out in the clone ``path``."""
    missing = Checkout(repository, path).show(repository.resolve(revision))
    return workplace(path, is_whole=not missing)


def workplace(
    path: Path, *, seconds: float | None = None, stop: threading.Event | None = None, is_whole: bool = True
) -> Workplace:
    return Workplace(
        directory=path,
        environment={"PATH": os.environ["PATH"]},
        deadline=Deadline.after(seconds),
        stop=stop or threading.Event(),
        is_whole=is_whole,
    )
