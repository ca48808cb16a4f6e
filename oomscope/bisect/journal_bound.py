"""How many journals are kept: those of searches that ended a long time ago, or many searches ago, are removed.

Only what ended with an answer goes. A search that runs, or that can be gone on with, is kept for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from typing import Final

from oomscope.bisect.account import whole_lines
from oomscope.bisect.journal_store import JournalStore

MOST: Final = 200
"""Searches of which the newest are kept, whatever their age, up to ``LONGEST_S``."""
LONGEST_S: Final = 90 * 24 * 3600.0
"""Seconds since the last line of a search was written after which it is removed."""


def remove_old(store: JournalStore, now_s: float) -> list[int]:
    """Remove journals of ended searches beyond the bound, and return their numbers; the newest one always stays.

    Args:
        store: the journals.
        now_s: seconds since the epoch.

    What cannot be read or removed stays.
    """
    numbers = store.numbers()
    removed = []
    for newer, number in enumerate(reversed(numbers)):
        with contextlib.suppress(OSError):
            age_s = now_s - store.path(number).stat().st_mtime
            if newer and (newer >= MOST or age_s > LONGEST_S) and _remove(store, number):
                removed.append(number)
    return removed


def _remove(store: JournalStore, number: int) -> bool:
    """Remove a journal that nobody holds and whose search has ended; return whether that was so."""
    with store.path(number).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not _has_ended(file.read()):
            return False
        store.path(number).unlink()
        return True


def _has_ended(content: bytes) -> bool:
    lines = content[: whole_lines(content)].splitlines()
    try:
        last = json.loads(lines[-1])
        return bool(last["event"] == "ended" and last["outcome"] != "stopped")
    except (IndexError, ValueError, KeyError, TypeError):
        return False
