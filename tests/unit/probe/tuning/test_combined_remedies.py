from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.tuning.combined_remedies import laid_upon, overrides_together, title
from oomscope.probe.tuning.remedies import Remedy

VALUES = st.dictionaries(st.sampled_from(["a.x", "a.y", "b.x"]), st.sampled_from(["1", "2"]), min_size=1)
CHANGES = st.lists(VALUES.map(lambda values: tuple(f"{key}={value}" for key, value in values.items())), max_size=6)


def change(number: int, overrides: tuple[str, ...]) -> Remedy:
    return Remedy(family="offload", name=f"change {number}", overrides=overrides)


@given(CHANGES)
def test_every_change_of_a_sum_is_in_effect(all_overrides: list[tuple[str, ...]]) -> None:
    chosen: tuple[Remedy, ...] = ()
    for number, overrides in enumerate(all_overrides):
        chosen = laid_upon(chosen, change(number, overrides))
        assert chosen[-1].name == f"change {number}"
    together = overrides_together(chosen)
    keys = [override.partition("=")[0] for override in together]
    assert len(set(keys)) == len(keys)
    assert all(set(each.overrides) <= set(together) for each in chosen)


def test_a_change_takes_the_place_of_what_it_undoes() -> None:
    selective = change(1, ("recompute.recompute_granularity=selective", "recompute.recompute_modules=[mlp]"))
    allocator, layers = change(2, ("allocator.conf=x",)), change(3, ("recompute.recompute_granularity=null",))
    assert laid_upon((selective, allocator), layers) == (allocator, layers)
    assert title((allocator, layers)) == "change 2 + change 3"
