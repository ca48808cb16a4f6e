from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.bisect.changes.environment import EnvironmentDeltas
from oomscope.bisect.journal.inputs import Surroundings, changed_inputs, inputs_of, plain
from oomscope.bisect.requests import CommitRequest, ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.run.places import Places
from oomscope.bisect.targets.subjects import ConfigInRepo, HarnessFile
from oomscope.bisect.vcs.ranges import FileRange, RevisionRange
from tests.unit.bisect.worlds import SETTINGS

LAYER = EnvironmentDeltas(low={"SETTING": "hunter2"}, high={"SETTING": "hunter3"}, good="a.env", bad="b.env")


@pytest.fixture
def request_of_code(tmp_path: Path) -> EnvironmentRequest:
    (tmp_path / "harness.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text("")
    subject = HarnessFile(path=tmp_path / "harness.py", settings=SETTINGS)
    return EnvironmentRequest(
        repo=tmp_path, revision="main", subject=subject, layers=(LAYER,), places=Places(tmp_path / "state")
    )


def bundled() -> CommitRequest:
    return CommitRequest(
        repo=Path(),
        range=RevisionRange(good="a", bad="b"),
        subject=ConfigInRepo(path="a.yaml"),
        bad=Bad.parse("requested>1GiB"),
    )


def test_the_harness_and_what_it_imports_are_inputs(request_of_code: EnvironmentRequest, tmp_path: Path) -> None:
    before = inputs_of(request_of_code)
    assert [Path(name).name for name in before] == ["harness.py", "beside.py", "a.env..b.env"]
    (tmp_path / "beside.py").write_text("x = 1\n")
    assert changed_inputs(before, inputs_of(request_of_code)) == [str(tmp_path / "beside.py")]
    (tmp_path / "beside.py").unlink()
    assert changed_inputs(before, inputs_of(request_of_code)) == [str(tmp_path / "beside.py")]


def test_the_values_of_layers_are_inputs_by_their_digest(request_of_code: EnvironmentRequest) -> None:
    other = EnvironmentDeltas(low={"SETTING": "hunter2"}, high={"SETTING": "hunter4"}, good="a.env", bad="b.env")
    changed = replace(request_of_code, layers=(other,))
    assert changed_inputs(inputs_of(request_of_code), inputs_of(changed)) == ["a.env..b.env"]
    assert "hunter" not in json.dumps([plain(request_of_code), inputs_of(request_of_code)])


def test_how_it_runs_is_no_input(request_of_code: EnvironmentRequest, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    other = replace(request_of_code, jobs=4, deadline_s=5.0, use_cache=False, places=Places(tmp_path))
    assert inputs_of(other) == inputs_of(request_of_code)
    assert plain(other) == plain(request_of_code)


def test_two_files_are_inputs(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("good.yaml", "bad.yaml")]
    for file in files:
        file.write_text("x")
    assert list(inputs_of(ConfigRequest(range=FileRange(good=files[0], bad=files[1])))) == [str(file) for file in files]


def test_a_request_is_written_so_that_people_can_read_it() -> None:
    document = json.loads(json.dumps(plain(bundled())))
    assert document["range"] == {"good": "a", "bad": "b"}
    assert document["bad"] == {"name": "requested", "threshold": 1 << 30, "written": "1GiB"}
    assert document["subject"]["path"] == "a.yaml"


def test_only_what_the_target_sees_surrounds_it(request_of_code: EnvironmentRequest) -> None:
    variables = {"BATCH": "8", "TERM": "dumb", "GIT_DIR": "/x", "CUDA_MODULE_LOADING": "LAZY"}
    seen, empty = (Surroundings.here(request_of_code, each) for each in (variables, {}))
    assert {"BATCH", "CUDA_MODULE_LOADING"} <= set(seen.variables)
    assert not {"TERM", "GIT_DIR"} & set(seen.variables)
    assert seen.changes_since(empty.to_json()) == ["env.CUDA_MODULE_LOADING", "BATCH", "CUDA_MODULE_LOADING"]
    to_bundled = Surroundings.here(bundled(), variables)
    assert to_bundled.changes_since(Surroundings.here(bundled(), {}).to_json()) == ["env.CUDA_MODULE_LOADING"]


def test_what_changed_is_named(request_of_code: EnvironmentRequest) -> None:
    now = Surroundings.here(request_of_code, {"BATCH": "8"})
    before = json.loads(json.dumps(now.to_json()))
    assert now.changes_since(before) == []
    for changed, words in (
        (replace(now, versions={**now.versions, "torch": "1.0"}), ["torch"]),
        (replace(now, versions={**now.versions, "sources": "x"}), ["oomscope's own code"]),
        (replace(now, packages="x"), ["the installed packages"]),
        (replace(now, gpus=("another",)), ["the GPUs or their driver"]),
        (replace(now, environment="x"), ["a variable"]),
        (replace(now, variables={}), sorted(now.variables)),
    ):
        assert changed.changes_since(before) == words
