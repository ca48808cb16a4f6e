"""A night for GitHub: the summary of a step, the comment on a pull request, and annotations on lines of code.

Sources: "Workflow commands for GitHub Actions" (job summaries hold 1 MiB a step; commands and how they are escaped) and
the REST API of issue comments (65,536 characters). Of annotations of one level a step shows the first ten.
"""

from __future__ import annotations

from typing import Final

from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import GRAVITY, Tone
from oomscope.printable import printable
from oomscope.report import gate_sentences
from oomscope.report.bisect_sentences import shortened
from oomscope.report.ci.markdown import night_markdown
from oomscope.report.gate_commands import place_of, suite_path
from oomscope.report.sentences import count
from oomscope.units import KiB, MiB

SUMMARY_ROOM: Final = MiB - KiB
"""Bytes of the summary of a step."""
COMMENT_ROOM: Final = 63_000
"""Bytes, so that characters are fewer however many bytes each has."""
MOST_ANNOTATIONS: Final = 10
_LONGEST: Final = 1000
"""Characters of a message."""
_DATA: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY: Final = _DATA | {":": "%3A", ",": "%2C"}


def summary(night: GateResult, room: int = SUMMARY_ROOM) -> str:
    """Return the summary of the step in at most ``room`` bytes; empty where nothing of use has room."""
    return night_markdown(night, room)


def comment(night: GateResult) -> str:
    """Return the comment, whose first line is the same every night of the suite, so that it can be found again."""
    marker = comment_marker(night)
    return f"{marker}\n{night_markdown(night, COMMENT_ROOM - len(marker.encode()) - 1)}"


def comment_marker(night: GateResult) -> str:
    """Return the first line of the comment of this suite, which nobody sees."""
    plain = "".join(char if char.isalnum() or char in "/._" else "-" for char in suite_path(night))
    while "--" in plain:  # would end what is hidden
        plain = plain.replace("--", "-")
    return f"<!-- oomscope gate: {plain[:_LONGEST]} -->"


def annotation_commands(night: GateResult) -> list[str]:
    """Return workflow commands, gravest case first, at most ten; the last one says how many cases have none."""
    told = [case for case in night.cases if night.ruling_of(case).tone is not Tone.GOOD]
    told.sort(key=lambda case: (night.ruling_of(case).passes, GRAVITY.index(case.status)))
    shown = told if len(told) <= MOST_ANNOTATIONS else told[: MOST_ANNOTATIONS - 1]
    commands = [_annotation(case, night) for case in shown]
    if len(shown) < len(told):
        text = f"{count(len(told) - len(shown), 'further case')} not as expected: see the summary"
        commands.append(_command(_level(told[len(shown)], night), {"title": "oomscope gate"}, text))
    return commands


def _annotation(case: CaseResult, night: GateResult) -> str:
    place = place_of(case, night)
    where = {"file": place.path, "line": str(place.line), "title": f"oomscope gate: {case.name}"}
    return _command(_level(case, night), where, shortened(gate_sentences.case_text(case), _LONGEST))


def _level(case: CaseResult, night: GateResult) -> str:
    return "warning" if night.ruling_of(case).passes else "error"


def _command(level: str, properties: dict[str, str], message: str) -> str:
    given = ",".join(f"{name}={_escaped(value, _PROPERTY)}" for name, value in properties.items())
    return f"::{level} {given}::{_escaped(message, _DATA)}"


def _escaped(text: str, escapes: dict[str, str]) -> str:
    """Return ``text`` in which nothing ends the command or a property of it; %, which begins escapes, goes first."""
    shown = printable(text).replace("\t", " ")
    for char, escape in escapes.items():
        shown = shown.replace(char, escape)
    return shown
