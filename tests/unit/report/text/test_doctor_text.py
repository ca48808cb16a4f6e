from __future__ import annotations

import io

import pytest

from oomscope.doctor.check import Check, Diagnosis, State
from oomscope.report.text.console import result_console, show
from oomscope.report.text.doctor import doctor_report

OK = Check(part="torch", state=State.OK, found="torch 2.13.0+cpu, built without CUDA")
NOTE = Check(
    part="allocator settings",
    state=State.NOTE,
    found="PYTORCH_ALLOC_CONF is ignored",
    disables="torch reads PYTORCH_CUDA_ALLOC_CONF alone where both are set",
    remedy="unset one",
)
MISSING = Check(part="git", state=State.MISSING, found="there is no git", disables="bisect", remedy="install git")
FAILS = Check(
    part="torch", state=State.FAILS, found="not installed", disables="every probe", remedy="pip install torch"
)


def shown(*checks: Check, width: int = 120) -> str:
    file = io.StringIO()
    console = result_console(file)
    console.width = width
    show(console, doctor_report(Diagnosis(checks)))
    return file.getvalue()


def test_the_answer_comes_first() -> None:
    card = Check(part="virtual card", state=State.OK, found="it has all that torch wants")
    assert shown(OK, MISSING, card).startswith("FIT: probes run here on virtual\n")
    assert shown(OK, MISSING).startswith("UNFIT: no GPU, and no virtual card can be loaded\n")
    assert shown(FAILS, MISSING).startswith("UNFIT: nothing can be measured here (torch)\n")


def test_each_state_has_a_word_and_a_mark_without_colour() -> None:
    text = shown(OK, NOTE, MISSING, FAILS)
    assert all(state in text for state in ("+ ok", "! note", "- missing", "x fails"))


def test_what_is_not_well_is_told_with_its_remedy() -> None:
    text = " ".join(shown(OK, NOTE, MISSING).partition("Remarks and remedies")[2].split())
    assert (
        "PYTORCH_ALLOC_CONF is ignored: torch reads PYTORCH_CUDA_ALLOC_CONF alone where both are set; unset one" in text
    )
    assert "git disables bisect; install git" in text
    assert "torch 2.13.0" not in text
    assert "Remarks and remedies" not in shown(OK)


@pytest.mark.parametrize("width", [60, 80])
def test_it_keeps_to_a_narrow_terminal(width: int) -> None:
    table = shown(OK, NOTE, MISSING, width=width).partition("Remarks and remedies")[0]
    assert max(len(line) for line in table.splitlines()) <= width
