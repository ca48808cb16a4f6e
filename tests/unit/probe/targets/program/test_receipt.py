"""Receipts survive their file, and a reader never meets half of one."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.targets.program.receipt import Raised, Receipt, Refused, path_of, read_receipts
from oomscope.probe.targets.program.settings import ProgramSettings, from_environment

text = st.text(max_size=20)
numbers = st.integers(0, 2**62)
whole = st.builds(
    Receipt,
    pid=numbers,
    parent=numbers,
    argv=st.lists(text),
    began_ns=numbers,
    torch_version=text,
    cuda_version=st.none() | text,
    raised=st.none() | st.builds(Raised, text=text, details=text, refusal=st.none() | st.dictionaries(text, numbers)),
    refused=st.none()
    | st.builds(
        Refused,
        device=numbers,
        requested_bytes=numbers,
        allowed_bytes=numbers,
        free_bytes=numbers,
        moment=st.tuples(text, st.integers(-1, 9), st.integers(-1, 9)).map(list),
        snapshot=text,
    ),
    stats=st.dictionaries(text, numbers),
    unanswered=st.dictionaries(text, numbers),
    notes=st.lists(text),
)


@given(st.lists(whole, max_size=3, unique_by=lambda receipt: receipt.began_ns))
def test_receipts_are_read_as_they_were_written(tmp_path_factory, written: list[Receipt]) -> None:
    folder = tmp_path_factory.mktemp("receipts")
    for receipt in written:
        receipt.write(path_of(folder, receipt.pid))
    assert read_receipts(folder) == sorted(written, key=lambda receipt: receipt.began_ns)


def test_a_receipt_that_is_written_again_is_one_file(tmp_path: Path) -> None:
    receipt = Receipt.of_this_process()
    path = path_of(tmp_path, receipt.pid)
    for number in range(3):
        receipt.iterations = number
        receipt.write(path)
    assert [each.iterations for each in read_receipts(tmp_path)] == [2]
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_half_written_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".abc.part").write_text('{"pid": 7')
    assert read_receipts(tmp_path) == []


@given(
    st.builds(
        ProgramSettings,
        folder=text,
        backend=st.sampled_from(["virtual", "cuda"]),
        iterations=numbers,
        max_entries=numbers,
        limit_bytes=st.none() | numbers,
    )
)
def test_settings_survive_the_environment(settings: ProgramSettings) -> None:
    assert from_environment(settings.variables()) == settings
    assert from_environment({}) is None
