"""The published rows: a CSV file, a number of bytes a line, with the program, the card and the versions behind it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GRADES = ("A", "A-")
"""A: number, program, configuration and card are public; A-: but for values that shift it (data, versions)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published number."""

    line: int
    """Of the file, the heading being line 1: the row's name."""
    grade: str
    repository: str
    """``owner/name`` on GitHub."""
    commit: str
    path: str
    """The file of the repository that holds the number."""
    subject: str
    """Model or operation, and who implements it."""
    config: str
    gpu: str
    """As the driver calls it."""
    torch: str
    """Its version, as far as the row tells."""
    versions: str
    """Of other packages."""
    metric: str
    recorded: int
    """Bytes."""
    resolution: int
    """The number was printed in a way that keeps multiples of so many bytes; 1 where it was printed whole."""
    notes: str

    @property
    def label(self) -> str:
        """What a line of the table calls it."""
        return f"{self.subject} [{self.config}] {self.gpu}"


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file that are good enough to hold the card against."""
    with path.open(newline="") as file:
        for line, record in enumerate(csv.DictReader(file), start=2):
            if record["grade"] in GRADES:
                yield _row(line, record)


def _row(line: int, record: dict[str, str]) -> Row:
    resolution = re.search(r"exact to (\d+) B", record["notes"])
    return Row(
        line=line,
        grade=record["grade"],
        repository=record["source_repo"],
        commit=record["source_commit"],
        path=record["source_path"],
        subject=record["model_or_op"],
        config=record["config"],
        gpu=record["gpu"],
        torch=record["torch"],
        versions=record["other_versions"],
        metric=record["metric"],
        recorded=int(record["bytes"]),
        resolution=int(resolution[1]) if resolution else 1,
        notes=record["notes"],
    )
