"""Hints for common mistakes: the command, option, file or revision that a word may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Final

import click

from oomscope.errors import ConfigError, GitError, InputError, OomscopeError, SnapshotError, UsageError

_NOT_THERE: Final = re.compile("no such .*file", re.IGNORECASE)
_SNAPSHOTS: Final = {".pickle", ".pkl"}
_YAML: Final = {".yaml", ".yml"}


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
    options = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    names = [name for each in options for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]
    if command is not None:
        names = [*context.command.list_commands(context), *names]
    return error.message, nearest(word, names)


def add_hint(error: OomscopeError) -> None:
    """Replace the remedy of ``error`` by a better one: a file, revision or command that may be meant."""
    where = error.where or ""
    if isinstance(error, SnapshotError) and _YAML & set(Path(where).suffixes):
        error.remedy = f"oomscope probe {where} measures a configuration"
    elif isinstance(error, ConfigError) and where and error.message.startswith("not text: byte"):
        name, _, line = where.rpartition(":")
        path = Path(name if line.isdecimal() else where)
        error.remedy = other_use(path) or error.remedy
    elif isinstance(error, GitError) and where and error.message == "no such commit":
        repository, _, revision = where.rpartition(": ")
        is_relative = re.search(r"[~^@]", revision)  # gitrevisions(7): what it counts from may well be there
        if not is_relative and (near := nearest(revision, references(Path(repository)))):
            error.remedy = f"did you mean {near}?"
    if isinstance(error, InputError | UsageError) and where and _NOT_THERE.search(error.message):
        error.remedy = _nearest_file(Path(where)) or error.remedy


def references(repository: Path) -> list[str]:
    """Return the branches and tags of ``repository``; none where git cannot read it."""
    from oomscope.bisect.vcs.git import Git

    try:
        return Git(repository, (repository,)).text("for-each-ref", "--format=%(refname:lstrip=2)").splitlines()
    except OomscopeError:
        return []


def _nearest_file(missing: Path) -> str | None:
    """Return the file beside ``missing`` that may be meant, as a question."""
    try:
        names = {entry.name for entry in missing.parent.iterdir()}
    except (OSError, ValueError):
        return None
    stem = missing.name.removesuffix("".join(missing.suffixes))
    for name in get_close_matches(missing.name, names - {missing.name}, cutoff=0.75):
        other = name.removesuffix("".join(Path(name).suffixes))
        if SequenceMatcher(None, other, stem).ratio() > 0.6:  # a.yaml is not b.yaml
            return f"did you mean {missing.with_name(name)}?"
    return None


def other_than_range(text: str, commands: Iterable[str]) -> str | None:
    """Return what to do with a word that was given to ``bisect`` and is no range; None where nothing is known of it."""
    if _SNAPSHOTS & set(Path(text).suffixes):
        return f"oomscope explain {text} reads a memory snapshot, oomscope diff A B compares two"
    near = nearest(text, commands, cutoff=0.75)
    return f"did you mean oomscope bisect {near}?" if near else None


def other_use(path: Path) -> str | None:
    """Return what to do with a file whose name shows that it is no configuration; None where it does not."""
    if path.suffix in {".log", ".out", ".err", ".txt", ".sh"}:
        return f"oomscope config import {path} makes one from the arguments that a job logs or is started with"
    if _SNAPSHOTS & set(path.suffixes):
        return f"oomscope explain {path} reads memory snapshots"
    if path.suffix == ".py":
        return f"oomscope probe -- python {path} measures a training program"
    return None
