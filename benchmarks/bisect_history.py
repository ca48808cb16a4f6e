"""How long reading a line of commits takes: through GitPython, and through git itself.

Every commit changes one file of a directory of 400, and 400 more files lie in the root.

    python benchmarks/bisect_history.py [COMMITS ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from oomscope.bisect.vcs.git import isolated
from oomscope.bisect.vcs.repository import CommitLine, Repository

FILES = 400
CONFIG = "configs/0007.yaml"
REPEATS = 3


def grow(folder: Path, commits: int) -> None:
    """Make a repository with ``commits`` commits after the first."""
    who = "committer A <a@b>"
    stream = [f"commit refs/heads/main\n{who} 1700000000 +0000\ndata 0\n"]
    stream += [
        f"M 644 inline {name}\ndata 0\n" for i in range(FILES) for name in (f"{i:04}.py", f"configs/{i:04}.yaml")
    ]
    for number in range(commits):
        content = f"{number:06}"
        stream.append(f"commit refs/heads/main\n{who} {1_700_000_001 + number} +0000\ndata 1\nx\n")
        stream.append(f"M 644 inline {CONFIG}\ndata {len(content)}\n{content}\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "fast-import", "--quiet", stdin="".join(stream))


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    """Run git and return what it prints."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=isolated(os.environ),
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def milliseconds(action: Callable[[], object]) -> float:
    """Return the least of a few times."""
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return 1000 * min(taken)


def names_through_gitpython(repository: Repository, line: CommitLine) -> list[str]:
    """Return the hash of the file in each commit, from GitPython's trees."""
    from git import Repo

    with Repo(repository.common) as repo:
        return [repo.commit(commit.hash).tree.join(CONFIG).hexsha for commit in line.commits]


def measured(folder: Path, commits: int) -> tuple[float, ...]:
    """Return the milliseconds of one row, in a new repository at ``folder``."""
    grow(folder, commits)
    repository = Repository.open(folder)
    good, bad = repository.resolve(f"main~{commits}"), repository.resolve("main")
    line = repository.line(good, bad)
    if repository.objects_at(line.commits, CONFIG) != names_through_gitpython(repository, line):
        raise SystemExit("GitPython and git read different files")
    walk = ("log", "--first-parent", "--reverse", "--format=%H%x00%T%x00%P%x00%an%x00%aI%x00%s")
    return (
        milliseconds(lambda: repository.between(good, bad)),
        milliseconds(lambda: git(folder, *walk, f"{good.hash}..{bad.hash}")),
        milliseconds(lambda: names_through_gitpython(repository, line)),
        milliseconds(lambda: repository.objects_at(line.commits, CONFIG)),
    )


def main() -> None:
    """Print one row for each number of commits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", type=int, nargs="*", default=[200, 1000])
    print("| commits | line: GitPython | line: git | one path in each: GitPython | one path in each: git |")
    print("|---|---|---|---|---|")
    for commits in parser.parse_args().commits:
        with tempfile.TemporaryDirectory() as place:
            taken = measured(Path(place), commits)
        print(f"| {commits} | {' | '.join(f'{value:.0f} ms' for value in taken)} |")


if __name__ == "__main__":
    main()
