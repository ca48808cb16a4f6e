"""How jobs are submitted: which scheduler, and what its command line is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from oomscope.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9-]*")
OURS = frozenset(
    {
        *("array", "chdir", "error", "export", "job-name", "nodes", "no-requeue", "ntasks", "ntasks-per-node"),
        *("open-mode", "output", "parsable", "requeue", "signal", "test-only", "wait", "wrap"),
    }
)
"""Options of sbatch that say how a job is run and how its result comes back, which is settled here."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Where jobs go."""

    scheduler: Literal["slurm", "processes"] = "slurm"
    """``processes`` runs each job as a process of this machine, by submitit's own local executor: for trying it out."""
    options: Mapping[str, str | bool] = field(default_factory=dict)
    """Long options of sbatch without their dashes (``partition``, ``gpus-per-node``); True for one without a value."""

    @classmethod
    def parse(cls, words: Iterable[str]) -> Self:
        """Return the settings for Slurm that ``words`` ask for, ``NAME=VALUE`` or ``NAME`` each.

        Raises:
            UsageError: a word is no option of sbatch, or one that is settled here.
        """
        return cls(options=dict(map(_option, words)))


def _option(word: str) -> tuple[str, str | bool]:
    name, equals, value = word.partition("=")
    name = name.strip().removeprefix("--").replace("_", "-")
    if not _NAME.fullmatch(name) or any(ord(letter) < 32 for letter in value):
        raise UsageError(
            f"{word!r} is no option of sbatch", where="--slurm", remedy="write NAME=VALUE, such as partition=gpu"
        )
    if name in OURS:
        raise UsageError(f"{name} cannot be chosen", where="--slurm", remedy="leave it out: each probe is one task")
    return name, value if equals else True
