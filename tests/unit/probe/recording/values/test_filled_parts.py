"""Tensors that a program fills part by part."""

from __future__ import annotations

import pytest

from tests.unit.probe.recording.values.known import followed


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_boxes_that_are_filled_side_by_side_tell_which_points_they_contain(values: str) -> None:
    said = followed(
        """
boxes = torch.tensor([[4.0, 4.0, 4.0, 2.0], [8.0, 8.0, 2.0, 2.0]], device=d)
corners = torch.empty_like(boxes)
half = boxes[..., 2:] / 2
corners[..., :2] = boxes[..., :2] - half
corners[..., 2:] = boxes[..., :2] + half
grid = torch.arange(10, device=d).type_as(boxes)
strides = grid.new_full((10, 1), torch.tensor([1.0, 2.0], device=d)[0])
points = torch.stack((grid, grid), -1) * strides
inside = (points[:, 0] - corners[:, None, 0]).gt_(0)
inside *= points[:, 1] - corners[:, None, 1] > 0
inside *= corners[:, None, 2] - points[:, 0] > 0
inside *= corners[:, None, 3] - points[:, 1] > 0
say([corners.tolist(), [each.tolist() for each in inside.bool().nonzero(as_tuple=True)], state().unknown_reads])
""",
        values=values,
    )
    assert said == [[[2.0, 3.0, 6.0, 5.0], [7.0, 7.0, 9.0, 9.0]], [[0, 1], [4, 8]], 0]


def test_a_part_that_is_left_out_or_changed_between_stays_unknown() -> None:
    said = followed(
        """
def filled(change):
    numbers = torch.empty(2, 4, device=d)
    numbers[..., :2] = 1
    change(numbers)
    numbers[..., 2:] = torch.tensor(2.0, device=d)
    before = state().unknown_reads
    return [numbers.tolist() == [[1, 1, 2, 2]] * 2, state().unknown_reads - before]
unknown = torch.randn(2, 4, device=d)
half = torch.empty(2, 4, device=d)
half[..., :3] = 1
before = state().unknown_reads
half.tolist()
say([filled(lambda numbers: None), filled(lambda numbers: numbers.add_(unknown)), state().unknown_reads - before])
"""
    )
    assert said == [[True, 0], [False, 1], 2]
