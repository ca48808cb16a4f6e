from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomscope.bisect.journal.journal_state import Closing, Event, begun_event, ended_event
from oomscope.bisect.journal.store import LONGEST_S, JournalStore
from tests.unit.bisect.journal.test_journal_state import begun, probed

NOW = 2_000_000_000.0
ENDED = (probed(1), ended_event(Closing("culprit", "it is")))


@pytest.fixture
def store(tmp_path: Path) -> JournalStore:
    return JournalStore(tmp_path)


def kept(store: JournalStore, *events: Event, age_s: float = 0.0) -> int:
    """Write a journal that was last written to so many seconds ago."""
    with store.begin() as journal:
        for event in (begun_event(begun(journal.number)), *events):
            journal.append(event)
    os.utime(journal.path, (NOW - age_s, NOW - age_s))
    return journal.number


def test_what_ended_long_ago_is_removed(store: JournalStore) -> None:
    _, young = kept(store, *ENDED, age_s=LONGEST_S + 1), kept(store, *ENDED, age_s=LONGEST_S - 1)
    newest = kept(store)
    store.remove_old(NOW)
    assert store.numbers() == [young, newest]


@pytest.mark.parametrize(
    "events",
    [
        (),
        (probed(1),),
        (probed(1), ended_event(Closing("stopped", "interrupted"))),
        (*ENDED, {"event": "resumed"}),
    ],
)
def test_what_can_be_gone_on_with_is_kept_for_ever(store: JournalStore, events: tuple[Event, ...]) -> None:
    kept(store, *events, age_s=100 * LONGEST_S)
    kept(store)
    store.remove_old(NOW)
    assert store.numbers() == [1, 2]


def test_what_somebody_holds_or_cannot_be_read_stays(store: JournalStore) -> None:
    held, spoilt = kept(store, *ENDED, age_s=2 * LONGEST_S), kept(store, age_s=2 * LONGEST_S)
    store.path(spoilt).write_bytes(b"\0\n[]\n")
    os.utime(store.path(spoilt), (0, 0))
    kept(store)
    with store.open(held):
        store.remove_old(NOW + 2 * LONGEST_S)
    assert store.numbers() == [1, 2, 3]
