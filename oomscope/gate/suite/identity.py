"""What identifies a suite in every checkout of its repository."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

_HOST = re.compile(r"^(?:\w[\w+.-]*://[^/]*|[^/:]+:)")
"""Host of a URL: ``https://user:token@host:8443`` or ``git@host:`` (git-clone(1), GIT URLS)."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """A file in a repository, in whichever checkout."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    path: str
    """Path from the root of the repository, with slashes."""
    first_commit: str = ""
    """The commit with which the history began; empty where the clone is shallow."""
    remote: str = ""
    """The name of the repository it was cloned from, as :func:`remote_name` has it; empty where it was not."""

    @property
    def repository(self) -> str:
        """The repository's name: that of its remote, else its first commit."""
        return self.remote or self.first_commit[:10]


@dataclass(frozen=True, kw_only=True, order=True)
class Series:
    """A suite over its nights."""

    suite: str
    """Path of the suite in the repository; the absolute path where no repository is known."""
    repository: str = ""
    """The name of the repository; empty where none is known."""


def series_of(suite: str, home: Home | None) -> Series:
    """Return the series of the suite at the absolute path ``suite``."""
    if home is None or not home.repository:
        return Series(suite=suite)
    return Series(suite=home.path, repository=home.repository)


def remote_name(url: str) -> str:
    """Return ``group/project`` of any URL that git clones from, without scheme, host and credentials."""
    path = _HOST.sub("", url)
    return path.strip("/").removesuffix("/.git").removesuffix(".git").strip("/")


def baseline_beside(suite: Path) -> Path:
    """Return where the baseline of ``suite`` lies by default."""
    return suite.with_name(f"{suite.stem}.baseline.yaml")
