"""What counts as held by a virtual card, and what no longer does once something may have written it."""

from __future__ import annotations

import pytest
import torch

from tests.unit.probe.recording.values.known import followed

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_operations_read_stays_known(values: str) -> None:
    said = followed(
        """longer = torch.arange(2432, device=d)
del longer
numbers, after = (torch.arange(2408, device=d) for _ in range(2))
mask = numbers > 8
torch.ops.aten.index_select(torch.randn(2408, 2, device=d), 0, numbers)
torch.ops.aten.masked_fill(torch.randn(2408, device=d), mask, 0)
before = state().unknown_reads
chosen = [len(after[part]) for part in (mask, ~mask, numbers > 10)] + [len(after[8:24][mask[8:24]])]
say([chosen, state().unknown_reads - before])""",
        values=values,
    )
    assert said == [[2399, 9, 2397, 15], 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_an_extension_s_kernel_may_have_written_is_unknown(values: str) -> None:
    said = followed(
        """numbers, buffer = torch.arange(8, device=d), torch.zeros(8, dtype=torch.long, device=d)
launch_of_a_stranger(buffer)
say([unknown(buffer + 1), unknown(numbers + 1)])""",
        values=values,
    )
    assert said == [64, 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_is_written_past_a_copied_tensor_s_version_is_not_taken_for_the_copy(values: str) -> None:
    said = followed(
        """number = torch.zeros(1, dtype=torch.long).to(d)
other = torch.zeros(1, dtype=torch.long).to(d)
logits = torch.randn(1, 7, device=d, requires_grad=True)
third = torch.zeros(1, dtype=torch.long).to(d)
number.data.add_(1)
other.random_()
third.data.add_(torch.rand(1, device=d).long() + 1)
for each in (number, other, third):
    torch.nn.functional.cross_entropy(logits, each).backward()
say([unknown(each > 0) or bool(each > 0) for each in (number, other, third)])""",
        values=values,
    )
    assert all(said), "none is a known 0"


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_leftovers_of_other_tensors_are_not_taken_for_values(values: str) -> None:
    said = followed(
        """freed = torch.zeros(4096, dtype=torch.bool, device=d)
torch.ops.aten.masked_fill(torch.randn(4096, device=d), freed, 0)
del freed
converted = torch.ones(4096).to(d, torch.bool, non_blocking=True)
halves = torch.empty(1024, dtype=torch.long, device=d)
halves[:512].fill_(7)
halves[512:].fill_(7)
halves[:512].random_()
halves[512:].fill_(0)
replaced, unchanged = torch.zeros(64, dtype=torch.long, device=d), 0
for _ in range(4):
    replaced.data = torch.zeros_like(replaced).scatter_add_(0, replaced, torch.ones_like(replaced))
    unchanged += unknown(replaced == 0) == 0 and bool((replaced == 0).all())
scale, found = torch.full((), 0.0, device=d), torch.ones(2, device=d)
norm = torch.nn.BatchNorm1d(4).to(d)
norm(torch.randn(8, 4, device=d))
torch._amp_foreach_non_finite_check_and_unscale_([found], scale, torch.ones((), device=d))
say([converted.all().item(), unknown(halves == 7), unchanged, scale.item(), unknown(norm.running_mean == 0)])""",
        values=values,
    )
    assert said == [True, 512 * 2, 0, 0.0, 4], "what was drawn at random is unknown, and running means with it"


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_a_kernel_of_a_library_was_given_reads_back_as_copied(values: str) -> None:
    said = followed(
        """lengths = torch.tensor([3, 1, 2]).to(d)
launch_of_a_stranger(lengths)
known = unknown(lengths + 1) == 0
say([lengths.tolist(), known])""",
        values=values,
    )
    assert said == [[3, 1, 2] if values == "zeros" else said[0], False]


def test_what_is_copied_into_an_unknown_tensor_is_known() -> None:
    said = followed(
        """answer = torch.randn(8, device=d) > 0
answer.copy_(torch.full((8,), True))
say([unknown(answer), unknown(~answer)])"""
    )
    assert said == [0, 0]


def test_what_is_on_the_card_is_not_copied_there_again() -> None:
    said = followed(
        """numbers = torch.arange(300, device=d)
before = torch.cuda.memory_stats()['allocation.all.allocated']
numbers.cuda(); numbers.to(d)
say(torch.cuda.memory_stats()['allocation.all.allocated'] - before)"""
    )
    assert said == 0


def test_what_lies_behind_an_operand_stays_known() -> None:
    said = followed(
        """tokens, labels = (torch.arange(512).to(d) for _ in range(2))
touch = labels.data_ptr() - tokens.data_ptr()
torch.nn.functional.embedding(tokens, torch.randn(512, 8, device=d))
say([touch, unknown(labels), unknown(tokens)])"""
    )
    assert said == [4096, 0, 0]


def test_kernels_that_torch_compiles_itself_write_what_its_versions_tell() -> None:
    """Its jiterator launches them as strangers' are, by the driver; what they are given stays known all the same."""
    said = followed(
        """
numbers = torch.arange(4, device=d)
torch.gcd(numbers, numbers)
say([(numbers + 1).tolist(), state().unknown_reads])
"""
    )
    assert said == [[1, 2, 3, 4], 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_views_with_gaps_or_repeated_elements_are_read_as_they_are(values: str) -> None:
    said = followed(
        """
table = torch.arange(12).view(3, 4).to(d)
read = [table[:, -1].tolist(), table[::2].cpu().tolist(), table[:, :2].to("cpu").tolist(),
        table[1:, 2].cpu().numpy().tolist(), torch.tensor([2]).cuda().expand(4).tolist(),
        table[:, 1].to("cpu", torch.int32).tolist(), table[:, 1].float().tolist(), (table > 3)[:, 1].tolist()]
say([read, state().unknown_reads, unknown(table)])
""",
        values=values,
    )
    rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    first = [[3, 7, 11], rows[::2], [row[:2] for row in rows], [6, 10], [2] * 4]
    assert said == [[*first, [1, 5, 9], [1.0, 5.0, 9.0], [False, True, True]], 0, 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_cpp_writes_into_a_copy_is_not_taken_for_the_copy(values: str) -> None:
    said = followed(
        """
table, places = torch.arange(12, device=d).view(3, 4), (torch.rand(1, 4, device=d) * 3).long()
changed = torch.ops.aten.scatter(table[:, [1, 0, 3, 2]].t().t()[:, 1:], 0, places[:, 1:], 7)
kept = torch.ops.aten.copy_(table[:, 0], table[:, 1])
lazy = torch.tensor([1 + 2j, 3 + 4j]).to(d).conj().imag
say([[unknown(each) > 0 for each in (changed, changed + 1)], table.tolist(), (table + 1)[0].tolist(), lazy.tolist()])
""",
        values=values,
    )
    assert said == [[True, True], [[1, 1, 2, 3], [5, 5, 6, 7], [9, 9, 10, 11]], [2, 2, 3, 4], [-2.0, -4.0]]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_a_tensor_is_known_after_a_resize_that_keeps_its_memory(values: str) -> None:
    said = followed(
        """
numbers = torch.ByteTensor([7] * 16).to(d)
torch.ops.aten.add(numbers, 1)
numbers.resize_(4, 4)
shorter = torch.tensor([5, 6, 7]).to(d).resize_(2)
longer = torch.tensor([5, 6, 7]).to(d).resize_(1000)
random = torch.rand(4, device=d).long().resize_(2)
say([numbers.sum().item(), shorter.tolist(), state().unknown_reads, unknown(longer) > 0, unknown(random) > 0])
""",
        values=values,
    )
    assert said == [112, [5, 6], 0, True, True]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_is_copied_into_a_part_of_a_buffer_is_known(values: str) -> None:
    said = followed(
        """
lengths = torch.tensor([100, 200, 300])
from_host, from_card, both = (torch.empty(1 << 12, dtype=torch.int64, device=d) for _ in range(3))
from_host[:3].copy_(lengths)
from_card[4:7] = lengths.cuda()
both[:3] = lengths
before = state().unknown_reads
said = [from_host[:3].tolist(), from_card[4:7].tolist(), int(both[1])]
say([*said, state().unknown_reads - before])
""",
        values=values,
    )
    assert said == [[100, 200, 300], [100, 200, 300], 200, 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_an_unknown_mask_wrote_in_place_is_unknown(values: str) -> None:
    said = followed(
        """
numbers, more = torch.zeros(6, dtype=torch.int64, device=d), torch.arange(6, device=d)
numbers.masked_scatter_(torch.rand(6, device=d) > 0.5, more)
say(unknown(numbers))
""",
        values=values,
    )
    assert said == 48


@pytest.mark.parametrize("make", ["torch.ones(1000, dtype=torch.bool, device=d)", "random > 2"])
def test_of_a_freed_tensor_nothing_is_left_behind_a_shorter_one_nor_taken_from_its_neighbours(make: str) -> None:
    said = followed(
        f"""
from oomscope import virtual
random = torch.rand(1000, device=d)
before, freed, behind = (torch.arange(8192, device=d) for _ in range(3))
place, end = freed.data_ptr(), behind.data_ptr()
del freed
shorter = {make}
rest = [virtual.holds(virtual.Runs(first, end - first)) for first in (place + 1000, place + 1024, end - 8)]
say([shorter.data_ptr() == place, place - before.data_ptr(), end - place, rest, unknown(before), unknown(behind),
     unknown(shorter)])
leave()
"""
    )
    size = 8192 * 8
    assert said == [True, size, size, [False] * 3, 0, 0, 1000 if "random" in make else 0]


@pytest.mark.parametrize(
    "allocate",
    [
        "torch.empty(8192, dtype=torch.long, device=d)",
        "torch.empty_strided((64, 128), (128, 1), dtype=torch.long, device=d)",
        "torch._C._dynamo.guards._empty_strided_cuda((8192,), (1,), torch.long)",
    ],
)
def test_what_is_allocated_holds_nothing_of_what_was_there(allocate: str) -> None:
    said = followed(
        f"""
freed = [torch.arange(1024, device=d) for _ in range(8)]
place, behind = freed[0].data_ptr(), torch.arange(8, device=d)
del freed
made = {allocate}
launch_of_a_stranger(made)
say([made.data_ptr() == place, unknown(made), unknown(behind)])
leave()
"""
    )
    assert said == [True, 8192 * 8, 0]
