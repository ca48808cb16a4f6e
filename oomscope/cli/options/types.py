"""Types of the values of options: sizes, cards, times, numbers of jobs, files and pictures."""

from __future__ import annotations

import math
import mimetypes
import os
from pathlib import Path
from typing import Any

import click

from oomscope.errors import OomscopeError, UsageError
from oomscope.units import MiB, parse_size

MOST = 2**31 - 1
"""The most that a count in a configuration can be."""
_OTHER_PICTURES = {"application/pdf", "application/postscript"}
MOST_JOBS = 64
_AUTO = "auto"


class Size(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """Bytes, such as ``80GiB``; kept as written, so that messages and commands say what the user said."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value`` if it names a size."""
        try:
            parse_size(value)
        except OomscopeError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Limit(Size):
    """The total of a card: a bare number means bytes, and no card is smaller than 1 MiB."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value`` if it names the size of a card.

        Raises:
            UsageError: it is a bare number that was most likely meant in GiB.
        """
        text = super().convert(value, param, ctx)
        if text.isdecimal() and 0 < int(text) < MiB:
            what = f"--limit {text} is a card of {text} bytes"
            raise UsageError(what, remedy=f"say --limit {text}GiB if you mean that")
        return text


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A time, kept as written for the same reason."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value`` if it is a number; which ones make sense is for the configuration to say."""
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return str(value)


class Picture(click.Path):
    """A file for a PNG picture: no name that promises a picture of another kind."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        kind, _ = mimetypes.guess_type(os.fspath(value))
        if kind in _OTHER_PICTURES or ((kind or "").startswith("image/") and kind != "image/png"):
            self.fail(f"{os.fspath(value)!r} would hold a PNG picture; end its name in .png", param, ctx)
        return super().convert(value, param, ctx)


def finite(_ctx: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse ``nan`` and ``inf``, which click takes for numbers.

    Raises:
        click.BadParameter: the value is one of them.
    """
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds.")
    return value


class Jobs(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """A number of probes, or as many as this process has cores."""

    name = "jobs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if value == _AUTO:
            return min(MOST_JOBS, cores())
        try:
            return int(click.IntRange(1, MOST_JOBS).convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is not a whole number from 1 to {MOST_JOBS}, nor {_AUTO}", param, ctx)


def cores() -> int:
    """Return the cores that this process may run on, where the system says; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


FILE = click.Path(path_type=Path)
PICTURE = Picture()
