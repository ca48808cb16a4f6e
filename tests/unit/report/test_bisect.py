"""The report of a search: the answer, its evidence, and what can be said of each probe."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import BisectResult, CommitCulprit, KeysCulprit, StepRow, SuspectedChange
from oomscope.bisect.results.sections import Narrowed
from oomscope.bisect.search.line import Answer
from oomscope.probe.result import RankSummary
from oomscope.report.commands import bisect_sentences
from oomscope.report.commands.bisect import bisect_report, growth_table, plan_report
from oomscope.report.text.probes import ProbeLine
from oomscope.units import Bytes, GiB
from tests.unit.report import results, searches
from tests.unit.report.printed import folded, on_terminal, printed


def rendered(result: BisectResult) -> str:
    return printed(bisect_report(result))


def test_a_culprit_with_all_its_evidence() -> None:
    text = rendered(searches.COMMITS)
    for piece in (
        "CULPRIT FOUND: dddddddddd keep the logits",
        "is the first bad commit.\nnote: two merges were walked along their first parent\n",
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
    ):
        assert piece in text


@pytest.mark.parametrize("result", searches.EVERY, ids=lambda result: result.outcome)
def test_every_outcome_fits_a_narrow_terminal_and_is_plain_in_a_pipe(result: BisectResult) -> None:
    assert "\x1b" not in rendered(result)
    assert max(map(len, on_terminal(bisect_report(result), 60))) <= 60


@pytest.mark.parametrize(
    ("bad_class", "heaviest"),
    [("fragmentation", "waste, by reserved bytes"), ("requested>1GiB", "longer, by requested bytes")],
)
def test_the_heaviest_step_is_that_of_the_bytes_that_went_bad(bad_class: str, heaviest: str) -> None:
    """The verdict on the first bad run is fragmentation."""
    longer, culprit = searches.COMMITS.steps
    waste = replace(
        longer, commit=searches.BROKEN, label="waste", delta=Bytes(requested_bytes=0, reserved_bytes=3 * GiB)
    )
    result = replace(searches.COMMITS, bad_class=bad_class, steps=(longer, waste, culprit))
    assert str(bisect_sentences.heaviest_step(result)).endswith(heaviest)


def test_fragmentation_at_equal_peaks_is_explained() -> None:
    good = searches.COMMITS.last_good
    assert good is not None
    emptied = replace(good, result=replace(good.result, num_alloc_retries=1))
    equal = replace(searches.COMMITS, change=Bytes(reserved_bytes=0), last_good=emptied)
    assert "in the first bad run live blocks keep it from giving back 2.00 GiB." in rendered(equal)
    assert "Heaviest" not in rendered(equal)
    assert "Neither peak" not in rendered(searches.COMMITS)


def test_a_probe_to_repeat_says_what_to_compare_with_and_its_command_is_never_cut() -> None:
    command = f"git clone {'x' * 300} copy"
    first_bad = replace(searches.COMMITS.first_bad, commands=(command,))
    text = rendered(replace(searches.COMMITS, bad_class="reserved>250MiB", first_bad=first_bad))
    assert f"To repeat the first bad probe\n  bad means reserved > 250MiB\n  {command}\n" in text
    assert "bad means" not in rendered(searches.COMMITS)


def test_probes_as_they_come() -> None:
    good, bad, untestable = (printed(ProbeLine(record)) for record in searches.PROBES)
    assert good.startswith("  1  good        aaaaaaaaaa start")
    assert good.endswith("fits, 2.00 GiB left  (5.2 s)\n")
    assert "≥  8.00 GiB" in bad
    assert "any line of a table" not in bad
    assert "import: No module named" in untestable
    assert {text.count("\n") for text in (good, bad, untestable)} == {1}
    hunks = replace(searches.PROBES[0], role="inside the commit", commit=None, keys=("a",), subject="hunks 1, 2 of 9")
    assert "good        hunks 1, 2 of 9 " in printed(ProbeLine(hunks))
    early = replace(searches.PROBES[0], wall_s=0.01, probe_s=8.25)
    assert printed(ProbeLine(early)).endswith("(8.2 s, begun ahead)\n")
    assert printed(ProbeLine(replace(early, cached=True))).endswith("(cached)\n")


def test_the_plan() -> None:
    plan = SearchPlan(
        title="24 commits", good="a", bad="b", candidates=24, considered=24, probes_at_most=7, notes=("n",)
    )
    assert printed(plan_report(plan)) == "24 commits; at most 7 probes, untestable ones apart\nnote: n\n"
    assert "apart; more if x, or if y\n" in printed(plan_report(replace(plan, more_if=("x", "y"))))


def test_no_culprit_is_an_answer() -> None:
    text = rendered(searches.NO_CULPRIT)
    assert "NO CULPRIT\nboth ends fit" in text
    assert "Verdict" not in text
    good = replace(searches.PROBES[0], role="good end", peak=Bytes(requested_bytes=GiB))
    bad = replace(searches.PROBES[0], role="bad end", peak=Bytes(requested_bytes=3 * GiB))
    grown = rendered(replace(searches.NO_CULPRIT, probes=(good, bad)))
    assert "What to do: requested memory grew by 2.00 GiB all the same: --steps names what made it grow" in grown
    alone = replace(searches.NO_CULPRIT, good=searches.NO_CULPRIT.bad, candidates=0)
    assert bisect_sentences.search_text(alone).startswith("the bad end alone, bad = ")


def test_without_an_answer_no_commit_is_blamed() -> None:
    text = rendered(searches.NO_ANSWER)
    assert text.startswith("\nNO ANSWER\nthe deadline passed before both ends were checked\n")
    assert "at fault" not in text
    assert rendered(searches.UNTESTABLE_END).startswith("\nAN END CANNOT BE TESTED\n")
    invalid = replace(searches.NO_ANSWER, outcome="ends_invalid", probes=(searches.PROBES[1], searches.PROBES[0]))
    assert rendered(invalid).startswith("\nTHE ENDS DO NOT DIFFER AS ASKED\n")


def test_keys_with_the_bytes_of_each() -> None:
    text = rendered(searches.KEYS)
    assert "CULPRIT FOUND: data.seq_length, recompute.recompute_granularity" in text
    assert "Configuration keys" in text
    assert "requested +2.00 GiB, reserved +1.00 GiB" in text
    assert "not measured" in text
    assert "full   null" in text
    variable = replace(searches.KEYS.culprit.keys[0], key="env:OMP_NUM_THREADS")
    outside = replace(searches.KEYS, axis="environment", culprit=replace(searches.KEYS.culprit, keys=(variable,)))
    assert "12 changes of the environment (" in rendered(outside)
    unset = replace(variable, good=None, absent_from="good")
    assert "(absent)" in rendered(replace(outside, culprit=replace(outside.culprit, keys=(unset,))))
    assert "Keys, variables and packages" in rendered(outside)


def test_the_growth_table_sums_to_the_change_also_when_it_is_cut() -> None:
    rows = searches.SITES * 8
    text = printed([growth_table(rows)])
    assert "16 further lines" in text
    assert "+16.00 GiB" in text.splitlines()[-1]
    one = rendered(replace(searches.COMMITS, sites=searches.SITES[:1]))
    lines = {" ".join(line.split()) for line in one.splitlines()}
    assert "0 B 5.00 GiB 5.00 GiB lines that did not change" in lines
    assert "+2.00 GiB 6.00 GiB 8.00 GiB all requested bytes" in lines


def test_the_one_key_that_changed_is_the_whole_change() -> None:
    change = replace(searches.KEYS.culprit.keys[0], delta=None)
    one = replace(searches.KEYS, candidates=1, culprit=replace(searches.KEYS.culprit, keys=(change,)))
    assert "the whole change" in rendered(one)
    assert "not measured" in rendered(replace(one, candidates=2))
    commit = replace(searches.COMMITS.culprit, keys=(change,), narrowed=None)
    assert "the whole change" in rendered(replace(searches.COMMITS, culprit=commit))


def test_suspects_are_named_with_their_reason_and_a_long_list_is_cut() -> None:
    text = rendered(searches.SUSPECTS)
    assert "ONLY SUSPECTS" in text
    assert "bad, but its parent cannot be tested" in text
    many = replace(searches.SUSPECTS, suspects=searches.SUSPECTS.suspects * 40)
    assert "and 50 more, up to dddddddddd" in rendered(many)
    keys = (SuspectedChange(key="data.seq_length", subject="100 → 300", reason="the deadline passed"),)
    text = rendered(replace(searches.KEYS, outcome="suspects", culprit=None, suspects=keys))
    assert "data.seq_length   100 → 300    the deadline passed" in text


def test_reserved_bytes_beyond_the_card_are_reported_as_those_without_a_limit() -> None:
    assert dict(bisect_sentences.before_and_after(searches.COMMITS))["Reserved"].endswith("(0 B)")
    result = searches.COMMITS.first_bad.result
    whole = replace(result, demand_peak=results.PEAK)
    search = replace(searches.COMMITS, first_bad=replace(searches.COMMITS.first_bad, result=whole))
    assert dict(bisect_sentences.before_and_after(search))["Reserved"].endswith(", on a card without a limit")
    printed_alone = replace(result, backend="command", outcome="fits", peak=replace(result.peak, reserved_bytes=None))
    search = replace(searches.COMMITS, first_bad=replace(searches.COMMITS.first_bad, result=printed_alone))
    assert dict(bisect_sentences.before_and_after(search))["Reserved"].startswith("not known")


def test_what_to_do_says_how_much_to_free_as_the_report_of_a_probe_does() -> None:
    whole = replace(results.PEAK, categories={"activation": 11 * GiB})
    failed = replace(results.CAPACITY, demand_bytes=11 * GiB, demand_peak=whole)
    search = replace(searches.COMMITS, first_bad=replace(searches.COMMITS.first_bad, result=failed))
    assert "What to do: free at least 2.00 GiB of the 11.00 GiB of activations: " in rendered(search)


def test_the_rank_of_either_probe_is_named_where_there_are_several() -> None:
    assert "Rank" not in dict(bisect_sentences.before_and_after(searches.COMMITS))
    search = of_ranks(searches.COMMITS, (1, 1))
    assert dict(bisect_sentences.before_and_after(search))["Rank"] == "1 of 2, the worst measured"
    assert "Rank" in rendered(search)
    search = of_ranks(searches.COMMITS, (1, 0))
    assert dict(bisect_sentences.before_and_after(search))["Rank"] == "1 of 2 → 0 of 2, the worst measured"


def of_ranks(search: BisectResult, ranks: tuple[int, int]) -> BisectResult:
    """Return ``search`` as one of a world of two: the ranks of the last good and the first bad probe."""
    each = tuple(RankSummary(rank=rank, outcome="fits", peak=None, margin_bytes=None) for rank in range(2))
    good, bad = (
        replace(evidence, result=replace(evidence.result, rank=rank, world_size=2, ranks=each))
        for evidence, rank in zip((search.last_good, search.first_bad), ranks, strict=True)
    )
    return replace(search, last_good=good, first_bad=bad)


def test_merges_and_paths_in_the_count_of_commits() -> None:
    result = replace(searches.COMMITS, candidates=20, paths=("src",))
    said = "20 commits (12 of them on the line of first parents, 9 of those touch the chosen paths and change"
    assert said in bisect_sentences.search_text(result)
    step = replace(searches.COMMITS.steps[1], merge=searches.MIDDLE)
    assert bisect_sentences.step_text(step) == "dddddddddd keep the logits (merged by bbbbbbbbbb)"


def test_long_subjects_of_steps_are_cut_at_their_end() -> None:
    long = replace(searches.COMMITS.steps[1], label="keep " + "all of the logits " * 9, commits=1, merge=None)
    text = " ".join(rendered(replace(searches.COMMITS, steps=(searches.COMMITS.steps[0], long))).split())
    assert "dddddddddd keep all of the logits all of the" in text
    assert re.search(r"(all|of|the|logits) …", text)


def test_the_steps_lead_from_good_to_bad() -> None:
    text = rendered(searches.STEPS)
    table = text.split("Steps; they sum to the difference of the ends\n")[1].split("4 commits in 1 range")[0]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[0] == "Requested Overhead Reserved Came with Mostly"
    assert lines[2].startswith("7.00 GiB good end")
    assert lines[3].startswith("+3.00 GiB -1.00 GiB 9.00 GiB ████████████████ bbbbbbbbbb longer +2.00 GiB temporary, ")
    assert lines[4].startswith("-1.00 GiB 0 B 8.00 GiB ░░░░░░░░ dddddddddd keep the logits")
    assert lines[5].startswith("0 B -4.00 MiB 8.00 GiB ░ smaller differences")
    assert lines[7].startswith("+2.00 GiB -1.00 GiB 8.00 GiB bad end, and the sum")
    assert "4 commits in 1 range with equal ends were not probed" in text, "the other range has no commit inside"
    assert max(len(line) for line in on_terminal(bisect_report(searches.STEPS), 80)) <= 80
    cut = replace(searches.STEPS, waterfall=replace(searches.STEPS.waterfall, is_complete=False))
    assert "The deadline passed before every range" in rendered(cut)


def test_steps_between_two_good_ends_are_the_answer() -> None:
    both_good = replace(searches.STEPS, outcome="no_culprit", message="the bad end is good: 8 GiB", culprit=None)
    out = rendered(both_good)
    assert "2 STEPS FOUND" in out
    none = replace(both_good, steps=both_good.steps[2:])
    assert bisect_sentences.heading(none) == "NO STEP FOUND", "smaller differences are no step"
    assert "Both ends are good (bad = out of memory of any kind)." in out
    assert "requested memory changes by +2.00 GiB and overhead by -1.00 GiB" in " ".join(out.split())
    assert "NO CULPRIT" not in out
    assert "the bad end is good" not in out


def test_a_good_bad_end_that_leaks_is_reported() -> None:
    ends = [
        replace(searches.PROBES[0], role="good end"),
        replace(searches.PROBES[0], role="bad end", leak_bytes=16 << 20),
    ]
    found = replace(searches.COMMITS, outcome="no_culprit", culprit=None, waterfall=None, probes=tuple(ends))
    assert bisect_sentences.remedy(found) == (
        "the bad end leaks 16.00 MiB an iteration: --steps names the change, more --iterations make it run out"
    )


def test_a_step_with_which_a_leak_begins_says_so() -> None:
    first, *others = searches.STEPS.steps
    leaking = replace(searches.STEPS, steps=(replace(first, leak_bytes=GiB), *others))
    out = printed(bisect_report(leaking), 200)
    assert out.count("a leak of 1.00 GiB an iteration begins") == 1


def steps_of(*sizes: int) -> list[StepRow]:
    return [
        StepRow(
            commit=f"{number:040}", label="", commits=number + 1, delta=Bytes(requested_bytes=size, reserved_bytes=size)
        )
        for number, size in enumerate(sizes)
    ]


@given(st.lists(st.sampled_from([0, 0, 3, -4]), max_size=12))
def test_folded_steps_still_sum(sizes: list[int]) -> None:
    after = bisect_sentences.folded(steps_of(*sizes))
    total = sum((row.delta for row in steps_of(*sizes)), start=Bytes())
    assert sum((row.delta for row in after), start=Bytes()) == total
    assert sum(row.delta == Bytes() for row in after) <= 1


def with_narrowed(narrowed: Narrowed) -> str:
    assert isinstance(searches.COMMITS.culprit, CommitCulprit)
    culprit = replace(searches.COMMITS.culprit, narrowed=narrowed)
    return folded(bisect_report(replace(searches.COMMITS, culprit=culprit)))


def test_guilty_hunks_come_with_their_bytes_and_the_others_with_their_lines() -> None:
    text = with_narrowed(searches.NARROWED)
    for piece in (
        "At fault: 2 hunks of 41 in this commit",
        "loss.py @@ -8,7 +8,9 @@ def loss(logits): +1.00 GiB +1.00 GiB",
        "model.py @@ -1,3 +1,3 @@ not measured",
        "data.py not at fault",
        "together, or not measured +1.00 GiB +1.00 GiB",
        "all other hunks -1.00 MiB",
        "the commit +2.00 GiB",
    ):
        assert piece in text
    alone = with_narrowed(replace(searches.NARROWED, candidates=1, hunks=searches.NARROWED.hunks[:1]))
    assert "At fault: 1 hunk of 1" in alone
    assert "only together" not in alone
    assert "all other hunks" not in alone
    keys = replace(searches.NARROWED, hunks=(), keys=("data.seq_length", "model.num_layers"), candidates=9)
    assert "At fault, of 9 keys that changed: data.seq_length, model.num_layers" in with_narrowed(keys)
    lumped = replace(searches.NARROWED, lumped=2)
    assert "At fault, but they cannot be separated: 2 hunks of 41" in with_narrowed(lumped)
    three = replace(lumped, hunks=(*lumped.hunks, searches.hunk("more.py")))
    assert "At fault: 3 hunks of 41 in this commit, 2 of which cannot be separated" in with_narrowed(three)


def test_code_against_configuration_and_what_only_both_bring() -> None:
    assert isinstance(searches.KEYS.culprit, KeysCulprit)
    text = folded(
        bisect_report(replace(searches.COMMITS, axis="both", square=searches.SQUARE, also=searches.KEYS.culprit))
    )
    assert "aaaaaaaaaa dddddddddd good 4.00 GiB 4.00 GiB seen 4" in text
    assert "only together +4.00 GiB +4.00 GiB" in text
    assert "4.00 GiB good end, new config" in text, "the steps lead from there"
    assert "Keys of conf/train.yaml that contribute" in text
    assert searches.KEYS.culprit.keys[0].key in text
    unknown = replace(searches.SQUARE, old_new=searches.corner(searches.GOOD, searches.BAD, Answer.UNTESTABLE, None))
    text = rendered(replace(searches.NO_ANSWER, axis="both", square=unknown))
    assert "untestable" in text
    assert "only together" not in text
