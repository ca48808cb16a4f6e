"""The waterfall of steps, as text and as a table of its own."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from oomscope.bisect.results.sections import UnseenStretch
from oomscope.report import bisect_sentences, dataframes
from oomscope.report.text.bisect import bisect_report
from oomscope.report.text.bisect_tables import STRETCHES_SHOWN, dominant_text, floating_bar
from oomscope.report.text.console import result_console, show
from oomscope.units import GiB
from tests.unit.report import searches


def rendered(result) -> str:
    file = io.StringIO()
    show(result_console(file), bisect_report(result))
    return file.getvalue()


def test_the_waterfall_leads_from_good_to_bad() -> None:
    text = rendered(searches.STEPS)
    table = text.split("Steps; they sum to the difference of the ends\n")[1].split("Not looked into")[0]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[0] == "Requested Overhead Reserved Came with Mostly"
    assert lines[2].startswith("7.00 GiB good end")
    assert lines[3].startswith("+3.00 GiB -1.00 GiB 9.00 GiB ████████████████ bbbbbbbbbb longer +2.00 GiB temporary, ")
    assert lines[4].startswith("-1.00 GiB 0 B 8.00 GiB ░░░░░░░░ dddddddddd keep the logits")
    assert lines[5].startswith("0 B -4.00 MiB 8.00 GiB ░ smaller differences")
    assert lines[7].startswith("+2.00 GiB -1.00 GiB 8.00 GiB bad end, and the sum")
    assert "Steps seen on the way" not in text


def test_what_was_not_looked_into_is_said() -> None:
    text = rendered(searches.STEPS)
    assert "a step and its revert would not be seen" in text
    assert [line.split() for line in text.splitlines() if line.startswith("      4")] == [
        ["4", "aaaaaaaaaa", "cccccccccc"]
    ]
    assert "--exhaustive probes the 4 commits there" in text, "the other stretch has no commit inside"


def test_where_all_was_looked_into_there_is_no_such_table() -> None:
    whole = replace(searches.STEPS, waterfall=replace(searches.STEPS.waterfall, unseen=()))
    text = rendered(whole)
    assert "Not looked into" not in text
    assert "deadline" not in text


def test_of_many_stretches_the_longest_are_shown() -> None:
    many = tuple(UnseenStretch(since=searches.GOOD, until=searches.BAD, commits=number) for number in range(2, 20))
    text = rendered(replace(searches.STEPS, waterfall=replace(searches.STEPS.waterfall, unseen=many)))
    hidden = sum(number - 1 for number in range(2, 20 - STRETCHES_SHOWN))
    assert f"{hidden}   in {18 - STRETCHES_SHOWN} further stretches" in text
    assert "--exhaustive probes the 171 commits there" in text


def test_a_search_cut_short_says_so() -> None:
    cut = replace(searches.STEPS, waterfall=replace(searches.STEPS.waterfall, is_complete=False))
    assert "The deadline passed before every range" in rendered(cut)


def test_the_waterfall_fits_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    show(console, bisect_report(searches.STEPS))
    lines = console.file.getvalue().split("Steps; they sum")[1].split("Not looked into")[0].splitlines()
    assert max(map(len, lines)) <= 80


def test_the_heaviest_step_is_named_beside_the_tipping_commit() -> None:
    assert "Heaviest   requested +3.00 GiB, reserved +2.00 GiB with bbbbbbbbbb longer, by reserved" in rendered(
        searches.STEPS
    )
    same = replace(searches.STEPS, culprit=replace(searches.COMMITS.culprit, commit=searches.MIDDLE))
    assert bisect_sentences.heaviest_step(same) == "the commit that tipped it over"
    without = replace(searches.STEPS, outcome="no_culprit", culprit=None, first_bad=None)
    assert str(bisect_sentences.heaviest_step(without)).endswith("longer, by requested bytes")


@pytest.mark.parametrize(
    ("before", "after", "drawn"),
    [
        (0, 8, "████████"),
        (0, 4, "████"),
        (4, 8, "    ████"),
        (8, 4, "    ░░░░"),
        (5, 5, ""),
        (8, 7, "       ░"),
    ],
)
def test_a_bar_floats_between_its_levels(before: int, after: int, drawn: str) -> None:
    assert floating_bar(before, after, 0, 8, width=8) == drawn


def test_a_step_too_small_for_a_cell_has_one() -> None:
    assert floating_bar(0, 1, 0, 1000, width=8) == "█"
    assert floating_bar(999, 1000, 0, 1000, width=8) == "       █"


def test_a_row_that_no_line_stands_for_says_what_it_is() -> None:
    assert dominant_text(searches.SITES[1]) == "+512.00 MiB the request that failed"
    assert dominant_text(None) == ""


def test_the_table_has_what_was_reached_and_the_line() -> None:
    steps = dataframes.steps(searches.STEPS)
    assert steps["delta_overhead_bytes"].tolist()[:2] == [-GiB, 0]
    assert steps["since_good_requested_bytes"].tolist() == [3 * GiB, 2 * GiB, 2 * GiB]
    assert steps["dominant_category"].tolist()[0] == "temporary"
    assert steps["dominant_line"].isna().tolist() == [False, True, True]
    assert steps["dominant_bytes"].tolist()[0] == 2 * GiB


def test_steps_between_two_good_ends_are_the_answer() -> None:
    both_good = replace(searches.STEPS, outcome="no_culprit", message="the bad end is good: 8 GiB", culprit=None)
    out = rendered(both_good)
    assert "3 STEPS FOUND" in out
    assert "Both ends are good (bad = out of memory of any kind)." in out
    assert "requested memory changes by +2.00 GiB and overhead by -1.00 GiB" in " ".join(out.split())
    assert "NO CULPRIT" not in out
    assert "the bad end is good" not in out
