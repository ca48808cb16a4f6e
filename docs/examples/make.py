"""Makes the examples of a red night with its search.

    python docs/examples/make.py

A gate over the history of the demo (docs/demo.md), of which each commit has the suite as well: green at v0.1, red at
v0.2, and the search between them. Times, the night's id and the folder in which it ran are replaced, so that the same
code makes the same files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from oomscope.bisect.vcs.git import Git
from oomscope.demo import history

HERE = Path(__file__).resolve().parent
OOMSCOPE = (sys.executable, "-c", "from oomscope.cli.main import main; main()")
FOLDER = "/repo"
"""What stands for the folder in which the gate ran."""
SUITE = """\
cases:
  - {name: tinytrain, harness: harness.py, repo: .., limit: 6.75GiB, overrides: [probe.iterations=4]}
  - {name: gpt-tiny, preset: gpt-tiny}
"""
FILES = {
    "--junit": "night.xml",
    "--html": "night.html",
    "--step-summary": "summary.md",
    "--comment": "comment.md",
}
GREEN, RED = 0, 1
REPLACED = {"night": "example", "started": "2026-01-05T02:00:00+00:00", "wall_s": 0.0, "worker_rss_bytes": 0}
"""What differs from one run to the next."""


def main() -> None:
    """Make the examples anew."""
    with tempfile.TemporaryDirectory() as folder:
        night = red_night(Path(folder).resolve() / "repo")
    (HERE / "night.json").write_text(compact(night), encoding="utf-8")
    render(HERE)


def red_night(repo: Path) -> dict[str, Any]:
    """Return the document of the night at v0.2, after a green one at v0.1."""
    history.build(repo)
    git = Git(repo)
    add_to_every_commit(repo, {"ci/memory.yaml": SUITE, "ci/harness.py": history.HARNESS.read_text()})
    git.output("checkout", "--quiet", "v0.1")
    oomscope(GREEN, repo, "gate", "update", "ci/memory.yaml")
    oomscope(GREEN, repo, "gate", "run", "ci/memory.yaml")
    git.output("checkout", "--quiet", "v0.2")
    oomscope(RED, repo, "gate", "run", "ci/memory.yaml", "--bisect", "--result", "night.json")
    text = (repo / "night.json").read_text(encoding="utf-8").replace(str(repo), FOLDER)
    return json.loads(text.replace(str(repo.parent), ""), object_hook=replaced)


def compact(night: dict[str, Any]) -> str:
    """Return the document as JSON, one line a case."""
    cases = ",\n".join(map(json.dumps, night["cases"]))
    return json.dumps(night | {"cases": []}).replace('"cases": []', f'"cases": [\n{cases}\n]') + "\n"


def add_to_every_commit(repo: Path, files: dict[str, str]) -> None:
    """Write the history of ``repo`` anew, with ``files`` in it from the first commit on; dates and authors stay."""
    git, aside = Git(repo), repo.parent / "aside"
    added = []
    for name, text in files.items():
        aside.write_text(text)
        blob = git.text("hash-object", "-w", str(aside))
        added.append(f"git update-index --add --cacheinfo 100644,{blob},{name}")
    os.environ["FILTER_BRANCH_SQUELCH_WARNING"] = "1"  # which has git wait
    rewritten = ("--index-filter", " && ".join(added), "--tag-name-filter", "cat", "--", "--all")
    git.output("filter-branch", *rewritten)
    git.output("reset", "--quiet", "--hard")


def replaced(values: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping of the document without what differs from one run to the next."""
    return {key: REPLACED.get(key, value) for key, value in values.items()}


def render(folder: Path) -> None:
    """Write every output of the night that lies in ``folder`` beside it."""
    words = [word for option, name in FILES.items() for word in (option, name)]
    oomscope(RED, folder, "gate", "report", "night.json", *words, "--force", GITHUB_WORKSPACE=FOLDER)


def oomscope(expected: int, folder: Path, *arguments: str, **variables: str) -> None:
    """Run oomscope in ``folder``, and end where it does not end as it should."""
    states = {name: str(folder.parent / "state") for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME")}
    print("$ oomscope", *arguments, flush=True)
    environment = os.environ | states | variables
    code = subprocess.run([*OOMSCOPE, *arguments], cwd=folder, env=environment, check=False).returncode
    if code != expected:
        sys.exit(f"expected exit code {expected} here, not {code}")


if __name__ == "__main__":
    main()
