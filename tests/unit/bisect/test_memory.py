from __future__ import annotations

from oomscope.bisect.run.cache import Kept
from tests.unit.bisect.results import fits


def test_remarks_stay_with_an_answer() -> None:
    kept = Kept(answer=fits(5), remarks=("a", "b"))
    assert Kept.from_json(kept.to_json()) == kept
