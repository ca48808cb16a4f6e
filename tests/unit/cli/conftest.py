"""What the tests of several commands stand on."""

from __future__ import annotations

import pytest

from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.result import BisectResult
from tests.unit.report import searches


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[CommitRequest]:
    """The requests that a search was given; it probes nothing."""
    given: list[CommitRequest] = []

    def search(request: CommitRequest, **means: object) -> BisectResult:
        given.append(request)
        return searches.STEPS

    monkeypatch.setattr("oomscope.bisect.commit_bisect.bisect_commits", search)
    return given
