from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oomscope.bisect.journal.journal_state import Closing, Event, begun_event, ended_event
from oomscope.bisect.journal.store import LONGEST_S, JournalStore
from tests.unit.bisect.journal.test_journal_state import begun, probed


@pytest.fixture
def store(tmp_path: Path) -> JournalStore:
    return JournalStore(tmp_path / "deep" / "journals")


def filled(store: JournalStore) -> int:
    with store.begin() as journal:
        journal.append(begun_event(begun(journal.number)))
        journal.append(probed(1))
        return journal.number


def test_searches_are_numbered_in_the_order_in_which_they_begin(store: JournalStore) -> None:
    assert [filled(store) for _ in range(11)] == list(range(1, 12))
    assert store.numbers() == list(range(1, 12))
    for name in ("x.jsonl", "07.jsonl", "3.jsonl.bak", "-1.jsonl", "²x.jsonl", "0x1.jsonl"):
        (store.directory / name).touch()
    assert store.numbers() == list(range(1, 12))


def test_searches_that_begin_at_once_have_numbers_of_their_own(store: JournalStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        begun_at_once = list(pool.map(lambda _: filled(store), range(24)))
    assert sorted(begun_at_once) == store.numbers() == list(range(1, 25))


def test_it_runs_while_its_file_is_held(store: JournalStore) -> None:
    number = filled(store)
    assert not store.is_running(number)
    with store.open(number):
        assert store.is_running(number)
    assert not store.is_running(number)


NOW = 2_000_000_000.0
ENDED = (probed(1), ended_event(Closing("culprit", "it is")))


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
def test_a_search_that_can_be_resumed_is_kept_for_ever(store: JournalStore, events: tuple[Event, ...]) -> None:
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
