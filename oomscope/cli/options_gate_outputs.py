"""Options that say where a night of the gate is written besides the terminal, for people and for CI systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from oomscope.cli.options import FILE
from oomscope.cli.output import refuse_existing

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--result", type=FILE, metavar="FILE", help="Write the JSON document to FILE as well."),
    click.option("--junit", type=FILE, metavar="FILE", help="Write JUnit XML, which CI systems show case by case."),
    click.option("--html", type=FILE, metavar="FILE", help="Write the night as one offline HTML page."),
    click.option(
        "--summary",
        type=FILE,
        metavar="FILE",
        help="Write a summary in Markdown (default: appended to $GITHUB_STEP_SUMMARY where that is set).",
    ),
    click.option("--comment", type=FILE, metavar="FILE", help="Write the text of a comment on a pull request."),
    click.option("--annotations", is_flag=True, help="Print annotations for GitHub Actions to standard error."),
    click.option("--code-quality", type=FILE, metavar="FILE", help="Write GitLab's code quality report."),
    click.option("--force", is_flag=True, help="Overwrite files that exist."),
)


def output_options(command: Command) -> Command:
    """Give ``command`` the options; it takes them as keywords, from which :meth:`OutputOptions.of` is made."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where a night is written."""

    result: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    summary: Path | None = None
    comment: Path | None = None
    code_quality: Path | None = None
    annotations: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> OutputOptions:
        """Return what a command was given."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})

    @property
    def files(self) -> list[tuple[str, Path | None]]:
        """Each option that names a file, with its path."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "annotations"}
        return [(f"--{name.replace('_', '-')}", path) for name, path in named.items()]

    def refuse_existing(self, *, force: bool) -> None:
        """Refuse, before anything is measured, what cannot be written in the end.

        Raises:
            InputError: a file exists and ``force`` is not set, or its place cannot be written to.
        """
        for option, path in self.files:
            refuse_existing(path, force=force, option=option)
