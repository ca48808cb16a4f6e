"""Liger-Kernel's rows: which script of which commit printed them.

Liger's contributors run ``benchmark/scripts/benchmark_X.py`` and commit the lines that it adds to
``benchmark/data/all_benchmark_data.csv``, together with the script. So the script of a row is the one at the commit
that brought the row's line into that file, which ``git blame`` tells.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .rows import Row

REPOSITORY = "linkedin/Liger-Kernel"


@dataclass(frozen=True, kw_only=True)
class LigerCase:
    """What Liger's harness measured for one row."""

    row: Row
    kernel: str
    provider: str
    mode: str
    x: str
    """The swept value."""
    config: str
    """The rest, as JSON."""
    timestamp: str

    @property
    def key(self) -> tuple[str, ...]:
        """What names the row in Liger's file and in what a script measures."""
        return (self.kernel, self.provider, self.mode, self.x, normal(self.config))


@dataclass(frozen=True)
class LigerScript:
    """One process to run: the script of a kernel at a commit, on a card."""

    commit: str
    kernel: str
    gpu: str


def normal(config: str) -> str:
    """Return a configuration's JSON with its keys sorted."""
    return json.dumps(json.loads(config), sort_keys=True)


def case_of(row: Row) -> LigerCase:
    """Return what a row says, taken apart."""
    kernel, provider = row.subject.split(" / ")
    mode, swept, config = row.config.split("; ", 2)
    return LigerCase(
        row=row,
        kernel=kernel,
        provider=provider,
        mode=mode,
        x=swept.split("=", 1)[1],
        config=config,
        timestamp=row.versions.split("; ")[1],
    )


def scripts_of(clone: Path, rows: Iterable[Row]) -> dict[LigerScript, list[LigerCase]]:
    """Return the scripts behind some rows, each with its rows.

    Raises:
        LookupError: a row is not in Liger's file at the row's commit.
    """
    scripts: dict[LigerScript, list[LigerCase]] = {}
    commits: dict[tuple[str, str], dict[tuple[str, ...], str]] = {}
    for row in rows:
        where = (row.commit, row.path)
        if where not in commits:
            commits[where] = dict(_blamed(clone, *where))
        case = case_of(row)
        commit = commits[where].get((*case.key, case.timestamp))
        if commit is None:
            raise LookupError(f"line {row.line} is not in {row.path} at {row.commit}")
        scripts.setdefault(LigerScript(commit, case.kernel, row.gpu), []).append(case)
    return scripts


def _blamed(clone: Path, commit: str, path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each memory row of Liger's file, by key and time stamp, with the commit that brought it."""
    command = ["git", "-C", str(clone), "blame", "--line-porcelain", commit, "--", path]
    porcelain = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    commits: list[str] = []
    texts: list[str] = []
    for line in porcelain.splitlines():
        if re.match(r"[0-9a-f]{40} ", line):
            commits.append(line[:40])
        elif line.startswith("\t"):
            texts.append(line[1:])
    for record, brought in zip(csv.DictReader(texts), commits[1:], strict=True):
        if record["metric_name"] == "memory":
            names = ("kernel_name", "kernel_provider", "kernel_operation_mode", "x_value")
            key = tuple(record[name] for name in names)
            yield (*key, normal(record["extra_benchmark_config_str"]), record["timestamp"]), brought
