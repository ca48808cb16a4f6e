"""Settings as text, apart and together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.allocator.settings import AllocatorSettings
from oomscope.bisect.changes.environment import apart, join_settings, split_settings

CONF = "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64"


def test_commas_in_brackets_part_nothing() -> None:
    assert split_settings(CONF) == {
        "expandable_segments": "True",
        "roundup_power2_divisions": "[256:1,512:2,>:4]",
        "max_split_size_mb": "64",
    }
    assert split_settings(None) == split_settings("") == split_settings(" , ") == {}


@given(st.permutations(list(split_settings(CONF).items())), st.sampled_from([",", " , "]))
def test_apart_and_together_mean_the_same(settings: list[tuple[str, str]], comma: str) -> None:
    text = comma.join(f"{name}:{value}" for name, value in settings)
    joined = join_settings(split_settings(text))
    meant = AllocatorSettings.parse(CONF)
    assert AllocatorSettings.parse(joined).roundup_power2_divisions == meant.roundup_power2_divisions
    assert AllocatorSettings.parse(joined).max_split_size == meant.max_split_size


def test_a_single_setting_is_not_taken_apart() -> None:
    assert apart("a:1", "a:2") == apart(None, "a:2") == apart("", None) == {}
    assert apart("a:1", "b:2") == {"a": ("1", None), "b": (None, "2")}
