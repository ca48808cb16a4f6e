"""Where a forge shows a commit and a line of a file, so that a page can point there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, urlsplit

from oomscope.bisect.vcs.git import Git
from oomscope.errors import GitError, UsageError
from oomscope.printable import quoted

REMOTE: Final = re.compile(
    r"^(?:(?:https?|ssh|git)://(?:[^@/]*@)?(?P<host>[^/:]+)(?::\d+)?/|(?:[^@/]*@)?(?P<short>[^/:]+):)(?P<path>[^?#]+)$"
)
"""URLs and the short form ``git@host:owner/name.git`` of git-clone(1); what stands before the ``@`` is left out."""


@dataclass(frozen=True)
class Forge:
    """A repository on a forge.

    Args:
        base: what stands before ``/commit`` and ``/blob``: GitHub's page of the repository; GitLab's with ``/-``.
    """

    base: str

    @classmethod
    def named(cls, url: str) -> Self | None:
        """Return the forge that the user named; None for an empty text, which asks for no links.

        Raises:
            UsageError: it is no page of a repository.
        """
        if not url:
            return None
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or not parts.path.strip("/"):
            remedy = "give the page of the repository, such as https://github.com/owner/name"
            raise UsageError(f"{quoted(url)} is not the page of a repository", where="--link-base", remedy=remedy)
        return cls(_base(parts.netloc.rpartition("@")[2], parts.path))

    @classmethod
    def of_remote(cls, repo: Path) -> Self | None:
        """Return the forge of ``origin`` in ``repo``; None without one, or where its host is not known as one."""
        try:
            url = Git(repo, (repo.absolute(),)).text("remote", "get-url", "origin")
        except (GitError, OSError):
            return None
        found = REMOTE.match(url)
        host = (found["host"] or found["short"]) if found else ""
        if found is None or not re.search(r"github|gitlab", host, re.IGNORECASE):
            return None
        return cls(_base(host, found["path"]))

    @property
    def host(self) -> str:
        """The name of its host."""
        return urlsplit(self.base).netloc

    def commit(self, commit: str) -> str:
        """Return the address of a commit."""
        return f"{self.base}/commit/{quote(commit)}"

    def line(self, commit: str, path: str, line: int) -> str:
        """Return the address of a line of a file of a commit."""
        return f"{self.base}/blob/{quote(commit)}/{quote(path)}#L{line}"


def forge_of(repo: Path, url: str | None) -> Forge | None:
    """Return the forge at ``url`` if the user named one, else that of the remote of ``repo``, if there is one."""
    return Forge.of_remote(repo) if url is None else Forge.named(url)


def _base(host: str, path: str) -> str:
    name = path.strip("/").removesuffix(".git").removesuffix("/-")
    return f"https://{host}/{name}{'/-' if 'gitlab' in host.lower() or path.rstrip('/').endswith('/-') else ''}"
