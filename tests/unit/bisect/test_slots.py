"""Checkouts stand at a place of their slot, or each at a new one that is gone after its probe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oomscope.bisect.run.runner import Slots
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob


def job(repo: Path) -> ProbeJob:
    return ProbeJob(target=HarnessTarget(harness="/h.py", repo=str(repo)))


def repo_of(given: ProbeJob) -> Path:
    assert isinstance(given.target, HarnessTarget)
    return Path(given.target.repo)


def test_a_place_that_is_used_again_stays(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for slot, name in ((0, "clone"), (1, "clone-2"), (1, "clone-2")):
        with Slots().lent(job(clone), slot) as placed:
            assert repo_of(placed) == tmp_path / name
            repo_of(placed).mkdir(exist_ok=True)
    assert (tmp_path / "clone-2").is_dir()


def test_a_new_place_is_never_one_that_was(tmp_path: Path) -> None:
    slots, seen = Slots(are_reused=False), set[Path]()
    for _ in range(3):
        with slots.lent(job(tmp_path / "clone"), 0) as one, slots.lent(job(tmp_path / "clone"), 1) as other:
            for placed in (one, other):
                repo_of(placed).mkdir()
                seen.add(repo_of(placed))
    assert len(seen) == 6
    assert not list(tmp_path.iterdir())


def test_without_a_checkout_there_is_nothing_to_place() -> None:
    bundled = replace(job(Path("/clone")), target=BundledTarget(config={}))
    with Slots(are_reused=False).lent(bundled, 3) as placed:
        assert placed == bundled
