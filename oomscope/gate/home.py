"""Where a suite is at home: what stays the same of it in every checkout of its repository. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from oomscope.gate import reading

_HOST = re.compile(r"^(?:\w[\w+.-]*://[^/]*|[^/:]+:)")
"""``https://user:token@host:8443`` or ``git@host:`` before the path (git-clone(1), GIT URLS)."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """A file in a repository, whichever checkout it is seen in."""

    path: str
    """From the root of the repository, with slashes."""
    first_commit: str = ""
    """The commit with which the history began; empty where the clone is shallow."""
    remote: str = ""
    """What the repository is called where it was cloned from, as :func:`remote_name` has it; empty where it was not."""

    @property
    def repository(self) -> str:
        """What people call the repository: as its remote does, else by its first commit."""
        return self.remote or self.first_commit[:10]

    def is_beside(self, other: Home) -> bool:
        """Whether ``other`` lies in the same repository: in any of its clones, one of which may be shallow."""
        began_alike = bool(self.first_commit) and self.first_commit == other.first_commit
        return began_alike or (bool(self.remote) and self.remote == other.remote)

    def to_json(self) -> dict[str, str]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, str]) -> Home:
        """Read back what :meth:`to_json` wrote."""
        return cls(**reading.texts(document))


def remote_name(url: str) -> str:
    """Return ``group/project`` of any URL that git clones from.

    Without scheme, host and credentials: runners clone with a token of the night, and people over ssh.
    """
    path = _HOST.sub("", url)
    return path.strip("/").removesuffix("/.git").removesuffix(".git").strip("/")
