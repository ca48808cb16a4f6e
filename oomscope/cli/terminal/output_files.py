"""The one writer of a command's files: refused before any work is done, written before anything is printed.

Tables (``--csv DIR``) are CSV files in a folder: all of them, or what the folder held before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.terminal.output import named_refusal, refuse_existing, refuse_one_place, remark, write_file, written
from oomscope.errors import ExitCode, InputError
from oomscope.files import take_name
from oomscope.printable import printable

if TYPE_CHECKING:
    import pandas as pd

    from oomscope.bisect.results.result import BisectResult
    from oomscope.probe.job import ProbeJob
    from oomscope.probe.result import ProbeResult
    from oomscope.probe.tuning.sweep import Sweep
    from oomscope.snapshot.compare.diff import Difference
    from oomscope.snapshot.explain.explanation import Explanation
    from oomscope.snapshot.explain.rank_set import RankSet


PROBE_TABLES = ("sites", "categories", "phases", "tried", "events")
BISECT_TABLES = ("steps", "probes", "grown_sites")
EXPLAIN_TABLES = ("categories", "sites", "modules", "tried", "pins", "timeline", "ranks")
SWEEP_TABLES = ("combinations",)
DIFF_TABLES = ("changed_lines", "changed_totals")
"""Functions of :mod:`oomscope.report.dataframes`, each of which becomes a file of its name."""


def refuse_existing_tables(directory: Path | None, names: Sequence[str], *, force: bool) -> None:
    """Refuse, before any work is done, to overwrite a table of the user's.

    Raises:
        InputError: ``directory`` is a file or its folder does not exist, or it holds one of the tables and ``force``
            is not set.
    """
    if directory is None:
        return
    if directory.is_dir():
        for name in names:
            refuse_existing(directory / _file(name), force=force, option="--csv")
    elif directory.exists():
        raise InputError("is not a directory", where=str(directory), remedy="give a folder to --csv")
    else:
        refuse_existing(directory, force=force, option="--csv")


def table_files(directory: Path | None, names: Sequence[str]) -> list[tuple[str, Path]]:
    """Return what ``--csv`` writes, for :func:`~oomscope.cli.terminal.output.refuse_one_place`."""
    if directory is None:
        return []
    return [("--csv", path) for path in (directory, *(directory / _file(name) for name in names))]


def probe_tables(result: ProbeResult, job: ProbeJob) -> dict[str, pd.DataFrame]:
    """Return the tables of a probe; ``events`` is one of them where its snapshot was written.

    Raises:
        SnapshotError: the snapshot cannot be read back.
    """
    from oomscope.report import dataframes

    tables = {
        "sites": dataframes.sites(result),
        "categories": dataframes.categories(result),
        "phases": dataframes.phases(result),
        "tried": dataframes.tried(result),
    }
    return tables if result.snapshot is None else {**tables, "events": _events(result.snapshot, job)}


def bisect_tables(result: BisectResult) -> dict[str, pd.DataFrame]:
    """Return the tables of a search."""
    from oomscope.report import dataframes

    return {
        "steps": dataframes.steps(result),
        "probes": dataframes.probes(result),
        "grown_sites": dataframes.grown_sites(result),
    }


def explain_tables(found: Explanation | RankSet) -> dict[str, pd.DataFrame]:
    """Return the tables of an explained snapshot, or of a folder of them."""
    from oomscope.report.dataframes import tables_of

    return tables_of(found)


def diff_tables(difference: Difference) -> dict[str, pd.DataFrame]:
    """Return the tables of a comparison."""
    from oomscope.report import dataframes

    return {
        "changed_lines": dataframes.changed_lines(difference),
        "changed_totals": dataframes.changed_totals(difference),
    }


def sweep_tables(sweep: Sweep) -> dict[str, pd.DataFrame]:
    """Return the table of a sweep."""
    from oomscope.report.dataframes import combinations

    return {"combinations": combinations(sweep)}


def _events(snapshot: str, job: ProbeJob) -> pd.DataFrame:
    """Return the events of a probe's snapshot, with the lines that its result names."""
    from oomscope.probe.analysis.sites import site_rule
    from oomscope.report import dataframes
    from oomscope.snapshot.read.load import load_snapshot

    recorded = load_snapshot(snapshot)
    trace = max(recorded.traces, key=len)  # a device that was not probed has no events
    return dataframes.events(trace, recorded.segments, choose=site_rule(job).site_of)


def write_tables(directory: Path, tables: Mapping[str, pd.DataFrame], names: Sequence[str]) -> None:
    """Write ``tables``, and remove what an earlier run left of ``names``: the folder speaks of one result.

    Raises:
        InputError: the place cannot be written to.
    """
    target = directory.absolute()
    is_new = not target.is_dir()
    try:
        staging = Path(tempfile.mkdtemp(dir=target.parent if is_new else target, prefix=f".{target.name}."))
    except OSError as error:
        raise _unwritable(directory, error) from error
    try:
        for name, table in tables.items():
            _write_table(staging / _file(name), table)
        if is_new:
            staging.chmod(0o755)
            staging.replace(target)
        else:
            for name in tables:
                with named_refusal(directory / _file(name)) as force:
                    take_name(staging / _file(name), target / _file(name), force=force)
            for name in set(names) - set(tables):
                (target / _file(name)).unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    for name in tables:
        remark(f"Wrote {directory / _file(name)}")


def _write_table(path: Path, table: pd.DataFrame) -> None:
    """Write one table; an index with a name is its first column."""
    texts = table.select_dtypes(["string", "category"])
    harmless = {str(name): column.map(harmless_cell, na_action="ignore") for name, column in texts.items()}
    with path.open("w", encoding="utf-8", newline="") as file:
        table.assign(**harmless).to_csv(file, index=table.index.name is not None, lineterminator="\n")
        file.flush()
        os.fsync(file.fileno())


def harmless_cell(text: str) -> str:
    """Return ``text`` without control characters, and quoted by ``'`` where a spreadsheet would take it for a formula.

    Source: OWASP, "CSV Injection".
    """
    shown = printable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t")) else shown


def _file(name: str) -> str:
    return f"{name}.csv"


def _unwritable(directory: Path, error: OSError) -> InputError:
    return InputError(f"cannot write: {error.strerror}", where=str(directory), remedy="choose another place")


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
