from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from oomscope.report.wrapping import longest_piece, wrapped

TEXTS = st.text(st.sampled_from("abc/:,._= "), max_size=60)


@given(TEXTS, st.integers(1, 40))
def test_nothing_is_lost_and_no_line_is_too_long(text: str, width: int) -> None:
    lines = wrapped(Text(text), width).plain.split("\n")
    assert all(len(line) <= width for line in lines if line.strip())
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(TEXTS)
def test_pieces_stay_whole_where_there_is_room_for_the_longest(text: str) -> None:
    width = max(1, longest_piece(text))
    for line in wrapped(Text(text), width).plain.split("\n")[:-1]:
        after = text[text.index(line) + len(line) :] if text.count(line) == 1 else " "
        assert line[-1:] in "/:,._= " or after[:1] == " "


def test_paths_and_settings_break_where_the_eye_joins_them() -> None:
    assert wrapped(Text("tinytrain/attention.py:16 forward"), 14).plain == "tinytrain/\nattention.py:\n16 forward"
    assert wrapped(Text("max_split_size_mb:256"), 18).plain == "max_split_size_mb:\n256"
    assert wrapped(Text("fails at event 4,203"), 14).plain == "fails at event\n4,203"


def test_styles_are_kept() -> None:
    lines = wrapped(Text("one two", style="red"), 3)
    assert lines.plain == "one\ntwo"
    assert [(span.start, span.end, span.style) for span in lines.spans] == [(0, 3, "red"), (4, 7, "red")]
