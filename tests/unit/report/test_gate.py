"""What a night and the trends of the gate say: statuses, whose commit, and whole commands to go on with."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.gate.ledger.history import trends
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import CaseResult, Culprit, GateResult, MeasuredCommit
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Home
from oomscope.report.commands import gate_history
from oomscope.report.commands.gate_sentences import Commands, Step, culprit_text, heading, next_steps, row_texts
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result, night
from tests.unit.report.printed import on_terminal, printed
from tests.unit.report.test_pages import point


def worse(name: str, metric: str = "peak_requested") -> CaseResult:
    row = MetricRow(name=metric, status=Status.WORSE, expected=1, measured=2)
    return replace(case_result(1, Status.WORSE, name=name), rows=(row,))


def steps(night: GateResult) -> list[Step]:
    return next_steps(night, Commands.of(night))


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.SAME])
def test_whatever_is_not_as_expected_has_a_next_step(status: Status) -> None:
    assert steps(night(1, case_result(1, status)))
    assert steps(night(1)) == []


def test_a_night_that_was_interrupted_says_so_whatever_its_cases_are() -> None:
    assert heading(night(1)) == "GREEN, 1 case: 1 same"
    assert heading(replace(night(1), interrupted=True)) == "NOT GREEN, interrupted, 1 case: 1 same"
    cut_off = night(1, case_result(1), case_result(1, Status.UNMEASURED, name="left"))
    (step,) = steps(replace(cut_off, interrupted=True))
    assert step == Step("interrupted: measure what is left", ("oomscope gate run /repo/memory.yaml --case left",))
    assert steps(cut_off)[0].text.startswith("nothing measured: take the metric out")


def test_what_is_many_is_accepted_one_by_one_and_searched_for_as_a_whole() -> None:
    names = [f"case {number}" for number in range(11)]
    (few,) = steps(night(1, *(worse(name) for name in names[:2])))
    assert few.text == "worse: find the commit, or accept it"
    assert few.commands == (
        "oomscope gate run /repo/memory.yaml --case 'case 0' --case 'case 1' --bisect",
        "oomscope gate update /repo/memory.yaml --case 'case 0' --case 'case 1' --accept 'case 0' --accept 'case 1'",
    )
    (many,) = steps(night(1, *(worse(name) for name in names)))
    assert many.text == "worse: find the commit, or accept it by its name, as this first of 11"
    assert many.commands == (
        "oomscope gate run /repo/memory.yaml --bisect",
        "oomscope gate update /repo/memory.yaml --case 'case 0' --accept 'case 0'",
    )


def test_only_what_the_search_knows_is_searched_for() -> None:
    (both,) = steps(night(1, worse("a"), worse("b", "overhead")))
    assert both.commands[0] == "oomscope gate run /repo/memory.yaml --case a --bisect"
    assert both.commands[1].endswith("--case a --case b --accept a --accept b")
    (alone,) = steps(night(1, worse("b", "overhead")))
    assert alone == Step("worse: fix it, or accept it", (both.commands[1].replace("a --case b --accept a ", "b "),))
    (failed,) = steps(night(1, replace(worse("b", "overhead"), outcome="oom")))
    assert "--bisect" in failed.commands[0]


def test_what_is_better_in_one_metric_and_worse_in_another_is_not_proposed() -> None:
    better = MetricRow(name="peak_reserved", status=Status.BETTER, expected=2, measured=1)
    for status in (Status.WORSE, Status.WARN):
        case = replace(worse("a"), status=status)
        said = [step.text for step in steps(night(1, replace(case, rows=(*case.rows, better))))]
        assert not any("propose" in text for text in said)


@pytest.mark.parametrize(
    ("brought", "said"),
    [
        (512, "brought +512 B of +1.00 MiB: the rest came with other commits"),
        (MiB, "brought +1.00 MiB (1,048,576 B) of +1.00 MiB (1,049,088 B): the rest came with other commits"),
        (MiB + 512, None),
        (None, None),
    ],
)
def test_a_commit_is_not_blamed_for_what_came_before_it(brought: int | None, said: str | None) -> None:
    culprit = Culprit(outcome="culprit", message="", commit="a" * 40, brought=brought, beyond=MiB + 512)
    assert (said in culprit_text(culprit)) if said else ("brought" not in culprit_text(culprit))


@pytest.mark.parametrize(("more", "said"), [(512, "+1.00 MiB (+1,049,088)"), (0, "+1.00 MiB"), (MiB, "+2.00 MiB")])
def test_a_difference_and_a_band_never_read_alike_where_they_are_not(more: int, said: str) -> None:
    row = MetricRow(
        name="peak_requested", status=Status.WORSE, expected=GiB, measured=GiB + MiB + more, warn=0, fail=MiB
    )
    assert row_texts(row)[3] == said


NIGHT = replace(
    night(1),
    suite="/builds/1/ci gate/memory.yaml",
    home=Home(path="ci gate/memory.yaml"),
    baseline="/builds/1/ci gate/memory.baseline.yaml",
)


def test_paths_count_from_the_root_of_a_checkout() -> None:
    commands = Commands.of(NIGHT)
    assert commands.run(["it's"]) == """oomscope gate run 'ci gate/memory.yaml' --case 'it'"'"'s'"""
    assert commands.update(["a"]) == "oomscope gate update 'ci gate/memory.yaml' --case a"
    accepted = commands.update(accept=["a", "b c"])
    assert accepted == "oomscope gate update 'ci gate/memory.yaml' --case a --case 'b c' --accept a --accept 'b c'"
    assert commands.calibrate(["a"]) == "oomscope gate calibrate 'ci gate/memory.yaml' --case a --write"
    anywhere = "oomscope gate run '/builds/1/ci gate/memory.yaml'"
    assert Commands.of(replace(NIGHT, home=None)).run([]) == anywhere
    assert Commands.seen_from(NIGHT, Path("/home/ada")).run([]) == anywhere
    assert Commands.seen_from(NIGHT, Path("/builds/1/ci gate")).run([]) == "oomscope gate run memory.yaml"
    set_ = replace(NIGHT, variables={"PYTORCH_ALLOC_CONF": "a:True,b:[c d]", "NVIDIA_TF32_OVERRIDE": "0"})
    command = Commands.of(set_).run([])
    assert command.startswith("NVIDIA_TF32_OVERRIDE=0 PYTORCH_ALLOC_CONF='a:True,b:[c d]' oomscope gate run ")


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        ("memory.baseline.yaml", ""),
        ("/builds/1/ci gate/other.yaml", " --baseline 'ci gate/other.yaml'"),
        ("/shared/memory.baseline.yaml", " --baseline /shared/memory.baseline.yaml"),
    ],
)
def test_a_baseline_that_lies_elsewhere_is_named(baseline: str, said: str) -> None:
    assert Commands.of(replace(NIGHT, baseline=baseline)).run([]) == f"oomscope gate run 'ci gate/memory.yaml'{said}"


@pytest.mark.parametrize("verb", ["run", "update", "calibrate"])
def test_odd_names_reach_the_suite_which_says_that_it_has_no_such_case(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "-ci").mkdir()
    (tmp_path / "-ci/memory.yaml").write_text("cases: [{name: tiny, preset: gpt-tiny}]\n")
    root = str(tmp_path)
    odd = replace(NIGHT, suite=f"{root}/-ci/memory.yaml", home=Home(path="-ci/memory.yaml"), baseline=f"{root}/b.yaml")
    commands = Commands.of(odd)
    made = {
        "run": commands.run(["-x; $y"], "--bisect"),
        "update": commands.update(accept=["-x; $y"]),
        "calibrate": commands.calibrate(["-x; $y"]),
    }
    program, *words = shlex.split(made[verb])
    assert (program, words[:3]) == ("oomscope", ["gate", verb, "./-ci/memory.yaml"])
    assert run(words) == ExitCode.USAGE
    assert "no case is called '-x; $y'" in capsys.readouterr().err


HOSTILE = MeasuredCommit(commit="c" * 40, subject='<script>alert("x")</script>', dirty=True)


def found():
    cases = [
        case_result(1),
        replace(case_result(2, Status.WORSE, live=GiB + MiB), standing=HOSTILE),
        replace(case_result(3, Status.UNTESTABLE), values={}, key=None, reason="no module"),
    ]
    return trends([point(number, case) for number, case in enumerate(cases, start=1)], "peak_requested")


def test_the_terminal_has_a_row_a_night() -> None:
    lines = printed(gate_history.history_report(found()), 100).splitlines()
    assert lines[0] == "peak_requested of 1 case over 3 nights, the last of 2026-01-03 02:00 UTC"
    at = lines.index("tiny (ci/memory.yaml): peak_requested over 3 nights")
    rows = [line for line in lines[at:] if line.startswith("2026")]
    assert [line.split()[:3] for line in rows[:3]] == [
        ["2026-01-01", "02:00", "same"],
        ["2026-01-02", "02:00", "worse"],
        ["2026-01-03", "02:00", "untestable"],
    ]
    assert "+1.00 MiB" in rows[1]
    assert "cccccccccc* <script>" in rows[1]
    assert lines[at + 1] == "Trend  ██"


@pytest.mark.parametrize("width", [40, 200])
def test_a_remark_is_shown_however_narrow_the_terminal(width: int) -> None:
    reason = "setup: ModuleNotFoundError: No module named 'a_module_of_ours' (train.py:1 in <module>)"
    (trend,) = found()
    broken = replace(trend, entries=(*trend.entries[:2], *(replace(trend.entries[2], reason=reason),) * 2))
    shown = " ".join(" ".join(on_terminal(gate_history.history_report([broken]), width)).split())
    assert shown.count(reason) == 1
    assert "2026-01-03 02:00 to 2026-01-03 02:00" in shown


def test_the_first_lines_say_which_case_grew_by_how_much_when_and_at_which_commit() -> None:
    grown = case_result(2, Status.WORSE, live=GiB + MiB)
    calm, worse = (
        trends(
            [point(at, replace(case, name=name)) for at, case in enumerate((case_result(1), then), start=1)],
            "peak_requested",
        )[0]
        for name, then in (("calm", case_result(2)), ("grown", grown))
    )
    lines = printed(gate_history.history_report([calm, worse]), 160).splitlines()
    grew, stayed = (" ".join(line.split()) for line in lines[3:5])
    assert grew.startswith("grown (ci/memory.yaml) worse 1.00 GiB +1.00 MiB +1.00 MiB on 2026-01-02 02:00: after 0")
    assert stayed == "calm (ci/memory.yaml) same 1.00 GiB 0"


SEARCHED = Culprit(outcome="culprit", message="", commit="e" * 40, subject="Widen", author="Bo")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {}, "after 0000000000, up to 0000000000 Change 2"),
        ({}, {"culprit": SEARCHED}, "eeeeeeeeee Widen, by Bo"),
        ({}, {"standing": None}, "the commit is unknown"),
        ({"standing": None}, {}, "0000000000 Change 2"),
        ({"standing": HOSTILE}, {"standing": HOSTILE}, 'cccccccccc* <script>alert("x")</script>, the commit of the'),
    ],
)
def test_a_step_is_of_the_commit_that_was_found_or_between_two(before, after, said: str) -> None:
    cases = (replace(case_result(1), **before), replace(case_result(2, live=2 * GiB), **after))
    (trend,) = trends([point(at, case) for at, case in enumerate(cases, start=1)], "peak_requested")
    assert f"+1.00 GiB on 2026-01-02 02:00: {said}" in gate_history.step_text(trend)
    (back,) = trends([point(at, case) for at, case in enumerate((*cases, case_result(3)), start=1)], "peak_requested")
    assert "+1.00 GiB on 2026-01-02 02:00, gone since" in gate_history.step_text(back)
    creeping = tuple(replace(entry, band=2 * GiB) for entry in trend.entries)
    assert gate_history.step_text(replace(trend, entries=creeping)) == "none beyond the band that warns"
