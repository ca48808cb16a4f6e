"""Reads which version of each package a file names: requirements, one a line, or a lock file in TOML.

Lock files of uv, poetry and pdm, and ``pylock.toml`` (PEP 751), are lists of tables with a name and a version. A lock
file may be for many machines: packages whose markers do not hold on this one are not in the list. Other formats are
refused by name, with the command that writes a list that can be read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from oomscope.errors import InputError
from oomscope.printable import quoted

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>\[[^]]*\])?\s*(?P<rest>[=<>!~@;].*)?")
_HASH = re.compile(r"\s--hash[= ]\S+")
_TABLES = re.compile(r"^\[\[packages?\]\]\s*$", re.MULTILINE)
_ELSEWHERE: Final = ("vcs", "git", "directory", "path", "editable", "virtual", "archive", "url")
"""Sources of packages that no index has by their version."""
_READ = re.compile(r"(^|[^/]*[._-])(uv\.lock|poetry\.lock|pdm\.lock|pylock(\.[^./]+)?\.toml|requirements[^/]*)$")
"""Names of files that can be read; a folder called ``requirements`` has such files, too."""
_EXTRAS: Final = re.compile(r"""extra\s*[!=]=\s*['"]([^'"]+)""")
_FREEZE: Final = "give the output of pip freeze in both environments"


class _Format(NamedTuple):
    """A format that is not read."""

    name: str
    of_file: re.Pattern[str]
    of_text: re.Pattern[str]
    remedy: str


_REFUSED: Final = (
    _Format(
        "pyproject.toml",
        re.compile(r"pyproject\.toml$"),
        re.compile(r"^\[(project|build-system)\]\s*$", re.MULTILINE),
        "it has no versions: give uv.lock or poetry.lock, or the output of uv export --no-hashes or poetry export",
    ),
    _Format(
        "Pipfile.lock",
        re.compile(r"Pipfile\.lock$"),
        re.compile(r"\A\s*\{"),
        "give the output of pipenv requirements, or of pip freeze in both environments",
    ),
    _Format("pixi.lock", re.compile(r"pixi\.lock$"), re.compile(r"^environments:", re.MULTILINE), _FREEZE),
    _Format(
        "a conda file",
        re.compile(r"(environment|conda-lock)[^/]*\.ya?ml$"),
        re.compile(r"^(dependencies|channels|package):|^@EXPLICIT", re.MULTILINE),
        _FREEZE,
    ),
)


@dataclass(frozen=True)
class PackageList:
    """The packages of one file."""

    requirements: Mapping[str, str]
    """Requirements by normalised name, as pip takes them."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reason why a package cannot be compared, by name, such as ``git``."""


class BothLists(NamedTuple):
    """The packages of two files."""

    good: Mapping[str, str]
    bad: Mapping[str, str]
    left_out: tuple[str, ...]
    """Packages that lack a version on a side, with the reason: ``mine (git)``."""


def read_both(good: Path, bad: Path) -> BothLists:
    """Return the packages of two files that can be compared, as :func:`read_packages` reads them."""
    sides = read_packages(good), read_packages(bad)
    reasons = {**sides[0].left_out, **sides[1].left_out}
    low, high = ({name: text for name, text in side.requirements.items() if name not in reasons} for side in sides)
    return BothLists(low, high, tuple(f"{name} ({reason})" for name, reason in sorted(reasons.items())))


def is_readable(path: str) -> bool:
    """Whether a file of this name is one that :func:`read_packages` reads."""
    file = PurePosixPath(path)
    is_listed = file.suffix == ".txt" and "requirements" in file.parent.name
    return is_listed or _READ.search(file.name) is not None


def read_packages(path: Path) -> PackageList:
    """Return the packages of a file: the output of ``pip freeze`` or pip-compile, or a lock file in TOML.

    Of requirements, comments and hashes are taken off. Options are ignored (pip's own variables say where packages come
    from), and so are editable packages, which have no version to change.

    Raises:
        InputError: the file cannot be read, is of another format, or a line is not a requirement.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot be read: {why}", where=str(path), remedy="give the output of pip freeze") from None
    if _TABLES.search(text):
        return _of_tables(text, str(path))
    for each in _REFUSED:
        if each.of_file.search(path.name) or each.of_text.search(text):
            raise InputError(f"{each.name} is not supported", where=str(path), remedy=each.remedy)
    return PackageList(_of_lines(text, path))


def _of_lines(text: str, path: Path) -> dict[str, str]:
    joined = re.sub(r"(?:.*\\\n)+.*", _on_one_line, text)
    found: dict[str, str] = {}
    for number, line in enumerate(joined.splitlines(), start=1):
        bare = _HASH.sub("", re.sub(r"(^|\s)#.*$", "", line)).strip()
        where = f"{path}:{number}"
        if bare.startswith(("-r", "--requirement", "-c", "--constraint")):
            raise InputError("names another file", where=where, remedy="put all packages into one file")
        if not bare or bare.startswith("-"):
            continue
        match = _REQUIREMENT.fullmatch(bare)
        if match is None:
            raise InputError(
                f"{quoted(bare)} is not a requirement", where=where, remedy="write NAME==VERSION on each line"
            )
        if _holds(bare.partition(";")[2]):
            found[_normalised(match["name"])] = bare
    return found


def _on_one_line(lines: re.Match[str]) -> str:
    """Join continued lines; empty ones after them keep the numbers of the lines that follow."""
    return lines[0].replace("\\\n", " ") + "\n" * lines[0].count("\n")


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()  # PyPA, "Names and normalization"


def _of_tables(text: str, where: str) -> PackageList:
    """Return the packages of a lock file in TOML."""
    remedy = "give the output of uv export --no-hashes, poetry export or pip freeze"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not TOML: {error}", where=where, remedy=remedy) from None
    tables = document.get("package") or document.get("packages")
    if not isinstance(tables, list) or not all(_is_python(table) for table in tables):
        raise InputError("is not a lock file of Python packages", where=where, remedy=remedy)
    versions: dict[str, set[str]] = {}
    reasons: dict[str, str] = {}
    for table in _holding(tables):
        name, version = _normalised(table["name"]), table.get("version")
        origin, place = _origin(table)
        if place == ".":  # the project itself
            continue
        if origin or not isinstance(version, str):
            reasons[name] = origin or "no version"
        else:
            versions.setdefault(name, set()).add(version)
    reasons |= {name: "several versions" for name, found in versions.items() if len(found) > 1}
    return PackageList(
        {name: f"{name}=={next(iter(found))}" for name, found in versions.items() if name not in reasons},
        reasons,
    )


def _is_python(table: object) -> bool:
    """Whether ``table`` may be a Python package: one of Cargo.lock has its source as text."""
    return isinstance(table, dict) and isinstance(table.get("name"), str) and not isinstance(table.get("source"), str)


def _origin(table: Mapping[str, Any]) -> tuple[str, str]:
    """Return where a package comes from, if not from an index, and which place that is; both are empty for an index."""
    source = table.get("source") or {}
    if isinstance(kind := source.get("type"), str):  # poetry
        return ("", "") if kind == "legacy" else (kind, str(source.get("url", "")))
    for kind in _ELSEWHERE:
        if (place := source.get(kind, table.get(kind))) is not None:
            return kind, str(place.get("path", "") if isinstance(place, dict) else place)
    return "", ""


def _holding(tables: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the packages that are for this machine.

    The marker is that of the package (poetry, PEP 751), or those of all that depend on it (uv).
    """
    kept = [table for table in tables if any(map(_holds, _markers(table)))]
    wanted = {name for table in tables for name, _ in _dependencies(table)}
    while True:
        met = {name for table in kept for name, marker in _dependencies(table) if _holds(marker)}
        left = [table for table in kept if table["name"] in met or table["name"] not in wanted]
        if len(left) == len(kept):
            return kept
        kept = left


def _markers(table: Mapping[str, Any]) -> Sequence[str]:
    """Return the markers of a package; one of them has to hold."""
    found = table.get("markers") or table.get("marker") or table.get("resolution-markers") or ""
    if isinstance(found, str):
        return (found,)
    return tuple(map(str, found.values() if isinstance(found, dict) else found))


def _dependencies(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a package of ``uv.lock`` depends on, with the markers."""
    groups = [table.get("dependencies")]
    for more in ("optional-dependencies", "dev-dependencies"):
        groups += found.values() if isinstance(found := table.get(more), dict) else ()
    for group in groups:
        for each in group if isinstance(group, list) else ():
            if isinstance(each, dict) and "name" in each:
                yield each["name"], each.get("marker", "")


def _holds(marker: str) -> bool:
    """Whether ``marker`` holds here with any extra: which ones are installed is unknown. An invalid marker holds."""
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    if not marker.strip():
        return True
    try:
        return any(Marker(marker).evaluate({"extra": extra}) for extra in ("", *_EXTRAS.findall(marker)))
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True
