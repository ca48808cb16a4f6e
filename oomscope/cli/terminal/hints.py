"""What a mistyped word may have meant: the command, option, file or revision of nearly that name, if there is one."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from oomscope.errors import ConfigError, GitError, InputError, OomscopeError, SnapshotError, UsageError

if TYPE_CHECKING:
    from oomscope.bisect.results.result import BisectResult, ProbeRecord

_NOT_THERE: Final = re.compile("no such .*file", re.IGNORECASE)
_RELATIVE: Final = re.compile(r"[~^@]")
"""Leads from a revision to another (gitrevisions(7))."""
_FILES_LOOKED_AT: Final = 5000
_NOT_FOUND: Final = re.compile(r"No such file or directory: '([^'\n]{1,500})'")
_LAST_BYTES: Final = 16_384


def nearest(word: str, names: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the name that ``word`` is most like, leading dashes apart; None where it is like none."""
    by_letters = {name.lstrip("-"): name for name in names}
    close = get_close_matches(word.lstrip("-"), by_letters, n=1, cutoff=cutoff)
    return by_letters[close[0]] if close else None


def mistyped(error: click.ClickException) -> tuple[str, str | None]:
    """Return what is wrong with a command line, and the command or option that may be meant."""
    context = getattr(error, "ctx", None)
    command: str | None = getattr(error, "command_name", None)
    word = error.option_name if isinstance(error, click.NoSuchOption) else command
    if context is None or word is None:
        return error.format_message(), None
    names = _options(context)
    if command is not None:
        names = [*context.command.list_commands(context), *names]
    return error.message, nearest(word, names)


def _options(context: click.Context) -> list[str]:
    options = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    return [name for each in options for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]


def name_what_is_meant(error: OomscopeError) -> None:
    """Let ``error`` say which file or revision may be meant, where it is that one is not there."""
    name_nearest_file(error)
    if isinstance(error, GitError) and error.where and error.message == "no such commit":
        repository, _, revision = error.where.rpartition(": ")
        if _RELATIVE.search(revision):  # what it counts from may well be there
            return
        if near := nearest(revision, references(Path(repository))):
            error.remedy = f"did you mean {near}?"


def references(repository: Path) -> list[str]:
    """Return the branches and tags of ``repository``; none where git cannot read it."""
    from oomscope.bisect.vcs.git import Git

    try:
        return Git(repository, (repository,)).text("for-each-ref", "--format=%(refname:lstrip=2)").splitlines()
    except OomscopeError:
        return []


def name_nearest_file(error: OomscopeError) -> None:
    """Let ``error`` say which file may be meant, where it is that one is not there."""
    if not isinstance(error, InputError | UsageError) or not error.where or not _NOT_THERE.search(error.message):
        return
    missing = Path(error.where)
    try:
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, _FILES_LOOKED_AT)]
    except (OSError, ValueError):
        return
    close = get_close_matches(missing.name, set(names) - {missing.name}, cutoff=0.75)
    if near := next((name for name in close if _are_like(_stem(name), _stem(missing.name))), None):
        error.remedy = f"did you mean {missing.with_name(near)}?"


def _stem(name: str) -> str:
    return name.removesuffix("".join(Path(name).suffixes))


def _are_like(name: str, other: str) -> bool:
    """Whether two names are alike without what follows the dot, which makes ``a.yaml`` and ``b.yaml`` seem to be."""
    return SequenceMatcher(None, name, other).ratio() > 0.6


def missing_in_checkouts(result: BisectResult, folder: Path) -> str | None:
    """Return what to do about a file that an end of a search lacks: it lies in ``folder``, and git does not track it.

    None where the ends lack no such file.
    """
    from oomscope.bisect.vcs.git import Git

    for probe in result.untestable:
        for name in _NOT_FOUND.findall(_last_words(probe)) if probe.role in {"good end", "bad end"} else ():
            if not (folder / name).exists() or Path(name).is_absolute() or ".." in Path(name).parts:
                continue
            with contextlib.suppress(OomscopeError, OSError):
                if not Git(folder, (folder,)).listed("ls-files", "-z", "--", f":(literal){name}"):
                    return f"git does not track {name}: add --link {shlex.quote(_untracked(folder, name))}"
    return None


def _untracked(folder: Path, name: str) -> str:
    """Return the shortest beginning of the path ``name`` in ``folder`` under which git tracks nothing."""
    from oomscope.bisect.vcs.git import Git

    git, parts = Git(folder, (folder,)), Path(name).parts
    beginnings = (str(Path(*parts[:length])) for length in range(1, len(parts)))
    return next((path for path in beginnings if not git.listed("ls-files", "-z", "--", f":(literal){path}")), name)


def _last_words(probe: ProbeRecord) -> str:
    """Return the end of what a failed target said."""
    if probe.log is None:
        return probe.reason
    try:
        with Path(probe.log).open("rb") as file:
            file.seek(max(0, Path(probe.log).stat().st_size - _LAST_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return probe.reason


def other_than_range(text: str, commands: Iterable[str]) -> str | None:
    """Return what to do with a word that was given to ``bisect`` and is no range; None where nothing is known of it."""
    if {".pickle", ".pkl"} & set(Path(text).suffixes):
        return f"oomscope explain {text} reads a memory snapshot, oomscope diff A B compares two"
    near = nearest(text, commands, cutoff=0.75)
    return f"did you mean oomscope bisect {near}?" if near else None


_LOGS: Final = {".log", ".out", ".err", ".txt", ".sh"}
_SNAPSHOTS: Final = {".pickle", ".pkl"}
_YAML: Final = {".yaml", ".yml"}
_UNPACKED_BY: Final = {".gz": "gunzip", ".zst": "unzstd", ".xz": "unxz", ".bz2": "bunzip2"}


def other_use(path: Path) -> str | None:
    """Return what to do with a file whose name tells that it is no configuration; None where it tells nothing."""
    if path.suffix in _LOGS:
        return f"oomscope config import {path} makes one of the arguments that a job logs or is started with"
    if _SNAPSHOTS & set(path.suffixes):
        return f"oomscope explain {path} reads memory snapshots"
    if path.suffix == ".py":
        return f"oomscope probe -- python {path} measures a training program"
    return None


def name_other_use(error: OomscopeError) -> None:
    """Let ``error`` say which command reads the file at fault, or what makes it one that can be read."""
    if isinstance(error, SnapshotError) and error.where and _YAML & set(Path(error.where).suffixes):
        error.remedy = f"oomscope probe {error.where} measures a configuration"
    elif isinstance(error, ConfigError) and error.where and error.message.startswith("not text: byte"):
        name, _, line = error.where.rpartition(":")
        path = Path(name if line.isdecimal() else error.where)
        unpack = _UNPACKED_BY.get(path.suffix)
        error.remedy = other_use(path) or (f"unpack it: {unpack} {path}" if unpack else error.remedy)
