"""The ledger: the numbers of every night in one SQLite file, for trends and for the last night that was green.

A night is written in one transaction under SQLite's write-ahead log, so that writers wait for each other and one that
is killed leaves the whole night or nothing of it. It is no source of truth: the JSON results of the nights are, and
from them it can be made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from oomscope.errors import InputError
from oomscope.gate.result import CaseResult, GateResult
from oomscope.gate.status import GREEN, Status

APPLICATION_ID = 0x6F6F6D73
"""``ooms``: tells the file from other people's (``PRAGMA application_id``)."""
SCHEMA_VERSION = 1
BUSY_S = 30.0
"""How long a writer waits for others."""
_REBUILD = "move it away, and make it again with oomscope gate import RESULT.json..."
_TABLES = """
CREATE TABLE nights (
    night TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    suite TEXT NOT NULL,
    exit_code INTEGER NOT NULL,
    oomscope TEXT NOT NULL
) STRICT;
CREATE TABLE cases (
    night TEXT NOT NULL REFERENCES nights(night),
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    commit_hash TEXT,
    dirty INTEGER NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (night, name)
) STRICT;
CREATE INDEX cases_by_name ON cases (name);
"""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One case on one night."""

    night: str
    started: str
    suite: str
    case: CaseResult


def default_ledger(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$XDG_STATE_HOME/oomscope/gate.sqlite`` (XDG Base Directory Specification; ``~/.local/state``)."""
    base = Path(environment.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "oomscope" / "gate.sqlite"


class Ledger:
    """An open ledger. Each thread and process opens its own.

    Args:
        path: the file; made where there is none.

    Raises:
        InputError: it cannot be opened, or is no ledger.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._one_line():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        try:
            with self._one_line():
                self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
                self._connection.execute("PRAGMA synchronous = FULL")
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def add(self, night: GateResult) -> bool:
        """Write ``night``; return False where it is there already.

        Raises:
            InputError: it cannot be written.
        """
        with self._one_line(), self._transaction() as connection:
            is_new = _insert_night(connection, night)
            if is_new:
                _put_cases(connection, night)
        return is_new

    def put(self, night: GateResult) -> None:
        """Write ``night`` in the place of what is there of it, once more is known than when it was added.

        Raises:
            InputError: it cannot be written.
        """
        with self._one_line(), self._transaction() as connection:
            _insert_night(connection, night)
            _put_cases(connection, night)

    def points(self, name: str | None = None, *, suite: str | None = None, last: int | None = None) -> list[Point]:
        """Return the nights of the case ``name`` (of all cases without one), oldest first.

        Args:
            name: a case.
            suite: only nights of this suite.
            last: only so many of the youngest nights of each case.

        Raises:
            InputError: the ledger is damaged.
        """
        query = (
            "SELECT night, started, suite, document FROM (SELECT nights.night, started, suite, name, document,"
            " row_number() OVER (PARTITION BY suite, name ORDER BY started DESC, nights.rowid DESC) AS age"
            " FROM cases JOIN nights USING (night)"
            " WHERE (:name IS NULL OR name = :name) AND (:suite IS NULL OR suite = :suite))"
            " WHERE :last IS NULL OR age <= :last ORDER BY suite, name, age DESC"
        )
        with self._one_line():
            rows = self._connection.execute(query, {"name": name, "suite": suite, "last": last}).fetchall()
            return [
                Point(night=night, started=started, suite=of_suite, case=CaseResult.from_json(json.loads(document)))
                for night, started, of_suite, document in rows
            ]

    def last_green(self, case: CaseResult, *, suite: str) -> Point | None:
        """Return the youngest night on which ``case`` was green as the same key, at a clean commit other than its own.

        Raises:
            InputError: the ledger is damaged.
        """
        here = case.standing.commit if case.standing else None
        for point in reversed(self.points(case.name, suite=suite)):
            standing = point.case.standing
            if (
                point.case.status in GREEN
                and point.case.key == case.key
                and standing is not None
                and not standing.dirty
                and standing.commit != here
            ):
                return point
        return None

    def _prepare(self) -> None:
        """Make the tables in an empty file, and refuse one that is not a ledger."""
        with self._transaction() as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application == 0 and tables == 0:
                for statement in filter(str.strip, _TABLES.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                return
        if application != APPLICATION_ID:
            raise InputError("is a database of something else", where=str(self.path), remedy="give --ledger another")
        if version != SCHEMA_VERSION:
            raise InputError(
                f"is a ledger of version {version}, not {SCHEMA_VERSION}", where=str(self.path), remedy=_REBUILD
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all of the block or nothing; others that write wait."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        """Say in one line what is wrong with the file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            remedy = (
                "wait for the other writer" if "locked" in str(error) else "give --ledger a file in a folder of yours"
            )
            raise InputError(f"cannot be used as a ledger: {error}", where=str(self.path), remedy=remedy) from None
        except sqlite3.DatabaseError as error:
            raise InputError(f"is damaged, or no ledger: {error}", where=str(self.path), remedy=_REBUILD) from None
        except OSError as error:
            raise InputError(
                f"cannot be made: {error.strerror}", where=str(self.path), remedy="give --ledger another place"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise InputError(
                f"has a row that cannot be read ({type(error).__name__})", where=str(self.path), remedy=_REBUILD
            ) from None


def _insert_night(connection: sqlite3.Connection, night: GateResult) -> bool:
    """Write the night without its cases; return False where it is there already."""
    row = (night.night, night.started, night.suite, int(night.exit_code), night.oomscope)
    return bool(connection.execute("INSERT OR IGNORE INTO nights VALUES (?, ?, ?, ?, ?)", row).rowcount)


def _put_cases(connection: sqlite3.Connection, night: GateResult) -> None:
    rows = [_case_row(night.night, case) for case in night.cases]
    connection.executemany("INSERT OR REPLACE INTO cases VALUES (?, ?, ?, ?, ?, ?)", rows)


def _case_row(night: str, case: CaseResult) -> tuple[str, str, str, str | None, int, str]:
    """Return a row without the measurement itself, which is a hundred times as large as its numbers."""
    standing = case.standing
    document = json.dumps(replace(case, probe=None).to_json(), sort_keys=True)
    commit, dirty = (standing.commit, int(standing.dirty)) if standing else (None, 0)
    return night, case.name, str(Status(case.status)), commit, dirty, document
