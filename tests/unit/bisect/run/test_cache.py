"""What is kept comes back, and what cannot be trusted is as good as absent."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.run.cache import ResultCache
from oomscope.bisect.run.identity import packages_of
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import error, fits, oom

KEY = {"target": {"kind": "harness"}, "tree": "abc", "job": {"rank": 0, "limit_bytes": None}, "list": (1, 2)}


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


@pytest.mark.parametrize("result", [fits(700), oom(demand=1500)])
def test_what_is_kept_comes_back(kept: Kept, result: ProbeResult) -> None:
    assert kept.cache.get(KEY) is None
    kept.cache.put(KEY, result)
    assert kept.cache.get(KEY) == result
    assert kept.cache.get({**KEY, "tree": "abd"}) is None
    assert kept.warnings == []
    assert [path.suffix for path in kept.file.parent.iterdir()] == [".json"], "no unfinished file is left"


@pytest.mark.parametrize("kind", ["import", "setup", "step", "exit", "nothing", "untestable"])
def test_a_failure_is_kept_of_a_configuration_alone(kept: Kept, kind: str) -> None:
    """What the user's own code missed, a file or a network, may be there again."""
    bundled = {**KEY, "target": {"kind": "bundled"}}
    for key, known in ((KEY, None), (bundled, error(kind))):
        kept.cache.put(key, error(kind))
        assert kept.cache.get(key) == known


def test_a_result_holds_as_long_as_the_files_outside_the_checkout_that_it_was_made_with(
    kept: Kept, tmp_path: Path
) -> None:
    small, large, missing = (tmp_path / name for name in ("batch.json", "tokens.bin", "override.json"))
    small.write_text('{"batch": 8}')
    large.write_bytes(bytes(1 << 20))
    result = replace(fits(700), files_outside=tuple(map(str, (small, large, missing))))

    def is_known() -> bool:
        is_there = kept.cache.get(KEY) == result
        kept.cache.put(KEY, result)
        return is_there

    assert [is_known(), is_known()] == [False, True]
    os.utime(small, ns=(0, 0))
    assert is_known(), "a small file counts by its content"
    small.write_text('{"batch": 9}')
    assert [is_known(), is_known()] == [False, True]
    os.utime(large, ns=(0, 0))
    assert [is_known(), is_known()] == [False, True]
    missing.touch()
    assert [is_known(), is_known()] == [False, True]
    small.unlink()
    assert [is_known(), is_known()] == [False, True]
    assert kept.warnings == []


FOREIGN = oom("capacity", tags=("foreign",))


@pytest.mark.parametrize(
    "result",
    [
        *map(error, ("timeout", "killed", "crash", "unfit")),
        *map(oom, ("host", "outside")),
        replace(fits(700), files_outside=None),
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


def test_a_result_of_another_python_holds_as_long_as_its_packages_do(kept: Kept, tmp_path: Path) -> None:
    """Which Python runs a program is known once it ran, so its packages are no part of the key."""
    installed = tmp_path / "library-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: library\nVersion: 1.0\n")
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\necho '{json.dumps([str(tmp_path)])}'\n")
    interpreter.chmod(0o755)
    key, result = {**KEY, "target": {"kind": "program"}}, replace(fits(700), interpreter=str(interpreter))
    kept.cache.put(key, result)
    assert kept.cache.get(key) == result
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: library\nVersion: 2.0\n")
    packages_of.cache_clear()  # a further search is another process
    assert kept.cache.get(key) is None
    kept.cache.put(key, result)
    interpreter.unlink()
    packages_of.cache_clear()
    assert kept.cache.get(key) is None
    kept.cache.put(key, result)
    assert kept.cache.get(key) is None, "what cannot be asked twice has not the same packages"


@pytest.mark.parametrize("interpreter", [None, ".venv/bin/python"])
def test_a_program_whose_python_is_not_known_is_not_kept(kept: Kept, interpreter: str | None) -> None:
    """Or lay in the clone, where each commit may install something else."""
    key = {**KEY, "target": {"kind": "program"}}
    kept.cache.put(key, replace(error("import"), interpreter=interpreter))
    assert kept.cache.get(key) is None


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
