"""Integers that the host computes for a virtual card: whatever asks them gets what a real card would say."""

from __future__ import annotations

import pytest
import torch

from tests.unit.probe.recording.values.known import answered, followed
from tests.unit.virtual.on_card import on_card

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


def test_positions_and_masks_are_what_they_would_be() -> None:
    said = followed(
        """before = state().unknown_read_bytes
positions = torch.arange(64, device=d).unsqueeze(0).expand(4, -1)
torch.nn.functional.embedding(positions, torch.randn(64, 8, device=d))
steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
packed = (steps != 1).cumsum(-1)
one_sequence = bool((packed[:, -1] == 0).all())
mask = torch.zeros(4, 8, dtype=torch.bool, device=d)
mask[1, 2] = True
mask[3] = True
torch.randn(4, 8, device=d).masked_fill(mask, 0.0)
hidden = mask.sum().item()
counter = torch.tensor([1, 2, 3], device=d)
counter += 1
counter[0] = 7
say([one_sequence, hidden, counter.tolist(), state().unknown_read_bytes - before])""",
        values="larger",
    )
    assert said == [True, 9, [7, 3, 4], 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_labels_are_known_after_backward_until_they_are_changed(values: str) -> None:
    said = followed(
        """labels = torch.tensor([2, 0, 6, 1]).to(d)
changed = torch.tensor([2, 0, 6, 1]).cuda()
logits = torch.randn(4, 7, device=d, requires_grad=True)
for each in (labels, changed):
    torch.nn.functional.cross_entropy(logits, each).backward()
changed.random_(0, 7)
before = state().unknown_reads
with answers_are_known():
    chosen = logits[labels > 1]
rows = torch.nn.functional.one_hot(labels)
say([list(chosen.shape), list(rows.shape), state().unknown_reads - before, unknown(changed > 1)])""",
        values=values,
    )
    assert said == [[2, 7], [4, 7], 0, 4]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_classes_of_copied_labels_are_counted(values: str) -> None:
    said = followed(
        """labels = torch.tensor([2, 0, 6, 1]).to(d)
before = state().unknown_reads
rows = torch.nn.functional.one_hot(labels)
of_ten = torch.nn.functional.one_hot(input=labels, num_classes=10)
large = torch.nn.functional.one_hot(labels, 1 << 21)
reads = state().unknown_reads - before
say([list(rows.shape), rows.argmax(1).tolist(), of_ten.sum().item(), reads, unknown(large) > 0])""",
        values=values,
    )
    assert said == [[4, 7], [2, 0, 6, 1], 4, 0, True]


def test_what_is_not_known_stays_unknown() -> None:
    said = followed(
        """random = torch.randint(0, 9, (8,), device=d)
chosen = torch.arange(8, device=d) + random
numbers = torch.randn(1000, device=d) + torch.arange(1000, device=d)
changed = torch.arange(8, device=d)
torch.add(random, 1, out=changed)
say([unknown(random), unknown(chosen), unknown(numbers), unknown(changed), unknown(torch.arange(8, device=d))])"""
    )
    assert said == [64, 64, 4000, 64, 0]


def test_scripted_functions_are_compiled_as_ever() -> None:
    said = followed("say(list(torch.jit.script(joined)(torch.arange(2, device=d)).shape))")
    assert said == [5]


def test_functions_are_as_before_when_it_ends() -> None:
    said = on_card(
        """
        from oomscope.probe.recording.values.known_integers import integers_are_followed
        before = [torch.arange, torch.Tensor.add, torch.bool, torch.Tensor.__eq__, torch.nn.functional.cross_entropy]
        with integers_are_followed():
            changed = torch.arange is not before[0]
        after = [torch.arange, torch.Tensor.add, torch.bool, torch.Tensor.__eq__, torch.nn.functional.cross_entropy]
        say([changed, before == after])
        """,
        preamble="torch",
    )
    assert said == [True, True]


def test_a_default_device_counts_as_ever() -> None:
    said = followed(
        """with torch.device(d):
        made = [torch.arange(4), torch.full((2,), 1), torch.ones(3), torch.zeros(3, dtype=torch.long)]
say([each.device.type for each in made])"""
    )
    assert said == ["cuda"] * 4


def test_a_count_that_divides_stays_known() -> None:
    said = followed(
        """count = (torch.arange(8, device=d) > 2).sum()
torch.randn(100, device=d).sum() / count
say([count.item(), (count / 2).item(), state().unknown_reads])"""
    )
    assert said == [5, 2.5, 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_integers_are_known_however_many_are_copied_to_the_card(values: str) -> None:
    said = answered(
        """
mask = torch.ones(4, 48000, dtype=torch.long)
mask[1:, 30000:] = 0
copies = [mask.cuda(), mask.to(d), mask.pin_memory().to(d, non_blocking=True), mask.to(d).copy_(mask, True),
          torch.tensor(mask.tolist(), device=d), torch.as_tensor(mask.numpy(), device=d),
          torch.empty_like(mask, device=d).copy_(mask), mask.t().cuda(), mask[:, ::2].repeat(1, 2).to(d, torch.int32)]
torch.ops.aten.add(copies[0], 1)
reads = [copies[0].sum(-1).tolist(), bool((copies[1].cpu() == mask).all()), copies[2][:, :40000].cpu().sum().item()]
say([reads, [each.sum().item() for each in copies], state().unknown_reads, unknown(torch.zeros(9_000_000).to(d)) > 0])
""",
        values=values,
    )
    assert said == [[[48000, 30000, 30000, 30000], True, 130_000], [138_000] * 9, 0, True]
