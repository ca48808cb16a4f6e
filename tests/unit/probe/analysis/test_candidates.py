"""Which allocator settings are run after a failure by fragmentation."""

from __future__ import annotations

import pytest

from oomscope.probe.analysis.cures import EXPANDABLE, first_candidates, further_candidates
from oomscope.snapshot.replay.fixes import Rules, merged
from oomscope.units import GiB, MiB


def rules(conf: str = "", torch_version: str = "2.15") -> Rules:
    return Rules(conf=conf, torch_version=torch_version)


def further(conf: str = "", *, largest: int = 4 * GiB, has_fraction: bool = False, torch: str = "2.15") -> list[str]:
    return list(further_candidates(rules(conf, torch), largest_request_bytes=largest, has_fraction=has_fraction))


def test_expandable_segments_come_first_then_what_a_replay_proposed():
    assert first_candidates(rules(), ("max_split_size_mb:64", EXPANDABLE)) == (EXPANDABLE, "max_split_size_mb:64")


def test_what_is_in_force_already_is_no_candidate():
    assert first_candidates(rules(EXPANDABLE), ("max_split_size_mb:64",)) == ("max_split_size_mb:64",)
    assert "expandable_segments:True,large_segment_size_mb:12" in further(EXPANDABLE)
    assert "expandable_segments:True,large_segment_size_mb:12" not in further(f"{EXPANDABLE},large_segment_size_mb:12")


def test_a_run_with_expandable_segments_is_tried_without():
    assert "expandable_segments:False" in further(EXPANDABLE)
    assert "expandable_segments:False" not in further()


def test_a_split_size_that_no_request_reaches_is_left_out():
    assert {"max_split_size_mb:20", "max_split_size_mb:64"} < set(further(largest=100 * MiB))
    assert not {"max_split_size_mb:256", "max_split_size_mb:1024"} & set(further(largest=100 * MiB))


def test_garbage_collection_needs_a_fraction():
    assert not any("garbage_collection" in name for name in further())
    assert any("garbage_collection" in name for name in further(has_fraction=True))


@pytest.mark.parametrize("torch", ["2.11", "2.13", "2.15"])
@pytest.mark.parametrize("conf", ["", EXPANDABLE, "max_split_size_mb:64", "roundup_power2_divisions:[256:1,512:2]"])
def test_every_candidate_is_another_configuration_that_torch_knows(conf: str, torch: str):
    names = [*first_candidates(rules(conf, torch), ()), *further(conf, torch=torch, has_fraction=True)]
    known = [rules(merged(conf, name), torch).settings() for name in names]
    assert rules(conf, torch).settings() not in known
    assert len(set(map(repr, known))) == len(names)


def test_a_key_that_this_torch_does_not_know_is_left_out():
    assert not any("large_segment_size_mb" in name for name in further(torch="2.10"))
    assert further(torch="2.10")
