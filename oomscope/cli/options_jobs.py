"""The option of ``oomscope bisect`` that says how many probes run side by side."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_JOBS = 64
_AUTO = "auto"


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
            self.fail(f"{value!r} is no whole number from 1 to {MOST_JOBS}, nor {_AUTO}", param, ctx)


def cores() -> int:
    """Return the cores that this process may run on, where the system says; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def jobs_option(command: Command) -> Command:
    """Add ``--jobs``."""
    option = click.option(
        "--jobs",
        type=Jobs(),
        default=1,
        metavar="N",
        help="Probes side by side, a core or a GPU each (auto: one a core); the answer is the same (default: 1).",
    )
    return option(command)
