"""Sizes that depend on a mask: the host counts where the card holds it."""

from __future__ import annotations

import pytest
import torch

from tests.unit.virtual.on_card import on_card

BEGIN = """
from oomscope.probe.recording.known_integers import counts_are_known
from oomscope.probe.recording.known_integers import integers_are_followed
d = 'cuda'
labels = torch.tensor([[-100, 5, 6, -100], [7, -100, -100, -100]], device=d)
"""
pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


def counted(script: str, **settings: object) -> object:
    """Run a script on the card with counts known; return what it said."""
    lines = "".join(f"    {line}\n" for line in script.strip().splitlines())
    return on_card(f"{BEGIN}with integers_are_followed(), counts_are_known():\n{lines}", preamble="torch", **settings)


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_a_mask_of_copied_labels_selects_as_on_a_real_card(values: str) -> None:
    said = counted(
        """
mask = labels != -100
hidden = torch.randn(2, 4, 16, device=d, requires_grad=True)
kept = hidden[mask]
torch.zeros(2, 4, 16, device=d).masked_scatter(mask.unsqueeze(-1), kept).sum().backward()
rows, columns = torch.where(mask)
places = mask.nonzero()
say([list(kept.shape), list(torch.masked_select(labels, mask).shape), rows.tolist(), columns.tolist(),
     places.tolist(), state().unknown_reads])
leave()
""",
        values=values,
    )
    assert said == [[3, 16], [3], [0, 0, 1], [1, 2, 0], [[0, 1], [0, 2], [1, 0]], 0]


def test_a_mask_of_computed_numbers_stays_unknown() -> None:
    said = counted(
        """
random = torch.randn(8, device=d)
shape = list(random[random > 0].shape)
say([shape, state().unknown_reads])
"""
    )
    assert said == [[0], 1]


def test_it_is_gone_afterwards() -> None:
    said = on_card(
        BEGIN
        + """
with counts_are_known():
    inside = list(labels[labels > 0].shape)
say([inside, list(torch.ones(8, device=d)[torch.ones(8, device=d) > 0].shape)])
""",
        preamble="torch",
        values="zeros",
    )
    assert said == [[0], [0]], "nothing follows the comparison, whose result is unknown"
