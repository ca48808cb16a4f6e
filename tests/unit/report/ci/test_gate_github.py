"""What GitHub is given: inside its limits however large the suite, on the right line, and with nothing that ends it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from oomscope.gate.night.compare import compare_metric
from oomscope.gate.night.result import CaseResult, Culprit, GateResult, GrownLine, MeasuredCommit, Place
from oomscope.gate.night.status import GRAVITY, GREEN, Status
from oomscope.gate.suite.identity import Home
from oomscope.gate.suite.metrics import EXACT
from oomscope.report.ci.github import annotation_commands, comment, comment_marker, summary
from oomscope.snapshot.sites import Site
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result, night

TABLES = MarkdownIt("commonmark").enable("table")
HOSTILE = "a|b\n::error::x%0A<script>-->`@ada`"
SITE = Site(file="train/step.py", line=20, function="step")


def worse(name: str = "tiny", **fields) -> CaseResult:
    row = compare_metric("peak_requested", GiB, GiB + MiB, EXACT)
    return replace(case_result(1, Status.WORSE, name=name), rows=(row,), line=3, **fields)


def culprit(**fields) -> Culprit:
    grown = (GrownLine(site=SITE, category="activation", delta_bytes=MiB),)
    said = {"commit": "c" * 40, "subject": "Grow", "author": "Ada", "grown": grown, "commands": ("oomscope probe",)}
    return Culprit(outcome="culprit", message="", **said | fields)


def rows(markdown: str) -> list[list[str]]:
    table = re.search(r"<tbody>(.*?)</tbody>", TABLES.render(markdown), re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", each, re.DOTALL) for each in re.findall(r"<tr>(.*?)</tr>", table[1], 16)]


def test_a_case_that_no_commit_explains_is_not_to_be_fixed() -> None:
    message = "no commit explains it: the last green commit is worse now as well"
    text = summary(night(1, worse(culprit=Culprit(outcome="ends_invalid", message=message))))
    assert f"Culprit: {message}" in text
    assert "- worse, and no commit explains it: find what varies or changed; set bands, or accept it:" in text
    assert "oomscope gate calibrate" in text
    assert "fix it" not in text


def test_the_gravest_case_comes_first_and_every_case_is_there() -> None:
    cases = [case_result(1, status, name=str(status)) for status in reversed(GRAVITY)]
    found = rows(summary(night(1, *cases)))
    assert [row[0] for row in found] == [f"<code>{status}</code>" for status in GRAVITY]
    assert all(str(status) in row[1] for status, row in zip(GRAVITY, found, strict=True))


def test_a_red_night_says_what_whose_and_how_to_see_it_again() -> None:
    text = summary(night(1, worse(culprit=culprit()), case_result(1, name="other")))
    assert text.startswith("### ❌ oomscope gate: RED, 2 cases: 1 worse, 1 same\n")
    assert rows(text)[0] == ["<code>tiny</code>", "❌ worse", "peak_requested", "1.00 GiB", "1.00 GiB", "+1.00 MiB"]
    assert "Culprit: `cccccccccc` Grow, by Ada" in text
    assert "| `train/step.py:20 step` | activation | +1.00 MiB |" in text
    assert "```\noomscope probe\n```" in text
    assert "\n`0000000000` Change 1, 2026-01-02 00:00 UTC\n" in text
    assert "- worse: fix it, or accept it:\n\n  ```\n  oomscope gate update" in text
    assert "To measure it again:\n\n```\noomscope gate run /repo/memory.yaml --case tiny\n```" in text


def test_commands_are_for_every_checkout_and_a_shell_reads_them_as_they_were() -> None:
    name = 'it\'s `the` "case" | $x'
    found = replace(night(1, worse(name)), home=Home(path="memory.yaml"), variables={"PYTORCH_ALLOC_CONF": "a:[b c]"})
    blocks = [token.content for token in TABLES.parse(summary(found)) if token.type == "fence"]
    searched, accepted, again = [line for text in blocks for line in text.splitlines()]
    accept = ["update", "memory.yaml", "--case", name, "--accept", name]
    assert shlex.split(accepted) == ["PYTORCH_ALLOC_CONF=a:[b c]", "oomscope", "gate", *accept]
    assert shlex.split(again)[2:] == ["gate", "run", "memory.yaml", "--case", name]
    assert shlex.split(searched) == [*shlex.split(again), "--bisect"]
    said = "Commands are for the root of a checkout of the repository."
    assert said in summary(found)
    assert said not in summary(replace(found, home=None))


@pytest.mark.parametrize("status", GRAVITY)
def test_red_is_never_shown_as_green(status: Status) -> None:
    found = night(1, case_result(1, status))
    assert summary(found).startswith("### ✅") == (found.exit_code == 0)
    assert rows(summary(found))[0][1].startswith("❌") == (status not in GREEN | {Status.UNCONFIRMED})


@pytest.mark.parametrize("count", [1, 12, 1_500])
def test_no_size_of_suite_breaks_the_limits(count: int) -> None:
    long = "é" * 100
    cases = [worse(f"{number}{long}"[:100], reason=HOSTILE * 50, culprit=culprit(subject=long)) for number in range(12)]
    cases += [case_result(1, name=f"case {number} {long}"[:100]) for number in range(count - len(cases))]
    found = night(1, *cases[:count])
    for text, room in ((summary(found), 1024**2), (comment(found), 64_000)):
        assert len(text.encode()) < room
        left = re.search(r"No room here for ([\d,]+) further case", text)
        assert len(rows(text)) + (int(left[1].replace(",", "")) if left else 0) == count
        assert "12 worse" in text or count == 1
        assert "Culprit" in text
    assert len(annotation_commands(found)) <= 10


def test_of_many_red_cases_with_long_names_whole_ones_are_shown_and_the_rest_is_counted() -> None:
    names = [f"{number:03} {'語' * 96}" for number in range(500)]
    found = night(1, *(worse(name, reason=name * 5, culprit=culprit(subject=name)) for name in names))
    for text, room in ((summary(found), 1024**2), (comment(found), 64_000)):
        assert room * 0.9 < len(text.encode()) < room
        left = re.search(r"No room here for (?:(\d+) further cases and )?details of (\d+) cases; the JSON", text)
        assert left is not None
        shown = [row[0] for row in rows(text)]
        assert shown == [f"<code>{name}</code>" for name in names[: 500 - int(left[1] or 0)]]
        assert text.count("<details>") == text.count("</details>\n") == 500 - int(left[2])
        assert text.count("```") % 2 == 0
    assert comment(found).startswith(f"{comment_marker(found)}\n")
    assert len(annotation_commands(found)) == 10


def test_the_comment_can_be_found_again() -> None:
    first, second = night(1, worse()), night(2)
    marker = comment_marker(first)
    assert marker == "<!-- oomscope gate: memory.yaml -->"
    assert comment(first).partition("\n")[0] == comment(second).partition("\n")[0] == marker
    odd = replace(first, home=Home(path="ci/a-->b--c\n.yaml"))
    assert comment_marker(odd) == "<!-- oomscope gate: ci/a-b-c-.yaml -->"


def test_an_annotation_stands_on_the_line_that_the_case_is_about() -> None:
    place = Place(path="code/train/step.py", line=20)
    found = night(1, worse(culprit=culprit(), place=place), replace(case_result(1, Status.WARN), line=7))
    assert annotation_commands(found) == [
        (
            "::error file=code/train/step.py,line=20,title=oomscope gate%3A tiny::worse: peak_requested 1.00 GiB, "
            "expected 1.00 GiB (+1.00 MiB; 1074790400 and 1073741824); cccccccccc Grow, by Ada"
        ),
        "::warning file=memory.yaml,line=7,title=oomscope gate%3A tiny::warn",
    ]


def test_annotations_without_room_are_counted_under_the_gravest_of_them() -> None:
    warned = [case_result(1, Status.WARN, name=f"warned {number}") for number in range(12)]
    assert annotation_commands(night(1, *warned))[-1].startswith("::warning title=oomscope gate::3 further cases")
    failed = [case_result(1, Status.UNTESTABLE, name=f"failed {number}") for number in range(12)]
    levels = [line.split(" ")[0] for line in annotation_commands(night(1, *warned[:1], *failed))]
    assert levels == ["::error"] * 10


def test_what_is_only_better_fails_a_strict_night_in_every_form() -> None:
    strict = replace(night(1, *(case_result(1, status, name=str(status)) for status in GREEN)), strict=True)
    (first, second) = annotation_commands(strict)
    assert first.startswith("::error file=memory.yaml,line=1,title=oomscope gate%3A better::better")
    assert second.startswith("::warning")
    assert [row[1] for row in rows(summary(strict))] == ["⚠️ warn", "❌ better", "✅ same"]


@settings(max_examples=60)
@given(st.text(max_size=30) | st.just(HOSTILE))
def test_no_text_ends_a_command_or_begins_another(text: str) -> None:
    place = Place(path=text or "x", line=1)
    case = worse(text or "x", reason=text, place=place, culprit=culprit(subject=text, grown=()))
    (command,) = annotation_commands(night(1, case))
    assert command.splitlines() == [command]
    assert re.fullmatch(r"::error file=[^:,]*,line=\d+,title=[^:,]*::.*", command)
    assert not re.search(r"%(?!25|0A|0D|3A|2C)", command)


@given(st.text(max_size=40) | st.sampled_from([HOSTILE, "`<script>"]))
def test_any_text_keeps_the_table_whole(text: str) -> None:
    case = replace(worse("x"), name=text or "x", reason=text, notes=(text,), culprit=culprit(subject=text, author=text))
    case = replace(case, standing=MeasuredCommit(commit=text, subject=text), culprit=replace(case.culprit, commit=text))
    alone: GateResult = night(1, case)
    assert "<script" not in TABLES.render(summary(alone))
    found: GateResult = night(1, case, case_result(1, name="last"))
    shown = summary(found)
    assert rows(shown)[-1][0] == "<code>last</code>"
    assert "<script" not in TABLES.render(shown)
