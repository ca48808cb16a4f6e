from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import StepRow, SuspectedChange
from oomscope.bisect.search.measured import Bytes
from oomscope.report import bisect_sentences
from oomscope.report.text.bisect import bisect_report, growth_table, plan_report, probe_line
from oomscope.report.text.console import result_console, show
from oomscope.units import GiB
from tests.unit.report import results, searches


def rendered(report) -> str:
    file = io.StringIO()
    show(result_console(file), report)
    return file.getvalue()


def test_a_culprit_with_all_its_evidence() -> None:
    text = rendered(bisect_report(searches.COMMITS))
    for piece in (
        "CULPRIT FOUND: dddddddddd keep the logits",
        "Ada Reyes, 2025-01-01T00:00:00Z",
        "12 commits (9 of them change what is measured)",
        "3 probes, 1 of them untestable",
        "6.00 GiB →",
        "Verdict: fragmentation",
        "PYTORCH_ALLOC_CONF=expandable_segments:True",
        "+2.00 GiB",
        "the request that failed",
        "Heaviest   requested +3.00 GiB, reserved +2.00 GiB with 8 commits up to bbbbbbbbbb longer, by reserved bytes",
        "cccccccccc forget a file",
        "git clone --shared repo copy\n  oomscope probe 1",
        "note: two merges",
    ):
        assert piece in text


@pytest.mark.parametrize("terminal", [True, False])
def test_commands_are_never_cut(terminal: bool) -> None:
    command = f"git clone {'x' * 300} copy"
    result = replace(searches.COMMITS, first_bad=replace(searches.COMMITS.first_bad, commands=(command,)))
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
    show(console, bisect_report(result))
    assert f"  {command}\n" in console.file.getvalue()


def test_notes_stand_beside_the_answer() -> None:
    text = rendered(bisect_report(searches.COMMITS))
    assert "is the first bad commit.\nnote: two merges were walked along their first parent\n" in text


@pytest.mark.parametrize(
    ("bad_class", "heaviest"),
    [
        ("any-oom", "waste, by reserved bytes"),
        ("fragmentation", "waste, by reserved bytes"),
        ("reserved>1GiB", "waste, by reserved bytes"),
        ("requested>1GiB", "longer, by requested bytes"),
    ],
)
def test_the_heaviest_step_is_that_of_the_bytes_that_went_bad(bad_class: str, heaviest: str) -> None:
    """The verdict on the first bad run is fragmentation."""
    longer, culprit = searches.COMMITS.steps
    waste = replace(
        longer, commit=searches.BROKEN, label="waste", delta=Bytes(requested_bytes=0, reserved_bytes=3 * GiB)
    )
    result = replace(searches.COMMITS, bad_class=bad_class, steps=(longer, waste, culprit))
    assert str(bisect_sentences.heaviest_step(result)).endswith(heaviest)


def test_a_capacity_verdict_is_about_live_bytes() -> None:
    verdict = replace(searches.COMMITS.first_bad.result.verdict, kind="capacity")
    first_bad = replace(searches.COMMITS.first_bad, result=replace(results.OOM, verdict=verdict))
    assert str(bisect_sentences.heaviest_step(replace(searches.COMMITS, first_bad=first_bad))).endswith(
        "by requested bytes"
    )


@pytest.mark.parametrize("kind", ["requested", "reserved"])
def test_a_probe_to_repeat_says_what_to_compare_with(kind: str) -> None:
    text = rendered(bisect_report(replace(searches.COMMITS, bad_class=f"{kind}>250MiB")))
    assert f"To repeat the first bad probe\n  bad means {kind} > 250MiB\n  oomscope probe 2" in text
    assert "bad means" not in rendered(bisect_report(searches.COMMITS))


def test_what_a_probe_took_is_not_what_it_was_waited_for() -> None:
    early = replace(searches.PROBES[0], wall_s=0.01, probe_s=8.25)
    assert rendered(probe_line(early)).endswith("(8.2 s, begun ahead)\n")
    assert rendered(probe_line(replace(early, wall_s=9.0))).endswith("(9.0 s)\n")
    assert rendered(probe_line(replace(early, cached=True))).endswith("(cached)\n")


def test_a_choice_of_hunks_is_called_by_their_numbers() -> None:
    probe = replace(
        searches.PROBES[0], role="inside the commit", commit=None, keys=("a", "b"), subject="hunks 1, 2 of 9"
    )
    assert "good        hunks 1, 2 of 9 " in rendered(probe_line(probe))


def test_an_improvement_is_the_heaviest_step_of_a_range_that_got_lighter() -> None:
    up, down = searches.COMMITS.steps
    lighter = replace(down, delta=Bytes(requested_bytes=-5 * GiB, reserved_bytes=0))
    result = replace(searches.NO_CULPRIT, steps=(up, lighter))
    text = "requested -5.00 GiB, reserved 0 B with dddddddddd keep the logits, by requested bytes"
    assert bisect_sentences.heaviest_step(replace(result, waterfall=searches.STEPS.waterfall)) == text
    back = replace(up, commit=searches.BROKEN, delta=Bytes() - up.delta)
    pair = replace(result, steps=(back, up), waterfall=searches.STEPS.waterfall)
    assert str(bisect_sentences.heaviest_step(pair)).endswith(
        "cccccccccc longer, by requested bytes; other steps take it back"
    )
    assert pair.to_json()["heaviest"] == searches.BROKEN, "the first of the two: the other one takes it back"


def test_suspects_are_named_with_their_reason() -> None:
    text = rendered(bisect_report(searches.SUSPECTS))
    assert "ONLY SUSPECTS" in text
    assert "bad, but its parent cannot be tested" in text


def test_no_culprit_is_an_answer() -> None:
    text = rendered(bisect_report(searches.NO_CULPRIT))
    assert "NO CULPRIT\nboth ends fit" in text
    assert "Verdict" not in text
    good = replace(searches.PROBES[0], role="good end", bytes=Bytes(requested_bytes=GiB))
    bad = replace(searches.PROBES[0], role="bad end", bytes=Bytes(requested_bytes=3 * GiB))
    grown = rendered(bisect_report(replace(searches.NO_CULPRIT, probes=(good, bad))))
    assert "What to do: requested memory grew by 2.00 GiB all the same: --steps names what made it grow" in grown


def test_keys_with_the_bytes_of_each() -> None:
    text = rendered(bisect_report(searches.KEYS))
    assert "CULPRIT FOUND: data.seq_length, recompute.recompute_granularity" in text
    assert "requested +2.00 GiB, reserved +1.00 GiB" in text
    assert "not measured" in text


def test_the_growth_table_sums_to_the_change_also_when_it_is_cut() -> None:
    rows = searches.SITES * 8
    text = rendered(growth_table(rows, shown=4))
    assert "20 further lines" in text
    assert "+16.00 GiB" in text.splitlines()[-1]


def test_probes_as_they_come() -> None:
    good, bad, untestable = (rendered(probe_line(record)) for record in searches.PROBES)
    assert good.startswith("  1  good        aaaaaaaaaa start")
    assert good.endswith("fits, 2.00 GiB left  (5.2 s)\n")
    assert "≥  8.00 GiB" in bad
    assert bad.endswith("(cached)\n")
    assert "any line of a table" not in bad
    assert "import: No module named" in untestable
    assert {text.count("\n") for text in (good, bad, untestable)} == {1}


def test_the_plan() -> None:
    plan = SearchPlan(
        title="24 commits", good="a", bad="b", candidates=24, considered=24, probes_at_most=7, notes=("n",)
    )
    assert rendered(plan_report(plan)) == "24 commits; at most 7 probes, untestable ones apart\nnote: n\n"


def test_what_may_take_more_probes_is_said_beforehand() -> None:
    plan = SearchPlan(
        title="24 commits", good="a", bad="b", candidates=24, considered=24, probes_at_most=7, more_if=("x", "y")
    )
    assert rendered(plan_report(plan)) == "24 commits; at most 7 probes, untestable ones apart; more if x, or if y\n"


def test_no_answer_accuses_nobody() -> None:
    text = rendered(bisect_report(searches.NO_ANSWER))
    assert text.startswith("\nNO ANSWER\nthe deadline passed before both ends were checked\n")
    assert "at fault" not in text


def test_an_end_that_cannot_be_tested_has_a_heading_of_its_own() -> None:
    assert rendered(bisect_report(searches.UNTESTABLE_END)).startswith("\nAN END CANNOT BE TESTED\n")
    probes = (searches.PROBES[1], searches.PROBES[0])
    invalid = replace(searches.NO_ANSWER, outcome="ends_invalid", probes=probes)
    assert rendered(bisect_report(invalid)).startswith("\nTHE ENDS DO NOT DIFFER AS ASKED\n")


def test_merges_and_paths_in_the_count_of_commits() -> None:
    result = replace(searches.COMMITS, candidates=20, paths=("src",))
    assert "20 commits (12 of them on the line of first parents, 9 of those touch the chosen paths and change" in (
        bisect_sentences.search_text(result)
    )


def test_a_step_that_a_merge_brought_in_names_the_merge() -> None:
    step = replace(searches.COMMITS.steps[1], merge=searches.MIDDLE)
    assert bisect_sentences.step_text(step) == "dddddddddd keep the logits (merged by bbbbbbbbbb)"


def test_sets_of_many_keys_are_told_apart() -> None:
    keys = tuple(f"section.some_long_name_of_a_key_{index}" for index in range(40))
    probes = [replace(searches.KEYS.probes[1], number=number, keys=keys[:number]) for number in (7, 20, 21, 40)]
    names = {rendered(probe_line(record))[17:70] for record in probes}
    assert len(names) == 4
    assert any("20 keys" in name and "key_19" in name for name in names)


def test_names_are_cut_in_the_middle() -> None:
    assert bisect_sentences.shortened("abcdefghij", 10) == "abcdefghij"
    assert bisect_sentences.shortened("abcdefghijk", 10) == "abcd…ghijk"


def test_the_growth_table_ends_with_what_the_headline_says() -> None:
    result = replace(searches.COMMITS, sites=searches.SITES[:1])
    text = rendered(bisect_report(result))
    assert "Requested  6.00 GiB →" in text
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "0 B 5.00 GiB 5.00 GiB lines that did not change" in lines
    assert "+2.00 GiB 6.00 GiB 8.00 GiB all requested bytes" in lines


def test_suspected_keys_are_named_with_their_values() -> None:
    suspects = (SuspectedChange(key="data.seq_length", subject="100 → 300", reason="the deadline passed"),)
    text = rendered(bisect_report(replace(searches.KEYS, outcome="suspects", culprit=None, suspects=suspects)))
    assert "data.seq_length   100 → 300    the deadline passed" in text


def test_the_row_of_keys_together_is_called_so() -> None:
    together = StepRow(commit=None, label="only together", keys=("a", "b"), delta=searches.CHANGE)
    text = rendered(bisect_report(replace(searches.KEYS, steps=(together,))))
    (line,) = (line for line in text.splitlines() if line.endswith("only together"))
    assert line.split()[:4] == ["+2.00", "GiB", "+1.00", "GiB"]


def test_logs_of_skipped_probes_are_named_whole() -> None:
    log = f"/state/{'x' * 200}/cccccccccc-1.txt"
    probes = (*searches.PROBES[:2], replace(searches.PROBES[2], log=log))
    text = rendered(bisect_report(replace(searches.COMMITS, probes=probes)))
    assert f"Output:\n  {log}\n" in text


def test_a_long_list_of_suspects_is_cut() -> None:
    suspects = searches.SUSPECTS.suspects * 40
    text = rendered(bisect_report(replace(searches.SUSPECTS, suspects=suspects)))
    assert "and 50 more, up to dddddddddd" in text


@pytest.mark.parametrize("result", searches.EVERY, ids=lambda result: result.outcome)
def test_a_pipe_gets_plain_text(result) -> None:
    assert "\x1b" not in rendered(bisect_report(result))


@pytest.mark.parametrize("result", searches.EVERY, ids=lambda result: result.outcome)
def test_every_outcome_fits_a_narrow_terminal(result) -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    show(console, bisect_report(result))
    assert max(len(line) for line in console.file.getvalue().splitlines()) <= 60


def test_reserved_bytes_beyond_the_card_are_said_to_be_those_without_a_limit() -> None:
    assert dict(bisect_sentences.before_and_after(searches.COMMITS))["Reserved"].endswith("(0 B)")
    whole = replace(searches.COMMITS.first_bad.result, demand_peak=results.PEAK)
    search = replace(searches.COMMITS, first_bad=replace(searches.COMMITS.first_bad, result=whole))
    assert dict(bisect_sentences.before_and_after(search))["Reserved"].endswith(", on a card without a limit")


def test_a_printed_number_says_nothing_of_reserved_bytes() -> None:
    assert searches.COMMITS.first_bad is not None
    result = searches.COMMITS.first_bad.result
    assert result.peak is not None
    printed = replace(result, backend="command", outcome="fits", peak=replace(result.peak, reserved_bytes=None))
    search = replace(searches.COMMITS, first_bad=replace(searches.COMMITS.first_bad, result=printed))
    assert dict(bisect_sentences.before_and_after(search))["Reserved"].startswith("not known")


def test_a_good_bad_end_of_an_open_range_was_all_that_was_searched() -> None:
    search = replace(searches.NO_CULPRIT, good=searches.NO_CULPRIT.bad, candidates=0)
    assert bisect_sentences.search_text(search).startswith("the bad end alone, bad = ")


def test_variables_and_packages_are_called_what_they_are() -> None:
    culprit = searches.KEYS.culprit
    assert culprit is not None
    variable = replace(culprit.keys[0], key="env:OMP_NUM_THREADS")
    result = replace(searches.KEYS, axis="environment", culprit=replace(culprit, keys=(variable,)))
    text = rendered(bisect_report(result))
    assert "12 changes of the environment (" in text
    assert "Keys, variables and packages" in text
    assert "Configuration keys" in rendered(bisect_report(searches.KEYS))


def test_a_reason_for_skipping_is_said_once() -> None:
    probe = next(record for record in searches.PROBES if record.answer.value == "untestable")
    several = [replace(probe, commit=f"{number:040}", subject="s", reason="no module") for number in range(12)]
    text = rendered(bisect_report(replace(searches.COMMITS, probes=(*several, replace(probe, reason="other")))))
    assert text.count("no module") == 1
    assert "and 11 more, up to 0000000000 s" in text
    assert text.count(" other\n") == 1
