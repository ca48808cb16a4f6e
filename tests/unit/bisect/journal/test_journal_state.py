"""What lines come to: whatever was cut off or spoilt, what the other lines say stands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.journal.journal_state import (
    Begun,
    Closing,
    Event,
    JournalState,
    begun_event,
    encode,
    ended_event,
    journal_state_of,
    probed_event,
)
from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.search.line import Answer
from oomscope.bisect.search.measured import Measured
from oomscope.errors import InputError
from oomscope.units import Bytes
from tests.unit.bisect.probe_results import fits, oom

AT = "2026-01-01T00:00:00+00:00"


def begun(search: int = 7, place: str = "/repo/.git", **fields: Any) -> Begun:
    known = {
        "search": search,
        "kind": "commits",
        "title": "v1..main",
        "bad": "any-oom",
        "words": ("v1..main",),
        "cwd": "/repo",
        "place": place,
        "pins": {},
        "inputs": {},
    }
    return Begun(**{**known, **fields})


def answered(number: int, **fields: Any) -> ProbeRecord:
    return ProbeRecord(
        **{
            "number": number,
            "role": "search",
            "commit": f"{number:040x}",
            "answer": Answer.GOOD,
            "reason": "fits",
            "peak": Bytes(requested_bytes=number, reserved_bytes=number),
            "keys": None,
            **fields,
        }
    )


def probed(number: int) -> Event:
    return probed_event(answered(number), {f"n{number}": Measured(answer=fits(number))})


def written(*events: Event, first: Begun | None = None) -> bytes:
    return b"".join(encode(event, AT) for event in (begun_event(first or begun()), *events))


def state_after(*events: Event) -> JournalState:
    return journal_state_of(written(*events), 7, "7.jsonl")


def commits(search_state: JournalState) -> list[int]:
    return [int(answer.commit or "0", 16) for answer in search_state.answers]


def test_what_is_written_is_read_back() -> None:
    answer = answered(3, keys=("a", "b"), reason="a\nb \x1b", wall_s=1.5)
    kept = Measured(answer=oom(live=900, demand=1200), remarks=("submodule x is empty",))
    closing = Closing("culprit", "it is", culprit="1 first", last_good="0", first_bad="1")
    search_state = state_after(probed_event(answer, {"n3": kept}), ended_event(closing))
    assert search_state.begun == begun()
    assert search_state.answers == [answer]
    assert search_state.kept == {"n3": kept}
    assert search_state.closing == closing
    assert not search_state.problems


EVENTS = [probed(1), probed(2), probed(3)]


@given(st.lists(st.sampled_from(EVENTS), max_size=8), st.floats(0, 1))
def test_cut_anywhere_it_is_the_whole_lines_before(events: list[Event], share: float) -> None:
    lines = [encode(event, AT) for event in events]
    first, content = written(), b"".join(lines)
    cut = round(share * len(content))
    whole = content[:cut].count(b"\n")
    search_state = journal_state_of(first + content[:cut], 7, "j")
    assert search_state == journal_state_of(first + b"".join(lines[:whole]), 7, "j")
    assert len(search_state.answers) == whole


@pytest.mark.parametrize(
    "spoilt",
    [
        b"[" * 100_000 + b"\n",
        b'{"event":"ended","outcome":5,"message":null}\n',
        b'{"event":"probed","record":{},"measured":{}}\n',
        b"\0\0\0\n",
        b'{"event":"probed"}\n',
        b"[1]\n",
        b"\xff\n",
        b'"x"\n',
    ],
)
def test_a_corrupted_line_in_the_middle_loses_its_own_content_only(spoilt: bytes) -> None:
    content = written(probed(1)) + spoilt + encode(probed(3), AT)
    search_state = journal_state_of(content, 7, "7.jsonl")
    assert commits(search_state) == [1, 3]
    assert search_state.problems == ["7.jsonl:3: the line cannot be read; its probe is repeated"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "7.jsonl:1: its first line does not describe a search"),
        (b'{"event":', "7.jsonl:1: its first line does not describe a search"),
        (b"[" * 100_000 + b"\n", "7.jsonl:1: its first line does not describe a search"),
        (b"{}\n", "7.jsonl:1: its first line does not describe a search"),
        (written(first=begun(5)), "holds the journal of search 5: it is a copy"),
        (encode({**begun_event(begun()), "schema_version": 99}, AT), "is a journal of version 99"),
    ],
)
def test_what_is_no_journal_of_this_search_is_one_line(content: bytes, words: str) -> None:
    with pytest.raises(InputError) as raised:
        journal_state_of(content, 7, "7.jsonl")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
