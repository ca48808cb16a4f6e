"""A clone of a repository in which a commit lies, ready for repairs and set-ups."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from oomscope.bisect.run.experiment import Deadline, Workplace
from oomscope.bisect.vcs.checkouts import Checkout
from oomscope.bisect.vcs.repository import Repository


def show(repository: Repository, path: Path, revision: str = "HEAD") -> Workplace:
    """Lay ``revision`` out in the clone ``path``."""
    Checkout(repository, path).show(repository.resolve(revision))
    return workplace(path)


def workplace(path: Path, *, seconds: float | None = None, stop: threading.Event | None = None) -> Workplace:
    return Workplace(
        directory=path,
        environment={"PATH": os.environ["PATH"]},
        deadline=Deadline.after(seconds),
        stop=stop or threading.Event(),
    )
