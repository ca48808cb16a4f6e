"""Small tensors that the host computes for a virtual card: whatever asks them gets what a real card would say."""

from __future__ import annotations

import pytest
import torch

from tests.unit.probe.recording.values.known import followed
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
changed.random_()
before = state().unknown_reads
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
large = torch.nn.functional.one_hot(labels, 1 << 22)
reads = state().unknown_reads - before
say([list(rows.shape), rows.argmax(1).tolist(), of_ten.sum().item(), reads, unknown(large) > 0])""",
        values=values,
    )
    assert said == [[4, 7], [2, 0, 6, 1], 4, 0, True]


def test_what_is_not_known_stays_unknown() -> None:
    said = followed(
        """random = (torch.rand(8, device=d) * 9).long()
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


def test_operations_are_as_before_when_it_ends() -> None:
    said = on_card(
        """
        from oomscope.probe.recording.values.known_values import values_are_followed
        with values_are_followed():
            followed = unknown(torch.arange(8, device='cuda'))
        say([followed, unknown(torch.arange(8, device='cuda'))])
        """,
        preamble="torch",
    )
    assert said == [0, 64]


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
    said = followed(
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


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_masks_lengths_and_places_are_known_however_a_program_writes_them(values: str) -> None:
    said = followed(
        """
numbers = torch.tensor([3, 1, 2, 5], device=d)
same = torch.ones(4, 4, dtype=torch.bool, device=d).fill_diagonal_(False)
inverse = torch.empty_like(numbers).scatter_(0, numbers.argsort(), torch.arange(4, device=d))
starts = numbers.new_zeros(5)
torch.cumsum(numbers, 0, out=starts.narrow(0, 1, 4))
rows = torch.empty(3, 4, dtype=torch.long, device=d)
rows[0] = numbers
torch.add(rows[0], 1, out=rows[1])
torch.add(rows[1], rows[0], out=rows[2])
torch.add(rows[2], rows[0, 0], out=rows[2])
row = rows[1]
torch.add(row, 1, out=row)
table = torch.zeros(4, 8, device=d)
table[torch.arange(4), numbers] = 1
part = torch.zeros(9, dtype=torch.bool, device=d)
part[5:9].fill_(True)
half = torch.empty(8, dtype=torch.long, device=d)
half[::2] = 1
half[1::2] = numbers
before = state().unknown_reads
said = [(~torch.eye(4, dtype=torch.bool, device=d)).sum().item(), same.sum().item(), inverse.tolist(), starts.tolist(),
        table.bool().nonzero()[:, 1].tolist(), part.nonzero()[:, 0].tolist(), half.tolist(),
        rows.tolist(), (numbers.clamp_min(2) ** 2 >> 1).tolist(), numbers.float().mul(0.5).ceil().max().item()]
say([said, state().unknown_reads - before])
""",
        values=values,
    )
    places = [[2, 0, 1, 3], [0, 3, 4, 6, 11], [3, 1, 2, 5], [5, 6, 7, 8], [1, 3, 1, 1, 1, 2, 1, 5], [4, 2, 2, 12], 3.0]
    rows = [[3, 1, 2, 5], [5, 3, 4, 7], [10, 6, 8, 14]]
    assert said == [[12, 12, *places[:5], rows, *places[5:]], 0]


def test_a_mask_in_a_large_tensor_is_known_by_its_own_bytes() -> None:
    said = followed(
        """
table = (torch.rand(3, 4, device=d) * 9).long()
table[:, 1] = torch.tensor([7, 8, 9], device=d)
say([table[:, 1].tolist(), unknown(table[:, 0]), state().unknown_reads])
leave()
"""
    )
    assert said == [[7, 8, 9], 24, 1]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_is_copied_into_columns_leaves_nothing_of_what_was_there(values: str) -> None:
    said = followed(
        """
table = torch.empty(4, 1024, dtype=torch.int64, device=d)
table[:, :8] = torch.arange(32, device=d).view(4, 8)
known = table[:, :8].tolist() == torch.arange(32).view(4, 8).tolist()
table[:, :8] = torch.randn(4, 8, device=d).long()
say([known, [unknown(row[:8]) for row in table]])
""",
        values=values,
    )
    assert said == [True, [64] * 4]


def test_what_operations_of_others_change_without_saying_so_is_unknown() -> None:
    said = followed(
        """
library = torch.library.Library("others", "DEF")
library.define("silent(Tensor x) -> ()")
library.define("fails(Tensor(a!) x) -> ()")
library.impl("silent", launch_of_a_stranger, "CUDA")

def fails(x):
    launch_of_a_stranger(x)
    raise ValueError("after its kernel")

library.impl("fails", fails, "CUDA")
with values_are_followed():
    changed, half_done = torch.arange(16, device=d), torch.arange(16, device=d)
    torch.ops.others.silent(changed)
    try:
        torch.ops.others.fails(half_done)
    except ValueError as error:
        message = str(error)
    say([unknown(changed), unknown(half_done), message])
"""
    )
    assert said == [128, 128, "after its kernel"]


def test_tensors_of_the_host_among_those_of_the_card_change_once() -> None:
    said = followed(
        """
here, there = torch.zeros(2), torch.zeros(2, device=d)
torch._foreach_add_([here, there], 1)
say([here.tolist(), unknown(there)])
"""
    )
    assert said == [[1, 1], 8]


def test_quantized_tensors_and_large_counts_are_left_to_the_card() -> None:
    said = followed(
        """
quantized = torch.quantize_per_tensor(torch.ones(4, device=d), 0.1, 0, torch.qint8)
repeated = torch.repeat_interleave(torch.tensor([1 << 23], device=d))
say([list(quantized.shape), list(repeated.shape), unknown(repeated[:4])])
"""
    )
    assert said == [[4], [1 << 23], 32]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_few_integers_that_are_drawn_within_bounds_are_those_of_one_draw(values: str) -> None:
    said = followed(
        """
def drawn():
    torch.cuda.manual_seed(3)
    places = torch.randint(5, 33, (64,), device=d)
    order = torch.randperm(40_000, device=d)
    other = torch.empty(8, dtype=torch.int32, device=d).random_(9)
    return places.tolist(), order.tolist(), other.tolist()

first, again = drawn(), drawn()
places, order, other = first
crop = torch.zeros(256, device=d)[torch.randint(0, 33, (), device=d):]
reads = state().unknown_reads
left = [torch.randint(0, 9, (1 << 19,), device=d), torch.randperm(1 << 19, device=d), torch.rand(4, device=d),
        torch.empty(8, dtype=torch.long, device=d).random_(), torch.randint(0, 9, (4,), device=d, dtype=torch.half)]
say([first == again, 5 <= min(places) < max(places) < 33, order != sorted(order) == list(range(40_000)),
     0 <= min(other) < max(other) < 9, len(crop) > 223, reads, [unknown(each[:4]) > 0 for each in left]])
leave()
""",
        values=values,
    )
    assert said == [True, True, True, True, True, 0, [True] * 5]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_products_of_few_known_numbers_are_known(values: str) -> None:
    said = followed(
        """
edges = torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]], device=d)
two_steps = (edges @ edges) > 0
reached = [two_steps.nonzero().tolist(), torch.bmm(edges[None], edges[None]).sum().item(),
           torch.addmm(edges, edges, edges).sum().item(), edges.addmm_(edges, edges).sum().item()]
large = torch.ones(300, 300, device=d)
say([reached, state().unknown_reads, unknown(large @ large) > 0])
leave()
""",
        values=values,
    )
    assert said == [[[[0, 2]], 1, 3, 3], 0, True]
