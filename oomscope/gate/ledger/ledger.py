"""The ledger: the numbers of every night in one SQLite file, for trends and for the last night that was green.

A night is written in one transaction under SQLite's write-ahead log, so that writers wait for each other and one that
is killed leaves the whole night or nothing of it. The JSON results of the nights are the source of truth: the ledger
can be made again from them.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from oomscope.errors import InputError
from oomscope.files import user_folder
from oomscope.gate.night.result import CaseResult, GateResult, read
from oomscope.gate.night.status import GREEN, Status
from oomscope.gate.suite.identity import Series, series_of

APPLICATION_ID = 0x6F6F6D73
"""``ooms``: tells the file from other people's (``PRAGMA application_id``)."""
SCHEMA_VERSION = 5
BUSY_S = 30.0
"""Seconds that a writer waits for others."""
_REBUILD = "move it away, and make it again with oomscope gate import RESULT.json..."
_TABLES = f"""
CREATE TABLE nights (
    night TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    suite TEXT NOT NULL,
    repository TEXT NOT NULL
) STRICT;
CREATE TABLE cases (
    night TEXT NOT NULL REFERENCES nights(night),
    name TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (night, name)
) STRICT;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_POINTS = """
SELECT night, started, suite, repository, document FROM (
    SELECT nights.night, started, suite, repository, name, document, row_number() OVER (
        PARTITION BY suite, repository, name ORDER BY started DESC, nights.rowid DESC
    ) AS age
    FROM cases JOIN nights USING (night)
    WHERE (:name IS NULL OR name = :name)
    AND (:suite IS NULL OR (suite, repository) = (:suite, :repository))
)
WHERE :last IS NULL OR age <= :last ORDER BY suite, repository, name, age DESC
"""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One case on one night."""

    night: str
    started: str
    series: Series
    """The suite."""
    case: CaseResult


def default_ledger() -> Path:
    """Return ``gate.sqlite`` in the user's folder for state."""
    return user_folder("state") / "gate.sqlite"


class Ledger:
    """An open ledger. Each thread and process opens its own.

    Args:
        path: the file; made where there is none.

    Raises:
        InputError: it cannot be opened, or is no ledger.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._named_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            # an absolute path is always a file; SQLite keeps ":memory:" and "" nowhere
            self._connection = sqlite3.connect(path.absolute(), timeout=BUSY_S, isolation_level=None)
        try:
            with self._named_errors():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def put(self, night: GateResult) -> bool:
        """Write ``night``, in place of what is there of it, and return whether it is new.

        Raises:
            InputError: it cannot be written.
        """
        series = series_of(night.suite, night.home)
        row = (night.night, night.started, series.suite, series.repository)
        cases = [
            (night.night, case.name, json.dumps(replace(case, probe=None).to_json(), sort_keys=True))
            for case in night.cases
        ]
        with self._named_errors(), self._transaction() as connection:
            added = connection.execute("INSERT OR IGNORE INTO nights VALUES (?, ?, ?, ?)", row).rowcount
            connection.executemany("INSERT OR REPLACE INTO cases VALUES (?, ?, ?)", cases)
        return bool(added)

    def points(self, name: str | None = None, *, suite: Series | None = None, last: int | None = None) -> list[Point]:
        """Return the nights of the case ``name`` (of all cases without one), oldest first within each suite and case.

        Raises:
            InputError: the ledger is damaged.
        """
        sought = {"suite": suite.suite if suite else None, "repository": suite.repository if suite else None}
        with self._named_errors():
            rows = self._connection.execute(_POINTS, {"name": name, "last": last, **sought}).fetchall()
            return [
                Point(
                    night=night,
                    started=started,
                    series=Series(suite=path, repository=repository),
                    case=read(CaseResult, json.loads(document)),
                )
                for night, started, path, repository, document in rows
            ]

    def green_commits(self, case: CaseResult, suite: Series) -> frozenset[str]:
        """Return the commits, other than that of ``case``, at which it was green in the last night that measured it.

        Only nights of ``suite`` under the same key count, without uncommitted changes, and green ones only where what
        they measured would not be worse today. Which commits precede that of ``case``, git has to say.

        Raises:
            InputError: the ledger is damaged.
        """
        here = case.standing.commit if case.standing else None
        is_green: dict[str, bool] = {}
        for point in self.points(case.name, suite=suite):
            then, standing = point.case, point.case.standing
            is_clear = then.status in GREEN or then.status is Status.WORSE
            is_same = then.key == case.key or bool(case.key and then.key and case.key.matches(then.key))
            if is_clear and standing is not None and not standing.dirty and is_same:
                is_green[standing.commit] = then.status in GREEN and _would_pass(then, case)
        return frozenset(commit for commit, was_green in is_green.items() if was_green and commit != here)

    def _prepare(self) -> None:
        """Make the tables in an empty file, and refuse a database of something else or of another version."""
        connection = self._connection
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        if (tables or owner) and owner != APPLICATION_ID:
            raise InputError("is a database of something else", where=str(self.path), remedy="give --ledger another")
        with self._transaction():
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in filter(str.strip, _TABLES.split(";")):
                    connection.execute(statement)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            what = f"is a ledger of version {version}, not {SCHEMA_VERSION}"
            raise InputError(what, where=str(self.path), remedy=_REBUILD)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all of the block or nothing; other writers wait."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn what is wrong with the file into one line."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            remedy = (
                "wait for the other writer" if "locked" in str(error) else "give --ledger a file in a folder of yours"
            )
            what = f"cannot be used as a ledger: {getattr(error, 'strerror', None) or error}"
            raise InputError(what, where=str(self.path), remedy=remedy) from None
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            what = f"is damaged, or no ledger ({type(error).__name__}: {error})"
            raise InputError(what, where=str(self.path), remedy=_REBUILD) from None


def _would_pass(then: CaseResult, now: CaseResult) -> bool:
    """Whether a green night has nothing of what makes the case worse now; an older baseline may have allowed more."""
    if now.ran_out:
        return then.outcome == "fits"
    worse = [row for row in now.rows if row.status is Status.WORSE]
    return all(row.name in then.values and row.admits(then.values[row.name]) for row in worse)
