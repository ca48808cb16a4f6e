"""A machine's check-up for the terminal: what it is fit for, one row a part, then what to do about the rest."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.report.text.layout import facts, section, table

_MARKS = {State.OK: "+", State.NOTE: "!", State.MISSING: "-", State.FAILS: "x"}
_STYLES = {State.OK: "green", State.NOTE: "yellow", State.MISSING: "yellow", State.FAILS: "bold red"}


def doctor_report(diagnosis: Diagnosis) -> RenderableType:
    """Return the whole report."""
    rows = table("Part", "State", "What there is")
    for check in diagnosis.checks:
        rows.add_row(check.part, state_text(check.state), check.found)
    parts: list[RenderableType] = [_heading(diagnosis), Text(), rows]
    remarks = [(check.part, _remark(check)) for check in diagnosis.checks if check.state is not State.OK]
    if remarks:
        parts.append(section("Remarks and remedies", facts(remarks)))
    return Group(*parts)


def state_text(state: State) -> Text:
    """Return the mark and the word of ``state``; its colour says nothing more."""
    return Text(f"{_MARKS[state]} {state}", style=_STYLES[state])


def _heading(diagnosis: Diagnosis) -> Text:
    if diagnosis.fails:
        parts = ", ".join(dict.fromkeys(check.part for check in diagnosis.fails))
        return Text(f"UNFIT: nothing can be measured here ({parts})", style="bold red")
    if not diagnosis.backends:
        return Text("UNFIT: no GPU, and no virtual card can be loaded", style="bold red")
    return Text(f"FIT: probes run here on {' and '.join(diagnosis.backends)}", style="bold green")


def _remark(check: Check) -> Text:
    meaning = f"{check.found}: {check.disables}" if check.state is State.NOTE else f"disables {check.disables}"
    return Text(f"{meaning}; {check.remedy}" if check.disables else check.remedy)
