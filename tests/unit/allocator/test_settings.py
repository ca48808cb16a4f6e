"""PYTORCH_ALLOC_CONF is parsed as the given torch parses it, and refused with the column where torch refuses it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.allocator import AllocatorSettings
from oomscope.allocator.alloc_conf import merged
from oomscope.allocator.engine.constants import TIE_ADDRESS, TIE_BLOCK, TIE_SEGMENT, UNLIMITED
from oomscope.errors import AllocatorConfError
from oomscope.units import GiB, MiB


def test_every_field():
    settings = AllocatorSettings.parse(
        " expandable_segments : True, large_segment_size_mb:64,max_split_size_mb:128,max_non_split_rounding_mb:90,"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,"
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],backend:native,"
    )
    assert settings.expandable_segments
    assert settings.throw_on_cudamalloc_oom
    assert settings.large_segment_size == 64 * MiB
    assert settings.max_split_size == 128 * MiB
    assert settings.max_non_split_rounding == 90 * MiB
    assert settings.garbage_collection_threshold == 0.8
    assert settings.per_process_memory_fraction == 0.5
    assert settings.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5


@pytest.mark.parametrize(
    ("conf", "addition", "whole"),
    [
        ("", "expandable_segments:True", "expandable_segments:True"),
        ("expandable_segments:False", "expandable_segments:True", "expandable_segments:True"),
        (
            "roundup_power2_divisions:[256:1,>:2],max_split_size_mb:64",
            "expandable_segments:True",
            "roundup_power2_divisions:[256:1,>:2],max_split_size_mb:64,expandable_segments:True",
        ),
        ("roundup_power2_divisions:[256:1,>:2]", "roundup_power2_divisions:8", "roundup_power2_divisions:8"),
        ("a:1, b:2", "", "a:1,b:2"),
    ],
)
def test_a_setting_replaces_the_one_of_its_key(conf, addition, whole):
    assert merged(conf, addition) == whole


@pytest.mark.parametrize(
    ("conf", "version", "divisions"),
    [
        ("roundup_power2_divisions:4", "2.13", (4,) * 16),
        ("roundup_power2_divisions:[4:2]", "2.13", (2, 2, 2) + (0,) * 13),
        ("roundup_power2_divisions:[16:4,256:2]", "2.13", (4,) * 5 + (0, 0, 0, 2) + (0,) * 7),
        ("roundup_power2_divisions:[64:8,>:2]", "2.13", (8,) * 7 + (2,) * 9),
        ("roundup_power2_divisions:[64:8,>:2]", "2.10", (8,) * 7 + (2,) * 9),
        ("roundup_power2_divisions:[64:8,>:2]", "2.9", (8,) * 6 + (2,) * 10),
        ("roundup_power2_divisions:[65536:2]", "2.13", (2,) * 16),
        ("roundup_power2_divisions:[]", "2.13", (0,) * 16),
    ],
)
def test_divisions(conf, version, divisions):
    assert AllocatorSettings.parse(conf, torch_version=version).roundup_power2_divisions == divisions


@pytest.mark.parametrize(
    ("version", "rule"),
    [("2.6.0", TIE_ADDRESS), ("2.11", TIE_ADDRESS), ("2.12.1+cu130", TIE_BLOCK), ("2.13", TIE_SEGMENT), ("3.0", 2)],
)
def test_ties_depend_on_the_version(version, rule):
    assert AllocatorSettings.parse("", torch_version=version).tie_rule == rule


def test_the_limit_is_truncated_before_2_13_and_rounded_since():
    total = 7 * GiB + 1
    old, new = (AllocatorSettings.parse("", torch_version=version) for version in ("2.12", "2.13"))
    assert old.limit_bytes(0.3, total) == int(0.3 * total)
    assert new.limit_bytes(0.3, total) == round(0.3 * total)
    assert old.limit_bytes(0.3, total) != new.limit_bytes(0.3, total)
    assert new.limit_bytes(1.0, total) is None
    assert AllocatorSettings.parse("", torch_version="2.9").limit_bytes(1.0, total) == total
    assert new.limit_bytes(None, total) is None


@pytest.mark.parametrize(
    ("conf", "version", "column", "words"),
    [
        ("max_split_size_mb:19", "2.13", 19, "max_split_size_mb too small, must be >= 20"),
        ("max_split_size_mb:20", "2.9", 19, "must be > 20"),
        ("large_segment_size_mb:64,max_split_size_mb:63", "2.13", 44, "must be >= 64"),
        ("max_split_size_mb:63,large_segment_size_mb:64", "2.13", 19, "must be >= 64"),
        ("max_split_size_mb:abc", "2.13", 19, "expected a number but got 'abc'"),
        ("max_split_size_mb", "2.13", 18, "expected ':', but the settings end here"),
        ("max_split_size_mb:", "2.13", 19, "the settings end here"),
        ("large_segment_size_mb:10", "2.13", 23, "must be > 10 MB"),
        ("expandable_segments:true", "2.13", 21, "Expected 'True' or 'False' but got 'true'"),
        ("expandable_segments:True;max_split_size_mb:20", "2.13", 21, "Expected 'True' or 'False'"),
        ("expandable_segment:True", "2.13", 1, "did you mean expandable_segments"),
        ("backend:native,,", "2.13", 16, "Unrecognized key ','"),
        ("large_segment_size_mb:64", "2.10", 1, "which torch 2.11 introduced"),
        ("throw_on_cudamalloc_oom:True", "2.11", 1, "which torch 2.12 introduced"),
        ("per_process_memory_fraction:0.5", "2.9", 1, "which torch 2.10 introduced"),
        ("per_process_memory_fraction:1.1", "2.13", 29, "set it in [0.0, 1.0]"),
        ("garbage_collection_threshold:1", "2.13", 30, "set it in (0.0, 1.0)"),
        ("garbage_collection_threshold:x", "2.13", 30, "expected a number"),
        ("roundup_power2_divisions:3", "2.13", 26, "power of 2"),
        ("roundup_power2_divisions:[3:2]", "2.13", 27, "intervals have to be power of 2"),
        ("roundup_power2_divisions:[4:3]", "2.13", 29, "power of 2 or 0"),
        ("roundup_power2_divisions:[4:2", "2.13", 30, "the settings end here"),
        ("roundup_power2_divisions:[4:2 8:4]", "2.13", 29, "power of 2 or 0"),
        ("backend:other", "2.13", 9, "options are native and cudaMallocAsync"),
        ("backend:cudaMallocAsync", "2.13", 9, "cannot be modelled: its pool belongs to the CUDA driver"),
        ("expandable_segments_reserve:0.5", "2.13", 1, "cannot be modelled"),
        ("pinned_num_register_threads:3", "2.13", 29, "power of 2, got 3"),
        ("pinned_num_register_threads:256", "2.13", 29, "less than or equal to 128"),
    ],
)
def test_refused_with_the_column(conf, version, column, words):
    with pytest.raises(AllocatorConfError) as caught:
        AllocatorSettings.parse(conf, torch_version=version)
    assert words in str(caught.value)
    assert f"PYTORCH_ALLOC_CONF, column {column}:" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["", "2", "two.three", "1.13"])
def test_unknown_versions(version):
    with pytest.raises(AllocatorConfError):
        AllocatorSettings.parse("", torch_version=version)


def test_run_time_changes_reset_what_torch_resets():
    start = AllocatorSettings.parse(
        "large_segment_size_mb:64,max_split_size_mb:128,max_non_split_rounding_mb:90,expandable_segments:True,"
        "garbage_collection_threshold:0.8,roundup_power2_divisions:4"
    )
    changed = start.updated("expandable_segments:False")
    assert changed.max_split_size == UNLIMITED
    assert changed.garbage_collection_threshold == 0
    assert changed.roundup_power2_divisions == (0,) * 16
    assert changed.large_segment_size == changed.max_non_split_rounding == 64 * MiB
    assert not changed.expandable_segments
    old = AllocatorSettings.parse("max_non_split_rounding_mb:90", torch_version="2.10")
    assert old.updated("").max_non_split_rounding == 90 * MiB


def test_numbers_are_read_as_cpp_reads_them():
    assert AllocatorSettings.parse("max_split_size_mb:20.9").max_split_size == 20 * MiB
    assert AllocatorSettings.parse("max_split_size_mb:-1").max_split_size == UNLIMITED
    assert AllocatorSettings.parse("garbage_collection_threshold:.5x").garbage_collection_threshold == 0.5


@pytest.mark.parametrize("text", ["nan", "-inf", "Infinity", "NaNs", "1e9"])
def test_what_is_a_number_to_cpp_and_no_share_is_refused_as_torch_refuses_it(text):
    with pytest.raises(AllocatorConfError, match=r"column 30: garbage_collect_threshold is invalid, set it in"):
        AllocatorSettings.parse(f"garbage_collection_threshold:{text}")
    with pytest.raises(AllocatorConfError, match=r"column 29: per_process_memory_fraction is invalid, set it in"):
        AllocatorSettings.parse(f"per_process_memory_fraction:{text}")


NUMBERS = st.sampled_from(["0", "1", "2", "3", "4", "10", "11", "19", "20", "21", "64", "x", "-1", "1.5", "0.5", ""])
PAIRS = st.one_of(
    st.tuples(st.sampled_from(["max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"]), NUMBERS),
    st.tuples(st.just("garbage_collection_threshold"), NUMBERS),
    st.tuples(st.just("expandable_segments"), st.sampled_from(["True", "False", "true", "1", ""])),
    st.tuples(st.just("roundup_power2_divisions"), NUMBERS),
    st.tuples(
        st.just("roundup_power2_divisions"),
        st.lists(st.tuples(st.one_of(NUMBERS, st.just(">")), NUMBERS), max_size=3).map(
            lambda entries: "[" + ",".join(f"{megabytes}:{divisions}" for megabytes, divisions in entries) + "]"
        ),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PAIRS, max_size=3))
def test_accepts_exactly_what_torch_accepts(pairs):
    torch = pytest.importorskip("torch", minversion="2.13", reason="torch 2.13's own parser is the reference")
    set_settings = torch._C._accelerator_setAllocatorSettings
    conf = ",".join(f"{key}:{value}" for key, value in pairs)
    set_settings("large_segment_size_mb:20")
    try:
        set_settings(conf)
    except (RuntimeError, ValueError, IndexError):
        with pytest.raises(AllocatorConfError):
            AllocatorSettings.parse(conf)
    else:
        AllocatorSettings.parse(conf)
    finally:
        set_settings("large_segment_size_mb:20")
