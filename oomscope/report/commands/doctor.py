"""A machine's check-up: what it is fit for, one row a part, then what to do about the rest."""

from __future__ import annotations

from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.report import parts

_MARKS = {State.OK: "+", State.NOTE: "!", State.MISSING: "-", State.FAILS: "x"}
_TONES = {State.OK: "good", State.NOTE: "warn", State.MISSING: "warn", State.FAILS: "bad"}


def doctor_report(diagnosis: Diagnosis) -> list[parts.Part]:
    """Return the whole report."""
    remarks = [(check.part, _remark(check)) for check in diagnosis.checks if check.state is not State.OK]
    rows = [
        (check.part, parts.Cell(text=f"{_MARKS[check.state]} {check.state}", tone=_TONES[check.state]), check.found)
        for check in diagnosis.checks
    ]
    return [
        _status(diagnosis),
        parts.BLANK,
        parts.Table(columns=parts.columns("Part", "State", "What there is"), rows=rows),
        *((parts.Heading(text="Remarks and remedies"), parts.Facts(rows=remarks)) if remarks else ()),
    ]


def _status(diagnosis: Diagnosis) -> parts.Line:
    if diagnosis.fails:
        failing = ", ".join(dict.fromkeys(check.part for check in diagnosis.fails))
        return parts.status(f"UNFIT: nothing can be measured here ({failing})", "bad")
    if not diagnosis.backends:
        return parts.status("UNFIT: no GPU, and no virtual card can be loaded", "bad")
    return parts.status(f"FIT: probes run here on {' and '.join(diagnosis.backends)}", "good")


def _remark(check: Check) -> str:
    meaning = f"{check.found}: {check.disables}" if check.state is State.NOTE else f"disables {check.disables}"
    return f"{meaning}; {check.remedy}" if check.disables else check.remedy
