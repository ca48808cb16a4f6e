"""What is kept comes back, and what cannot be trusted is as good as absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.run.cache import ResultCache, is_repeatable
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.verdict_types import VerdictKind
from tests.unit.bisect.probe_results import error, fits, oom

KEY = {"tree": "abc", "job": {"rank": 0, "limit_bytes": None}, "list": (1, 2)}


class Kept:
    """A cache that remembers its warnings."""

    def __init__(self, directory: Path) -> None:
        self.warnings: list[str] = []
        self.directory = directory
        self.cache = ResultCache(directory, self.warnings.append)

    @property
    def file(self) -> Path:
        (path,) = self.directory.glob("??/*.json")
        return path


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "results")


@pytest.mark.parametrize("result", [fits(700), oom(demand=1500), error("import"), error("untestable")])
def test_what_is_kept_comes_back(kept: Kept, result: ProbeResult) -> None:
    assert kept.cache.get(KEY) is None
    kept.cache.put(KEY, result)
    assert kept.cache.get(KEY) == result
    assert kept.cache.get({**KEY, "tree": "abd"}) is None
    assert kept.warnings == []
    assert [path.suffix for path in kept.file.parent.iterdir()] == [".json"], "no unfinished file is left"


@pytest.mark.parametrize("kind", ["timeout", "killed", "crash", "unfit"])
def test_what_may_be_the_machines_fault_is_not_kept(kept: Kept, kind: str) -> None:
    result = error(kind)  # type: ignore[arg-type]
    assert not is_repeatable(result)
    kept.cache.put(KEY, result)
    assert kept.cache.get(KEY) is None


@pytest.mark.parametrize("kind", ["host", "outside"])
def test_memory_that_the_machine_refused_is_not_kept(kept: Kept, kind: VerdictKind) -> None:
    kept.cache.put(KEY, oom(kind))
    assert kept.cache.get(KEY) is None
    kept.cache.put(KEY, oom("fragmentation"))
    assert kept.cache.get(KEY) == oom("fragmentation")


def test_an_oom_that_others_on_the_card_had_a_part_in_is_not_kept() -> None:
    foreign = oom("capacity", tags=("foreign",))
    assert is_repeatable(foreign), "on virtual the others are part of the job"
    assert not is_repeatable(replace(foreign, backend="cuda"))
    assert is_repeatable(replace(oom(), backend="cuda"))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"key": 1}', b'{"key": {}, "result": {"outcome": "fits"}}']
)
def test_a_corrupted_entry_is_ignored_with_a_warning(kept: Kept, content: bytes) -> None:
    kept.cache.put(KEY, fits(1))
    path = kept.file
    path.write_bytes(content)
    assert kept.cache.get(KEY) is None
    assert len(kept.warnings) == 1
    assert str(path) in kept.warnings[0]
    kept.cache.put(KEY, fits(2))
    assert kept.cache.get(KEY) == fits(2)
