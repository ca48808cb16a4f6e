"""A night of the gate for GitHub: the summary of a step, the comment on a pull request, and annotations.

Summary and comment are Markdown, gravest cases first, so that what has no room is what matters least; both say what
they left out. Sources: "Workflow commands for GitHub Actions" (job summaries hold 1 MiB a step; commands and how they
are escaped) and the REST API of issue comments (65,536 characters). A step shows the first ten annotations of a level.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from textwrap import indent
from typing import Final

from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import CaseResult, Culprit, GateResult
from oomscope.gate.night.status import GRAVITY, GREEN, Status, Tone
from oomscope.printable import printable
from oomscope.report.commands import gate_sentences
from oomscope.report.commands.gate_sentences import Commands, place_of, suite_path
from oomscope.report.sentences import count, date_text, short_hash, shortened
from oomscope.units import KiB, MiB, format_size

SUMMARY_ROOM: Final = MiB - KiB
"""Bytes of the summary of a step."""
COMMENT_ROOM: Final = 63_000
"""Bytes of a comment; it has no more characters than bytes."""
MOST_ANNOTATIONS: Final = 10
_LONGEST_MESSAGE: Final = 1000
"""Characters of a message."""
_DATA: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY: Final = _DATA | {":": "%3A", ",": "%2C"}


def comment(night: GateResult) -> str:
    """Return the comment, whose first line is the same every night of the suite, so that it can be found again."""
    marker = comment_marker(night)
    return f"{marker}\n{summary(night, COMMENT_ROOM - len(marker.encode()) - 1)}"


def comment_marker(night: GateResult) -> str:
    """Return the first line of the comment of this suite, which is not displayed."""
    plain = "".join(char if char.isalnum() or char in "/._" else "-" for char in suite_path(night))
    while "--" in plain:  # would end the hidden comment
        plain = plain.replace("--", "-")
    return f"<!-- oomscope gate: {plain[:_LONGEST_MESSAGE]} -->"


def annotation_commands(night: GateResult) -> list[str]:
    """Return workflow commands, gravest case first, at most ten; the last one counts the cases without any."""
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
    return _command(_level(case, night), where, shortened(gate_sentences.case_text(case), _LONGEST_MESSAGE))


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


_PUNCTUATION = re.compile(r"[\\`*_\[\]|~$]|^[#=]|^[+-](?=[\s+-]|$)")
"""Characters that may begin markup in a line, or a heading, list or rule at its start; a backslash before any of these
stands for the character (CommonMark 0.31, 2.4)."""
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b"})
"""Tags, entities, and names of people, whom a comment would notify (a space without width ends the name)."""


def escaped(text: str) -> str:
    """Return ``text`` as a piece of a line that says just that."""
    line = " ".join(printable(text).split())
    return _NUMBERED.sub(r"\1\\\2", _PUNCTUATION.sub(r"\\\g<0>", line.translate(_ENTITIES)))


def code(text: str) -> str:
    """Return ``text`` as a code span, in which nothing is markup; also in a table."""
    line = " ".join(printable(text).split())
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    room = " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{room}{line}{room}{fence}".replace("|", "\\|")


def block(lines: Iterable[str]) -> str:
    """Return ``lines`` as a block of code."""
    text = "\n".join(printable(line) for line in lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}\n"


def row(cells: Sequence[str]) -> str:
    """Return a row of a table; the cells are Markdown already."""
    return f"| {' | '.join(cells)} |\n"


def head(*columns: str) -> str:
    """Return the head of a table; a name that begins with ``>`` is of a column of numbers."""
    rule = ["--:" if name.startswith(">") else ":--" for name in columns]
    return row([name.removeprefix(">") for name in columns]) + row(rule)


def fitted(text: str, blocks: Iterable[str], room: int) -> tuple[str, int]:
    """Append as many of ``blocks`` to ``text`` as keep it within ``room`` bytes, and return how many were left out.

    A block is taken whole or not at all, and none after the first that is left out.
    """
    kept, used, waiting = [text], len(text.encode()), list(blocks)
    for number, each in enumerate(waiting):
        used += len(each.encode())
        if used > room:
            return "".join(kept), len(waiting) - number
        kept.append(each)
    return "".join(kept), 0


_SIGNS: Final = {Tone.GOOD: "✅", Tone.WARN: "⚠️", Tone.BAD: "❌"}
_LONGEST: Final = 400
"""Characters of a sentence from elsewhere."""
_LINES_SHOWN: Final = 5
_TAIL: Final = 200
"""Bytes kept for the sentence about what was left out."""


def summary(night: GateResult, room: int = SUMMARY_ROOM) -> str:
    """Return the night in at most ``room`` bytes, half of it for the table; where there is no room, nothing."""
    cases = sorted(night.cases, key=lambda case: GRAVITY.index(case.status))
    columns = head("Case", "Verdict", "Metric", ">Expected", ">Measured", ">Difference")
    text = f"### {_heading(night)}\n\n{_about(night)}\n\n{columns}"
    if len(text.encode()) + _TAIL > room:
        return ""
    commands = Commands.of(night)
    details = [_details(case, commands) for case in cases if case.status not in GREEN or any(_odd_rows(case))]
    for_rows = room // 2 if details else room
    text, rows_left = fitted(text, (_case_row(case, night) for case in cases), for_rows - _TAIL)
    text, steps_left = fitted(f"{text}\n", _next(night, commands), room - _TAIL)
    text, details_left = fitted(text, details, room - _TAIL)
    if rows_left or steps_left or details_left:
        left = [count(rows_left, "further case")] if rows_left else []
        left += ["what to do next"] if steps_left else []
        left += [f"details of {count(details_left, 'case')}"] if details_left else []
        *others, last = left
        named = f"{', '.join(others)} and {last}" if others else last
        text += f"\nNo room here for {named}; the JSON document has all.\n"
    return text


def _heading(night: GateResult) -> str:
    tone = Tone.GOOD if night.ruling.passes else Tone.BAD
    return f"{_SIGNS[tone]} oomscope gate: {escaped(gate_sentences.heading(night))}"


def _about(night: GateResult) -> str:
    """Return of what and when the night is: a comment is replaced by that of the next one."""
    commits = {case.standing.commit: case.standing for case in night.cases if case.standing is not None}
    parts = [f"{code(short_hash(one.commit))} {escaped(shortened(one.subject, _LONGEST))}" for one in commits.values()]
    return ", ".join([*(parts if len(parts) == 1 else []), date_text(night.started)])


def _case_row(case: CaseResult, night: GateResult) -> str:
    name, verdict = code(case.name), f"{_SIGNS[night.ruling_of(case).tone]} {case.status}"
    if case.ran_out:
        return row([name, verdict, "", "fits", "out of memory", ""])
    measured = case.decisive or next(iter(case.rows), None)
    if measured is None:
        return row([name, verdict, "", "", "", ""])
    return row([name, verdict, *(escaped(text) for text in gate_sentences.row_texts(measured))])


def _next(night: GateResult, commands: Commands) -> Iterator[str]:
    steps = gate_sentences.next_steps(night, commands)
    for step in steps:
        text = f"- {escaped(step.text)}"
        yield f"{text}:\n\n{indent(block(step.commands), '  ')}\n" if step.commands else f"{text}\n"
    if night.home is not None and steps:
        yield f"{gate_sentences.FROM_THE_ROOT}\n" if steps[-1].commands else f"\n{gate_sentences.FROM_THE_ROOT}\n"


def _details(case: CaseResult, commands: Commands) -> str:
    parts = [f"\n<details><summary>{escaped(case.name)}: {case.status}</summary>\n\n"]
    if case.reason:
        parts.append(f"{escaped(shortened(case.reason, _LONGEST))}\n\n")
    rows = [
        row([code(metric.name), str(metric.status), *(escaped(text) for text in gate_sentences.row_texts(metric)[1:])])
        for metric in _odd_rows(case)
    ]
    if rows:
        parts += [head("Metric", "Verdict", ">Expected", ">Measured", ">Difference"), *rows, "\n"]
    if case.culprit is not None:
        parts.append(_culprit(case.culprit))
    verdict = case.probe.verdict if case.probe is not None and case.outcome == "oom" else None
    told = case.culprit.verdict if case.culprit is not None else ""
    if verdict is not None and verdict.headline != told:
        parts.append(f"**{escaped(verdict.kind)}**: {escaped(shortened(verdict.headline, _LONGEST))}\n\n")
    parts += [f"- {escaped(shortened(note, _LONGEST))}\n" for note in case.notes[:_LINES_SHOWN]]
    parts.append("\n" if case.notes else "")
    parts.append(f"To measure it again:\n\n{block([commands.run([case.name])])}\n")
    return "".join([*parts, "</details>\n"])


def _odd_rows(case: CaseResult) -> list[MetricRow]:
    return [metric for metric in case.rows if metric.status is not Status.SAME]


def _culprit(culprit: Culprit) -> str:
    if not culprit.commit:
        return f"Culprit: {escaped(shortened(culprit.message, _LONGEST))}\n\n"
    subject, author = shortened(culprit.subject, _LONGEST), shortened(culprit.author, _LONGEST)
    parts = [f"Culprit: {code(short_hash(culprit.commit))} {escaped(subject)}, by {escaped(author)}\n\n"]
    if culprit.grown:
        parts.append(head("Line", "Category", ">Requested bytes"))
        parts += [
            row([code(line.site.brief), escaped(line.category), format_size(line.delta_bytes, signed=True)])
            for line in culprit.grown[:_LINES_SHOWN]
        ]
        parts.append("\n")
    if share := gate_sentences.share_text(culprit):
        parts.append(f"It {share}.\n\n")
    if culprit.verdict:
        parts.append(f"{escaped(shortened(culprit.verdict, _LONGEST))}\n\n")
    if culprit.commands and sum(map(len, culprit.commands)) <= _LINES_SHOWN * _LONGEST:
        parts.append(f"To see the commit again:\n\n{block(culprit.commands)}\n")
    return "".join(parts)
