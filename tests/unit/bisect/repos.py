"""Real repositories for the tests: written through git, with fixed names and dates, so that hashes repeat."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Ada Løvelace",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada Løvelace",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


class Repo:
    """A repository under construction; every commit is a minute younger than the last."""

    def __init__(self, path: Path, *, bare: bool = False) -> None:
        self.path = path
        self.minutes = 0
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main", *(["--bare"] if bare else []))

    def git(self, *arguments: str, stdin: bytes | None = None) -> str:
        date = f"{1_700_000_000 + 60 * self.minutes} +0000"
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments],
            cwd=self.path,
            env={**os.environ, **ENVIRONMENT, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
            input=stdin,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def commit(self, message: str, files: Mapping[str, str | bytes | None]) -> str:
        """Write ``files`` (None removes one) and commit everything."""
        self.minutes += 1
        for name, content in files.items():
            path = self.path / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--no-gpg-sign", "-m", message)
        return self.head

    def merge(self, branch: str, message: str) -> str:
        self.minutes += 1
        self.git("merge", "--quiet", "--no-ff", "--no-gpg-sign", "-m", message, branch)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def import_line(self, path: str, contents: Sequence[str], message: str = "change {0}") -> list[str]:
        """Commit each of ``contents`` as the file ``path``, one after the other, in one go; return the hashes."""
        return self.import_commits([{path: content} for content in contents], message)

    def import_commits(self, commits: Sequence[Mapping[str, str]], message: str = "change {0}") -> list[str]:
        """Commit files upon files on the branch that is checked out, in one go; return the hashes."""
        branch = self.git("symbolic-ref", "HEAD")
        stream, is_new = [], not self.git("for-each-ref", branch)
        for number, files in enumerate(commits):
            text, seconds = message.format(number), 1_700_000_000 + 60 * (self.minutes + number)
            stream += [
                f"commit {branch}\ncommitter Ada Løvelace <ada@example.org> {seconds} +0000\n",
                f"data {len(text.encode())}\n{text}\n",
                *([f"from {branch}^0\n"] if number == 0 and not is_new else []),
            ]
            for path, content in files.items():
                stream.append(f"M 644 inline {path}\ndata {len(content.encode())}\n{content}\n")
        self.minutes += len(commits)
        self.git("fast-import", "--quiet", stdin="".join(stream).encode())
        self.git("reset", "--quiet", "--hard", branch)
        return self.git("rev-list", "--first-parent", "--reverse", f"--max-count={len(commits)}", branch).split()

    def import_graph(self, commits: Sequence[tuple[Sequence[int], Mapping[str, str]]]) -> list[str]:
        """Commit the last of ``commits`` and all before it: each is its parents' numbers and its files; return hashes.

        The commits are named by their numbers.
        """
        stream = []
        for number, (parents, files) in enumerate(commits):
            stream += [
                f"commit refs/heads/main\nmark :{number + 1}\n",
                f"committer Ada <ada@example.org> {1_700_000_000 + 60 * number} +0000\n",
                f"data {len(str(number))}\n{number}\n",
                *(f"{'merge' if place else 'from'} :{parent + 1}\n" for place, parent in enumerate(parents)),
                *(f"M 644 inline {path}\ndata {len(text)}\n{text}\n" for path, text in files.items()),
            ]
        marks = self.path / ".git" / "marks"
        self.git("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin="".join(stream).encode())
        hashes = dict(line.split() for line in marks.read_text().splitlines())
        return [hashes[f":{number + 1}"] for number in range(len(commits))]


def fingerprint(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, time of change and content (or link target) of everything below ``directory``."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            str(path.readlink())
            if path.is_symlink()
            else hashlib.sha256(path.read_bytes()).hexdigest()
            if path.is_file()
            else "",
        )
        for path in directory.rglob("*")
    }
