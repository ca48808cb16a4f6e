"""What a night says to do next."""

from __future__ import annotations

import pytest

from oomscope.gate.status import Status
from oomscope.report.gate_words import next_steps
from tests.unit.gate.nights import case_result, night


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.SAME])
def test_whatever_is_not_as_expected_has_a_next_step(status: Status) -> None:
    assert next_steps(night(1, case_result(1, status)))


def test_what_is_as_expected_has_none() -> None:
    assert next_steps(night(1)) == []
