"""Only the chosen class is bad, and only an answered question is good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.search.line import Answer
from oomscope.errors import InputError, UsageError
from oomscope.probe.result import ProbeResult
from oomscope.probe.targets.program.results import Ended, failure_in
from oomscope.units import GiB
from tests.unit.bisect.probe_results import error, fits, oom, peak

GOOD, BAD, UNTESTABLE = Answer.GOOD, Answer.BAD, Answer.UNTESTABLE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("any-oom", Bad()),
        (" Capacity ", Bad(name="capacity")),
        ("fragmentation", Bad(name="fragmentation")),
        ("exit", Bad(name="exit")),
        ("requested>70GiB", Bad(name="requested", threshold=70 * GiB)),
        ("LIVE>70GiB", Bad(name="requested", threshold=70 * GiB)),
        ("reserved > 0.5 GiB", Bad(name="reserved", threshold=GiB // 2)),
    ],
)
def test_what_can_be_asked_for(text: str, expected: Bad) -> None:
    assert Bad.parse(text) == expected
    assert Bad.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", "oom", "requested", "requested<3GiB", "peak>3GiB", "requested>=3GiB", "-h", "host"]
)
def test_what_cannot_is_refused_with_what_can(text: str) -> None:
    with pytest.raises((UsageError, InputError), match=r"any-oom|is not a size"):
        Bad.parse(text)


RAN_THROUGH = ProbeResult(backend="command", outcome="fits")
"""A command that ended with 0, and was asked for no number."""
OOM_BY_WORDS = ProbeResult(backend="command", outcome="oom")
"""One that said that memory ran out, and no more."""
CASES: list[tuple[str, ProbeResult, Answer]] = [
    ("any-oom", fits(900), GOOD),
    ("any-oom", oom("capacity"), BAD),
    ("any-oom", oom("fragmentation"), BAD),
    ("any-oom", oom("outside"), BAD),
    ("any-oom", oom("host"), BAD),
    ("exit", error("exit"), BAD),
    ("exit", error("step"), UNTESTABLE),
    ("exit", oom("capacity"), BAD),
    ("exit", fits(900), GOOD),
    ("any-oom", error("exit"), UNTESTABLE),
    ("any-oom", RAN_THROUGH, GOOD),
    ("exit", RAN_THROUGH, GOOD),
    ("capacity", RAN_THROUGH, UNTESTABLE),
    ("requested>800", RAN_THROUGH, UNTESTABLE),
    ("any-oom", OOM_BY_WORDS, BAD),
    ("capacity", OOM_BY_WORDS, UNTESTABLE),
    ("fragmentation", OOM_BY_WORDS, UNTESTABLE),
    ("requested>800", OOM_BY_WORDS, UNTESTABLE),
    ("any-oom", replace(RAN_THROUGH, backend="virtual"), UNTESTABLE),
    ("capacity", fits(900), GOOD),
    ("capacity", oom("capacity"), BAD),
    # The question is whether the whole run has room; fragmentation hides that unless the demand is known.
    ("capacity", oom("fragmentation", demand=1001), BAD),
    ("capacity", oom("fragmentation", demand=1000), GOOD),
    ("capacity", oom("fragmentation"), UNTESTABLE),
    ("capacity", oom("outside"), UNTESTABLE),
    ("capacity", oom("host", demand=1), UNTESTABLE),
    ("fragmentation", fits(900), GOOD),
    ("fragmentation", oom("fragmentation"), BAD),
    ("fragmentation", oom("capacity"), UNTESTABLE),
    ("fragmentation", oom("outside"), UNTESTABLE),
    ("requested>800", fits(800), GOOD),
    ("requested>800", fits(801), BAD),
    ("requested>800", oom(live=700, requested=200), BAD),
    ("requested>950", oom(live=700, requested=200), UNTESTABLE),
    ("requested>950", oom(live=700, requested=200, demand=950), GOOD),
    ("requested>950", oom(live=700, requested=200, demand=951), BAD),
    ("requested>950", oom("host", live=700, requested=10**6), UNTESTABLE),
    ("reserved>800", fits(10, reserved=800), GOOD),
    ("reserved>800", fits(10, reserved=801), BAD),
    ("reserved>800", fits(10, reserved=800, num_alloc_retries=1, demand_cut=True), UNTESTABLE),
    ("reserved>800", fits(10, reserved=801, num_alloc_retries=1, demand_cut=True), BAD),
    ("requested>800", fits(10, num_alloc_retries=1, demand_cut=True), GOOD),
    ("reserved>800", oom(live=801), BAD),
    ("reserved>800", oom(live=700, demand=700), UNTESTABLE),
    ("reserved>800", oom(live=700, demand=700, demand_peak=peak(700, reserved=801)), BAD),
    ("reserved>800", oom(live=700, demand=700, demand_peak=peak(700, reserved=800)), GOOD),
]


@pytest.mark.parametrize(("text", "result", "answer"), CASES)
def test_the_table(text: str, result: ProbeResult, answer: Answer) -> None:
    judgement = Bad.parse(text).judge(result)
    assert judgement.answer is answer
    assert judgement.reason
    assert "\n" not in judgement.reason


@pytest.mark.parametrize("text", ["any-oom", "capacity", "fragmentation", "requested>1", "reserved>1"])
@pytest.mark.parametrize("kind", ["import", "setup", "step", "untestable", "crash", "timeout", "killed"])
def test_a_failure_that_is_not_of_memory_is_untestable_under_every_class(text: str, kind: str) -> None:
    judgement = Bad.parse(text).judge(error(kind, "No module named 'attn'"))  # type: ignore[arg-type]
    assert judgement.answer is UNTESTABLE
    assert judgement.reason == f"{kind}: No module named 'attn'"


def test_a_program_that_failed_before_it_imported_torch_is_untestable_with_the_last_line_that_it_printed() -> None:
    failure = failure_in(Ended(status=2, killed=False, receipts=(), seconds=1.0))
    assert failure is not None
    said = replace(failure, detail="Loading\n\x1b[1mpython: can't open file 'train.py'\n\n")
    judgement = Bad().judge(ProbeResult(backend="virtual", outcome="error", failure=said))
    assert judgement.reason == f"exit: {failure.message}: \\x1b[1mpython: can't open file 'train.py'"


def test_a_reason_says_how_far_from_the_threshold_a_result_is() -> None:
    bad = Bad.parse("requested>2GiB")
    assert bad.judge(fits(3 * GiB)).reason == "1.00 GiB above 2.00 GiB requested"
    assert bad.judge(fits(GiB)).reason == "1.00 GiB below 2.00 GiB requested"
