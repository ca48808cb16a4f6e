"""The ledger: the numbers of every night in one SQLite file, for trends and for the last night that was green.

A night is written in one transaction under SQLite's write-ahead log, so that writers wait for each other and one that
is killed leaves the whole night or nothing of it. It is no source of truth: the JSON results of the nights are, and
from them it can be made again.

Nights stand in the order in which they were written, whatever the clocks of the machines said; only of nights that are
imported, which were written elsewhere, the clock says where they belong.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from oomscope.errors import InputError
from oomscope.gate.night.reading import read
from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import GREEN, Status
from oomscope.gate.suite.identity import Home, Place, Series, series_of

APPLICATION_ID = 0x6F6F6D73
"""``ooms``: tells the file from other people's (``PRAGMA application_id``)."""
SCHEMA_VERSION = 4
BUSY_S = 30.0
"""How long a writer waits for others."""
_REBUILD = "move it away, and make it again with oomscope gate import RESULT.json..."
_TABLES = """
CREATE TABLE nights (
    night TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    suite TEXT NOT NULL,
    exit_code INTEGER NOT NULL,
    oomscope TEXT NOT NULL,
    place INTEGER NOT NULL,
    home TEXT
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
_PLACES = """
ALTER TABLE nights ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
UPDATE nights SET place = rowid;
"""
"""Makes version 2 of version 1, which knew the order of nights by the clock alone."""
_HOMES = """
ALTER TABLE nights ADD COLUMN home TEXT;
"""
"""Makes version 3 of version 2, which knew suites by their absolute paths alone."""
_METRICS = """
UPDATE cases SET document = replace(document, '"peak_live"', '"peak_requested"');
"""
"""Makes version 4 of version 3, which called the peak of requested bytes one of live bytes."""
_UPDATES = {1: _PLACES + _HOMES + _METRICS, 2: _HOMES + _METRICS, 3: _METRICS}
"""By version, what brings a ledger of it up to date."""
_NEXT = "SELECT coalesce(max(place), 0) + 1 FROM nights"
_BY_CLOCK = f"{_NEXT} WHERE started <= ?"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One case on one night."""

    night: str
    started: str
    suite: str
    """The suite's file, by its absolute path on that night."""
    series: Series
    """The suite, wherever it lay."""
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
            # an absolute path is always a file; SQLite keeps ":memory:" and "" nowhere
            self._connection = sqlite3.connect(path.absolute(), timeout=BUSY_S, isolation_level=None)
        try:
            with self._one_line():
                self._refuse_others()
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
        """Write ``night``, measured elsewhere, behind those that are no younger by the clock.

        Returns False where it is there already.

        Raises:
            InputError: it cannot be written.
        """
        with self._one_line(), self._transaction() as connection:
            if connection.execute("SELECT 1 FROM nights WHERE night = ?", (night.night,)).fetchone():
                return False
            (place,) = connection.execute(_BY_CLOCK, (night.started,)).fetchone()
            connection.execute("UPDATE nights SET place = place + 1 WHERE place >= ?", (place,))
            _insert_night(connection, night, place)
            _put_cases(connection, night)
        return True

    def put(self, night: GateResult) -> None:
        """Write ``night`` behind all others, or in the place of what is there of it, once more is known of it.

        Raises:
            InputError: it cannot be written.
        """
        with self._one_line(), self._transaction() as connection:
            (place,) = connection.execute(_NEXT).fetchone()
            _insert_night(connection, night, place)
            _put_cases(connection, night)

    def points(self, name: str | None = None, *, suite: Place | None = None, last: int | None = None) -> list[Point]:
        """Return the nights of the case ``name`` (of all cases without one), oldest first within each suite and case.

        Args:
            name: a case.
            suite: only nights of this suite, in whatever checkout.
            last: only so many of the youngest nights of each case of a suite.

        Raises:
            InputError: the ledger is damaged.
        """
        query = (
            "SELECT night, started, suite, number, document FROM (SELECT nights.night, started, suite, number, name,"
            " document, row_number() OVER (PARTITION BY number, name ORDER BY place DESC) AS age"
            " FROM cases JOIN nights USING (night) JOIN temp.series USING (night)"
            " WHERE (:name IS NULL OR name = :name) AND (:number IS NULL OR number = :number))"
            " WHERE :last IS NULL OR age <= :last ORDER BY number, name, age DESC"
        )
        with self._one_line():
            series, number = self._number_series(suite)
            rows = self._connection.execute(query, {"name": name, "number": number, "last": last}).fetchall()
            return [
                Point(
                    night=night,
                    started=started,
                    suite=path,
                    series=series[number],
                    case=CaseResult.from_json(json.loads(document)),
                )
                for night, started, path, number, document in rows
            ]

    def green_commits(self, case: CaseResult, *, suite: Place, inside: str = "") -> frozenset[str]:
        """Return the commits, other than that of ``case``, at which it was green the last time that a night told.

        Only nights under the same key count, without uncommitted changes, and green ones only where what they measured
        would not be worse today. Which of the commits lie before that of ``case``, its repository alone can tell.

        Args:
            case: what was measured now.
            suite: the suite that it is of; nights of it count in whatever checkout it lay.
            inside: the suite's path inside its repository, with slashes. Where a night does not know its repository,
                those count at whose place the suite lies in the same way.

        Raises:
            InputError: the ledger is damaged.
        """
        here = case.standing.commit if case.standing else None
        said: dict[str, bool] = {}
        with self._one_line():
            numbered, number = self._number_series(suite)
        series = None if number is None else numbered[number]
        for point in self.points(case.name):
            if not _is_of(point, suite, series, inside):
                continue
            then, standing = point.case, point.case.standing
            is_told = then.status in GREEN or then.status is Status.WORSE
            if is_told and standing is not None and not standing.dirty and then.key == case.key:
                said[standing.commit] = then.status in GREEN and _would_pass(then, case)
        return frozenset(commit for commit, is_green in said.items() if is_green and commit != here)

    def _number_series(self, sought: Place | None) -> tuple[list[Series], int | None]:
        """Number the series of all nights, in a table that lasts as long as the connection.

        Returns the series by number, and the number of that of ``sought``.
        """
        rows = self._connection.execute("SELECT night, suite, home FROM nights ORDER BY place").fetchall()
        places = {night: Place(path=suite, home=_home(home)) for night, suite, home in rows}
        found = series_of((*places.values(), *((sought,) if sought else ())))
        series = sorted(set(found.values()))
        numbers = {one: number for number, one in enumerate(series)}
        self._connection.execute("CREATE TEMP TABLE IF NOT EXISTS series (night TEXT PRIMARY KEY, number INTEGER)")
        self._connection.execute("DELETE FROM temp.series")
        numbered = [(night, numbers[found[place]]) for night, place in places.items()]
        self._connection.executemany("INSERT INTO temp.series VALUES (?, ?)", numbered)
        return series, None if sought is None else numbers[found[sought]]

    def _refuse_others(self) -> None:
        """Refuse a database of something else before anything is changed in it, its journal's mode included."""
        if not (self._is_empty() or self._pragma("application_id") == APPLICATION_ID):
            raise InputError("is a database of something else", where=str(self.path), remedy="give --ledger another")

    def _is_empty(self) -> bool:
        """Whether nobody has made anything of the file yet."""
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return not tables and not self._pragma("application_id")

    def _pragma(self, name: str) -> int:
        (value,) = self._connection.execute(f"PRAGMA {name}").fetchone()
        return int(value)

    def _prepare(self) -> None:
        """Make the tables in an empty file, bring an older ledger up to date, and refuse a version that is neither."""
        with self._transaction() as connection:
            version = self._pragma("user_version")
            if self._is_empty():
                _execute(connection, _TABLES)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                version = _made(connection)
            elif version in _UPDATES:
                _execute(connection, _UPDATES[version])
                version = _made(connection)
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


def _is_of(point: Point, suite: Place, series: Series | None, inside: str) -> bool:
    """Whether a night is one of ``suite``: of one file, of one place in a repository, or, where either night does not
    know its repository, of a path that ends alike.
    """
    if point.suite == suite.path:
        return True
    if series is not None and series.repository and point.series.repository:
        return point.series == series
    return bool(inside and point.suite.endswith(f"/{inside}"))


def _would_pass(then: CaseResult, now: CaseResult) -> bool:
    """Whether a green night has nothing of what makes the case worse now; an older baseline may have allowed more."""
    if now.ran_out:
        return then.outcome == "fits"
    worse = [row for row in now.rows if row.status is Status.WORSE]
    return all(row.name in then.values and row.admits(then.values[row.name]) for row in worse)


def _execute(connection: sqlite3.Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        connection.execute(statement)


def _made(connection: sqlite3.Connection) -> int:
    """Write which version the tables have by now, and return it."""
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return SCHEMA_VERSION


def _insert_night(connection: sqlite3.Connection, night: GateResult, place: int) -> None:
    """Write the night without its cases; one that is there already stays where it stands."""
    home = json.dumps(asdict(night.home)) if night.home else None
    row = (night.night, night.started, night.suite, int(night.exit_code), night.oomscope, place, home)
    connection.execute("INSERT OR IGNORE INTO nights VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _home(text: str | None) -> Home | None:
    return None if text is None else read(Home, json.loads(text))


def _put_cases(connection: sqlite3.Connection, night: GateResult) -> None:
    rows = [_case_row(night.night, case) for case in night.cases]
    connection.executemany("INSERT OR REPLACE INTO cases VALUES (?, ?, ?, ?, ?, ?)", rows)


def _case_row(night: str, case: CaseResult) -> tuple[str, str, str, str | None, int, str]:
    """Return a row without the measurement itself, which is a hundred times as large as its numbers."""
    standing = case.standing
    document = json.dumps(replace(case, probe=None).to_json(), sort_keys=True)
    commit, dirty = (standing.commit, int(standing.dirty)) if standing else (None, 0)
    return night, case.name, str(Status(case.status)), commit, dirty, document
