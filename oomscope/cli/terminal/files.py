"""The one writer of a command's files: refused before any work is done, written before anything is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.terminal.failures import written
from oomscope.cli.terminal.output import refuse_existing, refuse_one_place, write_file
from oomscope.cli.terminal.tables import refuse_existing_tables, table_files, write_tables
from oomscope.errors import ExitCode

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files that the options of a command ask for; None for those that they do not."""

    html: Path | None = None
    png: Path | None = None
    tables: Path | None = None
    """The folder of ``--csv``."""
    names: Sequence[str] = ()
    """The tables that may be written there."""
    snapshot: Path | None = None
    """Written by the probe itself."""

    def refuse(self, *read: tuple[str, Path | None], force: bool) -> None:
        """Refuse what cannot be written in the end, or would be written over what is read.

        Args:
            read: files that are read, each with what names it.
            force: files of the user may be overwritten.

        Raises:
            UsageError: two of the files are one, or pictures cannot be drawn here.
            InputError: a file exists and ``force`` is not set, or its place cannot be written to.
        """
        named = [("--snapshot", self.snapshot), ("--html", self.html), ("--png", self.png)]
        refuse_one_place(*read, *named, *table_files(self.tables, self.names))
        for option, path in named:
            refuse_existing(path, force=force, option=option)
        refuse_existing_tables(self.tables, self.names, force=force)
        if self.png is not None:
            from oomscope.report.charts.png import require_matplotlib

            require_matplotlib()

    def write(
        self,
        *,
        page: Callable[[], str],
        picture: Callable[[], bytes] | None = None,
        tables: Callable[[], Mapping[str, pd.DataFrame]] | None = None,
    ) -> list[ExitCode]:
        """Write what was asked for, and return the codes of what is lost.

        The reader of the report may leave at any line, so this comes first. A file that cannot be written takes neither
        the report nor another file with it: it is told.

        Args:
            page: renders the HTML page.
            picture: draws the picture; None where there is nothing to draw.
            tables: makes the tables by name.
        """
        lost: list[ExitCode] = []
        if (html := self.html) is not None:
            lost += written(lambda: write_file(html, page()))
        if (png := self.png) is not None and picture is not None:
            lost += written(lambda: write_file(png, picture()))
        if (folder := self.tables) is not None and tables is not None:
            lost += written(lambda: write_tables(folder, tables(), self.names))
        return lost
