"""Choices of routers on a virtual card."""

from __future__ import annotations

import pytest
import torch

from tests.unit.probe.recording.values.known import followed

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


EVEN_NOTE = (
    "choices (topk, argmax, multinomial) at a.py:1, a.py:2, b.py:3 and elsewhere count as even, each entry as often as "
    "any other: where a size or a loop depends on them, a real run may need more memory"
)


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_choices_among_few_entries_of_unknown_scores_are_even(values: str) -> None:
    said = followed(
        """
from oomscope.probe.recording.values.choices import choices_are_assumed
notes, lines = [], iter(["a.py:1", "a.py:2", "a.py:1", "b.py:3", "c.py:4"])
with choices_are_assumed(notes.append, lambda: next(lines, None)):
    scores = torch.randn(6, 4, device=d)
    rows, columns, best = scores.topk(2).indices, scores.t().topk(2, 0).indices, scores.argmax(-1, keepdim=True)
    scores.argmax(-1)
    share = torch.bincount(rows.flatten(), minlength=4)
    known = torch.tensor([[5, 1, 9, 3], [2, 8, 1, 0]], device=d).topk(1).indices
    drawn = scores.softmax(-1).multinomial(1)
    words, whole, single = torch.randn(8, 5000, device=d).argmax(-1), scores.argmax(), scores[:1].argmax(1)
say([rows.tolist(), columns.t().tolist(), best.flatten().tolist(), share.tolist(), known.tolist(), len(notes),
     notes[0],
     drawn.flatten().tolist(), [unknown(each) > 0 for each in (words, whole, single)]])
""",
        values=values,
    )
    rows = [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1], [2, 3]]
    assert said == [
        rows,
        rows,
        [0, 1, 2, 3, 0, 1],
        [3, 3, 3, 3],
        [[2], [1]],
        1,
        EVEN_NOTE,
        [0, 1, 2, 3, 0, 1],
        [True, True, True],
    ]


@pytest.mark.parametrize(("values", "token", "action"), [("zeros", 1250, 0), ("larger", 1251, 1), ("largest", 1252, 0)])
def test_other_draws_are_unknown_values_and_tokens_end_no_sequence(values: str, token: int, action: int) -> None:
    said = followed(
        """
from oomscope.probe.recording.values.choices import DRAWN_NOTE, choices_are_assumed
notes, before = [], state().unknown_reads
with choices_are_assumed(notes.append, lambda: None):
    tokens = torch.randn(3, 5000, device=d).softmax(-1).multinomial(2)
    read = state().unknown_reads - before
    action = torch.randn(1, 2, device=d).softmax(-1).multinomial(1)
    every = torch.randn(1, 5000, device=d).softmax(-1).multinomial(5000)
    ends = torch.isin(tokens, torch.tensor([0, 4999], device=d)).any()
say([tokens.tolist(), read, action.item(), len(every.unique()), bool(ends), notes == [DRAWN_NOTE]])
""",
        values=values,
    )
    assert said == [[[token + 2 * row, token + 2 * row + 1] for row in range(3)], 1, action, 5000, False, True]
