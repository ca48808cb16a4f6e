"""A card that torch has no kernels for is told from one that it has, by the rules of CUDA binaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.virtual.cards import CARDS, card_is_supported

TORCH_2_15 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")


@pytest.mark.parametrize(
    ("name", "arch_list", "runs"),
    [
        ("v100-32gb", TORCH_2_15, False),
        ("t4", TORCH_2_15, True),
        ("rtx4090", TORCH_2_15, True),
        ("rtx4090", ("sm_80",), True),
        ("rtx4090", ("sm_90",), False),
        ("a100-80gb", ("sm_86",), False),
        ("a100-80gb", ("sm_75",), False),
        ("a100-80gb", ("compute_75",), True),
        ("a100-80gb", ("compute_90",), False),
        ("h100-80gb", ("sm_90a",), True),
        ("rtx5090", ("sm_100",), False),
        ("b200", ("sm_100f",), True),
        ("rtx4090", ("sm_86a",), False),
        ("h100-80gb", (), False),
        ("h100-80gb", ("gfx942",), False),
    ],
)
def test_a_binary_runs_on_its_major_capability_from_its_minor_on(
    name: str, arch_list: tuple[str, ...], runs: bool
) -> None:
    assert card_is_supported(CARDS[name], arch_list) is runs


@given(st.lists(st.sampled_from(TORCH_2_15)), st.sampled_from(TORCH_2_15), st.sampled_from(sorted(CARDS)))
def test_more_binaries_never_support_less(arch_list: list[str], more: str, name: str) -> None:
    assert card_is_supported(CARDS[name], [*arch_list, more]) >= card_is_supported(CARDS[name], arch_list)
