"""Run one public program on the virtual card, in a process of its own, until it writes its first snapshot.

    python tests/conformance/program_on_card.py < JOB

JOB is a :class:`ProgramRun` as JSON. The program is the repository's own file; only what it cannot know here is
replaced: the name of the snapshot file, the recording of C++ stacks, which are not compared, and the versions of
packages that are not installed because their sources are on ``sys.path``.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from oomscope import virtual


@dataclass(frozen=True, kw_only=True)
class ProgramRun:
    """What a process is told to run."""

    script: str
    """Absolute path."""
    arguments: tuple[str, ...]
    edits: tuple[tuple[str, str], ...]
    """Texts of the script and what stands in their place, for syntax that this Python does not know."""
    folders: tuple[str, ...]
    """Absolute paths of ``sys.path``."""
    snapshot: str
    """The file to write."""

    def to_json(self) -> str:
        """Return what :func:`main` reads."""
        return json.dumps(dataclasses.asdict(self))


def edited(text: str, edits: tuple[tuple[str, str], ...]) -> str:
    """Return a script with its edits.

    Raises:
        ValueError: the script has no such text, so that it is another version.
    """
    for old, new in edits:
        if old not in text:
            raise ValueError(f"the script has no {old!r}: this is not the commit that recorded the snapshots")
        text = text.replace(old, new)
    return text


def allow_uninstalled_packages() -> None:
    """Let ``importlib.metadata.version`` answer for packages that are imported from their sources."""
    version = importlib.metadata.version

    def version_or_zero(name: str) -> str:
        try:
            return version(name)
        except importlib.metadata.PackageNotFoundError:
            return "0"

    importlib.metadata.version = version_or_zero


def redirect_snapshot(path: str) -> None:
    """Record Python's stacks only; write the first snapshot to ``path`` and end the process."""
    import torch

    memory: Any = torch.cuda.memory
    record, dump = memory._record_memory_history, memory._dump_snapshot

    def record_python(*arguments: Any, **keywords: Any) -> None:
        record(*arguments, **({"stacks": "python"} | keywords))

    def dump_and_leave(*_arguments: Any, **_keywords: Any) -> NoReturn:
        dump(path)
        sys.stdout.flush()
        os._exit(0)  # autograd's thread may abort an interpreter that ends right after backward()

    memory._record_memory_history, memory._dump_snapshot = record_python, dump_and_leave


def run(job: ProgramRun) -> None:
    """Run the script as ``__main__``."""
    virtual.load()
    allow_uninstalled_packages()
    redirect_snapshot(job.snapshot)
    sys.path[:0] = job.folders
    sys.argv = [job.script, *job.arguments]
    code = compile(edited(Path(job.script).read_text(), job.edits), job.script, "exec")
    exec(code, {"__name__": "__main__", "__file__": job.script})
    raise SystemExit("the program ended without a snapshot")


def main() -> None:
    """Run the job that stdin holds."""
    given = json.load(sys.stdin)
    run(
        ProgramRun(
            script=given["script"],
            arguments=tuple(given["arguments"]),
            edits=tuple((old, new) for old, new in given["edits"]),
            folders=tuple(given["folders"]),
            snapshot=given["snapshot"],
        )
    )


if __name__ == "__main__":
    main()
