"""Results that one known operand decides."""

from __future__ import annotations

import pytest
import torch

from tests.unit.probe.recording.values.known import followed

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_one_operand_decides_what_another_cannot_change(values: str) -> None:
    said = followed(
        """
yes, no, both = (torch.tensor(each, device=d) for each in ([True, True], [False, False], [True, False]))
def coin(): return torch.randn(2, device=d) > 0
def number(): return (torch.rand(2, device=d) * 9).long()
changed = [coin() for _ in range(6)]
changed[0] |= yes
changed[1] &= no
changed[2].logical_or_(yes)
changed[3].bitwise_and_(no)
row = torch.stack([coin(), coin()])
row[0] |= yes
known = yes.clone()
known |= coin()
decided = [coin() | yes, yes | coin(), no & coin(), coin().logical_or(yes), torch.logical_and(no, number()),
           torch.bitwise_or(coin(), yes), number() & ~yes, coin() | True, coin()[:, None] | yes, *changed[:4], known]
before = state().unknown_reads
said = [[each.tolist() for each in decided], state().unknown_reads - before]
undecided = [coin() | no, coin() & yes, coin() | both, number() | 1, coin() ^ yes, number() | number().fill_(1), row]
say([*said, [unknown(each) > 0 for each in undecided]])
""",
        values=values,
    )
    yes, no = [True, True], [False, False]
    decided = [yes, yes, no, yes, no, yes, [0, 0], yes, [yes, yes], yes, no, yes, no, yes]
    assert said == [decided, 0, [True] * 7]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_a_loop_over_unknown_tokens_ends_at_its_longest_length(values: str) -> None:
    said = followed(
        """
tokens, unfinished = torch.ones(2, 4, dtype=torch.long, device=d), torch.ones(2, dtype=torch.long, device=d)
finished = False
while not finished:
    tokens = torch.cat([tokens, torch.randn(2, 5000, device=d).argmax(-1)[:, None]], 1)
    done = torch.full((2,), False, device=d, dtype=torch.bool)
    done = done | torch.full((2,), tokens.shape[1] >= 12, device=d, dtype=torch.bool)
    done = done | torch.isin(tokens[:, -1], torch.tensor([2], device=d))
    unfinished = unfinished & ~done
    finished = unfinished.max() == 0
    assert tokens.shape[1] <= 12
say(tokens.shape[1])
""",
        values=values,
    )
    assert said == 12 or (values == "larger" and said == 5)
