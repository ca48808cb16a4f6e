"""What is kept comes back, and what cannot be trusted is as good as absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.run.cache import ResultCache
from oomscope.probe.result import ProbeResult
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


FOREIGN = oom("capacity", tags=("foreign",))


@pytest.mark.parametrize(
    "result",
    [
        *map(error, ("timeout", "killed", "crash", "unfit")),
        *map(oom, ("host", "outside")),
        replace(FOREIGN, backend="cuda"),
    ],
)
def test_what_may_be_the_machines_fault_is_not_kept(kept: Kept, result: ProbeResult) -> None:
    kept.cache.put(KEY, result)
    assert kept.cache.get(KEY) is None


@pytest.mark.parametrize("result", [oom("fragmentation"), FOREIGN, replace(oom(), backend="cuda")])
def test_an_oom_of_the_job_alone_is_kept(kept: Kept, result: ProbeResult) -> None:
    """On a virtual card others are part of the job."""
    kept.cache.put(KEY, result)
    assert kept.cache.get(KEY) == result


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
