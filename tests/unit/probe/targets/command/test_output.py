"""What counts of a command's output: the last number, and torch's own words for a failure."""

from __future__ import annotations

import re
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import TargetError
from oomscope.probe.targets.command import LONGEST, Said, metric_in, read_output, tail_of
from oomscope.units import MiB

PEAK = r"peak:? *([\d.,_]+ *\w*)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79 GiB"


def said(output: bytes, pattern: str = PEAK, before: bytes = b"") -> Said:
    with tempfile.TemporaryFile() as file:
        file.write(before + output)
        file.flush()
        return read_output(file.fileno(), len(before), re.compile(pattern))


@pytest.mark.parametrize(
    ("output", "size"),
    [
        (b"peak 12 MiB\n", 12 * MiB),
        (b"peak 1\npeak: 2\r\nnoise", 2),
        (b"peak 1; peak 3\n", 3),
        (b"\rstep 1 peak 5\rstep 2 peak 1.5MiB", 3 * MiB // 2),
        (b"\xff\xfe peak 7KiB", 7 * 1024),
        (b"peak 2048.0\n", 2048),
    ],
)
def test_the_last_match_counts(output: bytes, size: int) -> None:
    assert metric_in(said(output), PEAK)[0] == size


def test_what_others_wrote_before_does_not_count() -> None:
    assert said(b"nothing\n", before=b"peak 9\n").match is None


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (b"", "printed nothing that"),
        (b"peak 12.5", "a fraction without a unit; put the unit into the group"),
        (b"peak 3 parsecs", "which is not a size"),
        (b"peak .", "which is not a size"),
    ],
)
def test_what_is_no_number_of_bytes_is_the_commits_fault(output: bytes, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        metric_in(said(output), PEAK)


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=5), st.text(max_size=20))
def test_any_last_number_is_found_again(numbers: list[int], noise: str) -> None:
    lines = "".join(f"{noise!r}\nMEM={number}\n" for number in numbers)
    assert metric_in(said(lines.encode(), r"^MEM=(\d+)$"), "")[0] == numbers[-1]


def test_a_line_without_end_is_read_in_bounded_pieces() -> None:
    found = said(b"x" * (3 * LONGEST) + b" peak 3\npeak 4\n" + b"y" * LONGEST)
    assert metric_in(found, PEAK)[0] == 4


@pytest.mark.parametrize(
    "line", [OOM, OOM.replace("torch.", "torch.cuda."), OOM.replace("torch.OutOfMemoryError", "RuntimeError")]
)
def test_torchs_words_for_a_failure(line: str) -> None:
    found = said(f"[rank0]: {line}\nTraceback\n".encode()).refusal
    assert found is not None
    assert found.requested_bytes == 20 * MiB
    assert found.message.startswith("[rank0]: ")


@pytest.mark.parametrize("line", ["OutOfMemoryError of another library", "out of memory, they say", "MemoryError"])
def test_other_words_are_none(line: str) -> None:
    assert said(line.encode()).refusal is None


def test_the_tail_is_the_end_of_what_was_said() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"before" + b"a" * 20_000 + b"end")
        file.flush()
        assert tail_of(file.fileno(), 6) == "a" * (16 * 1024 - 3) + "end"
        assert tail_of(file.fileno(), 20_006) == "end"
