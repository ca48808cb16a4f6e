"""The name of a measurement inside its search: what is asked counts, what surrounds the search does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.bisect.identity import Content, Machine, key_of
from oomscope.bisect.memory import Kept, asked_of
from oomscope.probe.job import ProbeJob
from tests.unit.bisect.test_identity import BUNDLED, CONTENT, HARNESS, MACHINE


def asked(
    job: ProbeJob = HARNESS, content: Content = CONTENT, machine: Machine = MACHINE, environment: dict | None = None
) -> str:
    return asked_of(key_of(job, content, machine, environment or {}))


def test_surroundings_have_no_part_in_it() -> None:
    elsewhere = Machine(versions={"python": "3.13"}, packages="x", gpus=("another",))
    assert asked(machine=elsewhere, environment={"A": "b"}) == asked()
    assert asked(content=replace(CONTENT, harness="0" * 64)) == asked()
    assert asked(BUNDLED, machine=elsewhere) == asked(BUNDLED)


@pytest.mark.parametrize("job", [HARNESS, BUNDLED])
def test_what_is_asked_counts(job: ProbeJob) -> None:
    variable = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    others = [
        asked(replace(job, rank=1)),
        asked(replace(job, limit_bytes=5)),
        asked(replace(job, environment=variable)),
    ]
    assert len({asked(job), *others}) == 4


def test_the_tree_and_the_packages_count() -> None:
    changed = [asked(content=replace(CONTENT, tree="2" * 40)), asked(content=replace(CONTENT, packages="p"))]
    assert len({asked(), *changed}) == 3


def test_a_part_of_a_key_that_is_added_later_counts() -> None:
    key = key_of(HARNESS, CONTENT, MACHINE, {})
    assert asked_of({**key, "repeat": 1}) != asked_of(key)


def test_no_environment_without_variables_is_dropped() -> None:
    key = key_of(BUNDLED, CONTENT, MACHINE, {})
    changed = {**key, "target": {**key["target"], "environment": "another"}}
    assert asked_of(changed) != asked_of(key)


def test_remarks_stay_with_an_answer() -> None:
    from tests.unit.bisect.results import fits

    kept = Kept(answer=fits(5), remarks=("a", "b"))
    assert Kept.from_json(kept.to_json()) == kept
