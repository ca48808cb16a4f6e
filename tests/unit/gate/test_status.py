"""One ruling makes exit code, word and tone, and all that shows a night shows it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from oomscope.errors import ExitCode
from oomscope.gate.night.result import GateResult
from oomscope.gate.night.status import Status, Tone, ruling
from oomscope.report.ci.github import annotation_commands, night_markdown
from oomscope.report.ci.junit import junit_document
from oomscope.report.gate import gate_report
from oomscope.report.html.pages import night_page
from oomscope.report.text.console import result_console, show
from oomscope.units import MiB
from tests.unit.gate.nights import case_result, night

SIGNS = {Tone.GOOD: "✅", Tone.WARN: "⚠️", Tone.BAD: "❌"}
LEVELS = {Tone.WARN: "warning", Tone.BAD: "error"}


def of(status: Status, *, strict: bool) -> GateResult:
    return replace(night(1, case_result(1, status)), strict=strict)


def printed(found: GateResult) -> str:
    out = io.StringIO()
    show(result_console(out), gate_report(found))
    return out.getvalue()


@pytest.mark.parametrize(
    ("statuses", "word", "tone"),
    [
        ([Status.SAME], "GREEN", Tone.GOOD),
        ([Status.SAME, Status.WARN], "GREEN", Tone.WARN),
        ([Status.UNCONFIRMED], "GREEN", Tone.WARN),
        ([Status.WORSE, Status.WARN], "RED", Tone.BAD),
        ([Status.WORSE, Status.UNFIT], "NOT GREEN", Tone.BAD),
        ([], "NOT GREEN", Tone.BAD),
    ],
)
def test_a_ruling_is_the_gravest_answer(statuses, word, tone) -> None:
    found = ruling(statuses)
    assert (found.word, found.tone, found.passes) == (word, tone, found.exit_code is ExitCode.OK)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("status", Status)
def test_every_form_shows_the_ruling(status: Status, strict: bool) -> None:
    found = of(status, strict=strict)
    come_to, (case,) = found.ruling, found.cases
    assert found.ruling_of(case) == come_to
    assert printed(found).startswith(come_to.word)
    assert f"{SIGNS[come_to.tone]} {status}" in night_markdown(found, MiB)
    assert f'<td class="{come_to.tone}">{status}</td>' in night_page(found)
    assert ((b"<failure" in junit_document(found)) or (b"<error" in junit_document(found))) != come_to.passes
    levels = [command.partition(" ")[0] for command in annotation_commands(found)]
    assert levels == [f"::{level}" for level in [LEVELS.get(come_to.tone)] if level]
