"""Makes captures on the virtual card, by ``capture.py`` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oomscope.virtual.cards import DEFAULT_CARD, Card, find_card
from oomscope.virtual.settings import CardSettings

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from tests.gpu import capture; import torch._inductor.codecache; raise SystemExit(capture.main())"
"""``capture.py``; torch's snapshots of stacks import its compiler, which takes a second in every process otherwise."""
NEVER = 1 << 40
"""Polls of an event until it is complete: as on a stream kept busy, it becomes so only where it is waited for."""

TRACES = ("sweep-a/00", "boundary-a/03", "vagap-a/04", "toggle-a/00", "gc-a/00", "oversize-a/06", "options-a/10")
SOME = ("machine", "capacity", "interleaved", "pending-frees", "sgd", "norms", *TRACES)
"""The names of some items of each part, for tests."""


def card_of(machine: dict[str, Any]) -> Card:
    """Return the virtual card that is like a captured machine's.

    Raises:
        UsageError: the table of cards does not have it.
    """
    return replace(find_card(machine["gpu"]), total_bytes=machine["total_memory"])


def capture(out: Path, words: Sequence[str], *, card: Card | None = None) -> Path:
    """Write captures of the virtual card into ``out`` and return it.

    Args:
        out: the folder; snapshots lie in it as files and as archives.
        words: further arguments of ``capture.py``.
        card: which card; None for the default one.

    Raises:
        RuntimeError: something could not be captured; says what.
    """
    settings = CardSettings(card=card or find_card(DEFAULT_CARD), event_lag=NEVER)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, out, *words],
        cwd=ROOT,
        env=os.environ | settings.variables() | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{done.stdout}{done.stderr}")
    for path in out.glob("*.tar"):
        with tarfile.open(path) as archive:
            archive.extractall(out, filter="data")
    return out
