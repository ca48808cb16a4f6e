from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.doctor.allocator_check import allocator_checks
from oomscope.doctor.check import State

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def rows(**environment: str) -> list[tuple[State, str]]:
    return [(check.state, check.found) for check in allocator_checks(environment, "2.13.0+cpu")]


def test_defaults() -> None:
    assert rows(HOME="/root") == [(State.OK, "the defaults: no variable is set")]


@pytest.mark.parametrize("name", [OLD, NEW])
def test_one_variable(name: str) -> None:
    assert rows(**{name: "expandable_segments:True"}) == [(State.OK, f"{name}=expandable_segments:True")]


def test_of_two_variables_one_is_ignored() -> None:
    found = rows(**{NEW: "expandable_segments:True", OLD: "max_split_size_mb:64"})
    assert found == [(State.OK, f"{OLD}=max_split_size_mb:64"), (State.NOTE, f"{NEW} is ignored")]


def test_an_empty_variable_hides_the_other() -> None:
    found = rows(**{NEW: "expandable_segments:True", OLD: ""})
    assert found == [(State.OK, f"the defaults: {OLD} is empty"), (State.NOTE, f"{NEW} is ignored")]


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("expandable_segment:True", "column 1: Unrecognized key 'expandable_segment'"),
        ("max_split_size_mb:1", "too small"),
        ("backend:cudaMallocAsync", "cannot be modelled"),
    ],
)
def test_what_a_probe_would_refuse(conf: str, said: str) -> None:
    (check,) = allocator_checks({NEW: conf}, "2.13")
    assert check.state is State.FAILS
    assert said in check.found
    assert check.disables
    assert check.remedy


def test_keys_are_those_of_the_installed_torch() -> None:
    conf = {NEW: "large_segment_size_mb:32"}
    assert [check.state for check in allocator_checks(conf, "2.11.0")] == [State.OK]
    assert [check.state for check in allocator_checks(conf, "2.9.0")] == [State.FAILS]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONFIG", "PYTORCH_HIP_ALLOC_CONF", "pytorch_alloc_conf"])
def test_a_name_that_torch_does_not_know(name: str) -> None:
    assert rows(**{name: "expandable_segments:True"})[1:] == [(State.NOTE, f"{name} is ignored")]


def test_settings_without_effect() -> None:
    assert [state for state, _ in rows(**{NEW: "garbage_collection_threshold:0.8"})] == [State.OK, State.NOTE]
    both = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5"
    assert [state for state, _ in rows(**{NEW: both})] == [State.OK]
    assert rows(PYTORCH_NO_CUDA_MEMORY_CACHING="1")[1] == (State.NOTE, "PYTORCH_NO_CUDA_MEMORY_CACHING is set")


@given(st.dictionaries(st.sampled_from([OLD, NEW, "PYTORCH_ALLOC", "X"]), st.text(max_size=30)))
def test_any_environment_is_answered_for(environment: dict[str, str]) -> None:
    first, *rest = allocator_checks(environment, "2.13")
    assert first.state in {State.OK, State.FAILS}
    assert all(check.disables and check.remedy for check in (first, *rest) if check.state is not State.OK)
