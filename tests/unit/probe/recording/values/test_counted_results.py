"""What operations of C++ read back from a virtual card, and what their results hold."""

from __future__ import annotations

import pytest
import torch

from tests.unit.probe.recording.values.known import followed
from tests.unit.virtual.on_card import on_card

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_a_mask_of_copied_labels_selects_as_on_a_real_card(values: str) -> None:
    said = followed(
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


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_counts_of_numbers_and_repeats_are_known(values: str) -> None:
    said = followed(
        """
numbers = torch.tensor([3, 1, 3, 0], device=d)
lengths = torch.tensor([2, 0, 3], dtype=torch.int32, device=d)
parts = torch.repeat_interleave(lengths), torch.arange(3, device=d).repeat_interleave(lengths.long())
say([torch.bincount(numbers).tolist(), torch.bincount(numbers, minlength=6).tolist(),
     torch.bincount(lengths.to(torch.uint8)).tolist(), torch.histc(numbers, 4, 0, 3).tolist(),
     [each.tolist() for each in parts], state().unknown_reads])
""",
        values=values,
    )
    repeated = [0, 0, 2, 2, 2]
    assert said == [[1, 1, 0, 2], [1, 1, 0, 2, 0, 0], [1, 0, 1, 1], [1, 1, 0, 2], [repeated, repeated], 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_is_asked_of_known_numbers_is_followed(values: str) -> None:
    said = followed(
        """
numbers, floats = torch.tensor([3, 1, 3, 0, 0], device=d), torch.tensor([1.0, 2.0], device=d)
same = [torch.equal(numbers, numbers.clone()), torch.allclose(floats, floats + 0), numbers.equal(numbers + 1)]
mask = torch.triu(torch.full((300, 300), float("-inf"), device=d), diagonal=1)
is_causal = bool((mask == torch.triu(torch.full((300, 300), float("-inf"), device=d), diagonal=1)).all())
wide = torch.ones(64, 4096, dtype=torch.long, device=d)
found = [each.tolist() for each in torch.unique(numbers, return_counts=True)]
runs = torch.unique_consecutive(numbers).tolist()
pairs = torch.unique_consecutive(torch.tensor([[1, 1, 2], [1, 1, 2]], device=d), dim=1).tolist()
masks = [torch.tensor(each, device=d) for each in ([True, False, True], [True, True], [False, False])]
flags = [each.tolist() for mask in masks for each in (torch.unique(mask), torch.unique_consecutive(mask))]
table = torch.zeros(4, dtype=torch.long, device=d).scatter_add_(0, numbers, torch.ones_like(numbers))
places = torch.searchsorted(torch.tensor([0, 2, 4], device=d), numbers)
padded = torch.nn.functional.pad(torch.cumsum(numbers, 0), (1, 0))
say([same, is_causal, bool((wide == 1).all()), found, runs, pairs, flags, table.tolist(), places.tolist(),
     padded.tolist(), numbers[numbers[:2]].tolist(), state().unknown_reads])
""",
        values=values,
    )
    flags = [[False, True], [True, False, True], [True], [True], [False], [False]]
    uniques = [[[0, 1, 3], [2, 1, 2]], [3, 1, 3, 0], [[1, 2], [1, 2]], flags]
    assert said == [
        [True, True, False],
        True,
        True,
        *uniques,
        [2, 1, 0, 2],
        [2, 1, 2, 0, 0],
        [0, 3, 4, 7, 7, 7],
        [0, 1],
        0,
    ]


def test_replaced_functions_are_pickled_and_scripted_and_copy_as_ever() -> None:
    said = followed(
        """
import pickle
found = [pickle.loads(pickle.dumps(each)) is each for each in (torch.add, torch.Tensor.add, torch.where)]
numbers = torch.arange(4, device=d)
before = torch.cuda.memory_stats()["allocation.all.allocated"]
same, other = numbers.to(0), numbers.to(device=0, dtype=torch.int32)
say([found, torch.cuda.memory_stats()["allocation.all.allocated"] - before, other.tolist()])
"""
    )
    assert said == [[True] * 3, 1, [0, 1, 2, 3]]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_a_mask_that_backward_expands_stays_known(values: str) -> None:
    said = followed(
        """
tokens = torch.tensor([[7, 9, 9, 1], [9, 2, 3, 9]], device=d)
vision = torch.randn(4, 8, device=d, requires_grad=True)
mask = (tokens == 9).unsqueeze(-1)
torch.randn(2, 4, 8, device=d).masked_scatter(mask, vision).sum().backward()
say([list(vision.grad.shape), state().unknown_reads])
leave()
""",
        values=values,
    )
    assert said == [[4, 8], 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_a_factorisation_that_linalg_checks_succeeds(values: str) -> None:
    said = followed(
        """
x = torch.eye(64, device=d)
for function in (torch.linalg.cholesky, torch.linalg.inv, torch.linalg.eigh, torch.linalg.svd, torch.linalg.pinv):
    function(x)
torch.linalg.solve(x, x)
torch.linalg.lstsq(x, x)
say(state().unknown_reads)
""",
        values=values,
    )
    assert said == 0


def test_a_mask_of_computed_numbers_stays_unknown() -> None:
    said = followed(
        """
random = torch.randn(8, device=d)
shape = list(random[random > 0].shape)
say([shape, state().unknown_reads])
"""
    )
    assert said == [[0], 1]


def test_a_list_of_tensors_is_read_as_numbers() -> None:
    """A Python function as ``Tensor.__getitem__`` would make each tensor a sequence, whose length is asked for."""
    said = followed(
        """
losses = [torch.zeros((), device=d), torch.randn(3, device=d).norm(), torch.ones(())]
say([torch.tensor(losses).shape, torch.tensor([[each] for each in losses[::2]]).tolist()])
"""
    )
    assert said == [[3], [[0.0], [1.0]]]


def test_what_known_indices_choose_of_known_numbers_is_known() -> None:
    said = followed(
        """
table, picks = torch.arange(12, device=d).view(3, 4), torch.tensor([2, 0], device=d)
mask = torch.tensor([True, False, True], device=d)
chosen = [table[picks], table[:, picks], table[picks, picks], table[mask], table[torch.tensor([1, 1])], table[1:][0]]
unknown = torch.randn(3, 4, device=d)[picks]
say([*(each.tolist() for each in chosen), list(unknown.shape), state().unknown_reads])
"""
    )
    rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    first, second = [rows[2], rows[0]], [[row[2], row[0]] for row in rows]
    assert said == [first, second, [10, 0], [rows[0], rows[2]], [rows[1], rows[1]], rows[1], [2, 4], 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_sparse_gradients_have_as_many_rows_as_known_tokens(values: str) -> None:
    said = followed(
        """
tokens = torch.tensor([3, 1, 3, 0]).to(d)
table = torch.nn.Embedding(1000, 8, sparse=True, device=d)
for kind in (torch.optim.SGD, torch.optim.SparseAdam):
    optimizer = kind(table.parameters())
    table(tokens).sum().backward()
    rows = table.weight.grad.coalesce()._nnz()
    optimizer.step()
    optimizer.zero_grad()
bags = torch.nn.EmbeddingBag(1000, 8, sparse=True, device=d)
bags(tokens.view(2, 2)).sum().backward()
in_bags = bags.weight.grad.coalesce()._nnz()
places = torch.tensor([[3, 1, 3, 0], [0, 2, 0, 1]]).to(d)
pairs = torch.sparse_coo_tensor(places, torch.randn(4, device=d), (4, 3)).coalesce()
say([rows, in_bags, pairs.indices().tolist(), state().unknown_reads])
leave()
""",
        values=values,
    )
    assert said == [3, 3, [[0, 1, 3], [1, 2, 0]], 0]


def test_values_of_sparse_and_nested_tensors_are_computed_or_unknown() -> None:
    said = followed(
        """
def read(values):
    before = state().unknown_reads
    return [values.tolist(), state().unknown_reads - before]

places, known = torch.tensor([[3, 1, 3, 0], [0, 2, 0, 1]]).to(d), torch.tensor([1.0, 2.0, 3.0, -4.0]).to(d)
rows, sizes = torch.arange(12.0).view(2, 3, 2).to(d), torch.tensor([[2, 2], [1, 2]])
said = []
for numbers, padded in ((known, rows), (torch.randn(4, device=d), torch.randn(2, 3, 2, device=d))):
    [torch.full((8,), 7.0).cuda() for _ in range(32)]
    said.append(read(torch.sparse_coo_tensor(places, numbers, (4, 3)).coalesce().values()))
    said.append(read(torch._nested_from_padded(padded, sizes).values()))
say([said[0], said[1], said[2][1], said[3][1]])
leave()
"""
    )
    assert said == [[[-4.0, 2.0, 4.0], 0], [[0.0, 1.0, 2.0, 3.0, 6.0, 7.0], 0], 1, 1]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_unique_returns_stays_known_though_its_storage_is_longer(values: str) -> None:
    said = followed(
        """
numbers = torch.tensor([0, 0, 0, 1, 1, 2, 3], device=d)
classes, counts = numbers.unique(return_counts=True)
rows = torch.stack([numbers, numbers], 1).unique(dim=0)
say([int(counts.max()), int((classes + 1).max()), int((torch.unique_consecutive(numbers) + 1).max()), rows.tolist(),
     torch.empty(4, int(counts.max()), device=d).shape[1], state().unknown_reads])
""",
        values=values,
    )
    assert said == [3, 4, 4, [[0, 0], [1, 1], [2, 2], [3, 3]], 3, 0]


def test_indices_of_a_sparse_gradient_are_those_of_the_batch() -> None:
    said = followed(
        """
bag = torch.nn.EmbeddingBag(10, 64, mode="sum", sparse=True, device=d)
batch = torch.tensor([[3, 5], [5, 3]]).repeat(4096, 1).cuda()
bag(batch).sum().backward()
say([bag.weight.grad.coalesce()._indices().tolist(), unknown(batch), state().unknown_reads])
leave()
"""
    )
    assert said == [[[3, 5]], 0, 0]


_TWO_WAYS = """
def requests():
    before = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
    hidden = torch.randn(64, 8, device=d, requires_grad=True) * 1
    (hidden * 3 + hidden.half().float()).square().sum().backward()
    return torch.cuda.memory_stats()["allocation.all.allocated"] - before

requests()
say(requests())
leave()
"""
"""Gradients of one tensor that come by two ways, first by the copy: autograd adds the other up in place."""


def test_backward_requests_what_it_would_without_our_operations() -> None:
    alone = on_card(f"d = 'cuda'\n{_TWO_WAYS}", preamble="torch")
    assert followed(_TWO_WAYS) == alone > 10


@pytest.mark.parametrize(("values", "count"), [("zeros", 0), ("ones", 1), ("larger", 48), ("largest", 24)])
def test_an_unknown_count_is_read_and_at_most_what_is_there(values: str, count: int) -> None:
    said = followed(
        """
numbers = torch.randn(6, 8, device=d)
mask, partly = numbers > 0, torch.zeros(48, dtype=torch.bool, device=d)
partly[40:] = mask[0]
places = torch.sparse_coo_tensor((numbers[:2] * 0).long(), numbers[0], (9, 9))
found = [numbers[mask], mask.nonzero(), torch.unique(numbers.long()), partly.nonzero(), numbers.unique(dim=1).t()]
say([[len(each) for each in found], places.coalesce()._nnz(), state().unknown_reads, unknown(partly[:40])])
""",
        values=values,
    )
    of_eight = {0: 0, 1: 1, 48: 8, 24: 4}[count]
    assert said == [[*[count] * 4, of_eight], of_eight, 6, 0]


def test_repeated_columns_are_counted() -> None:
    said = followed(
        """
columns = torch.tensor([[1, 1, 2], [1, 1, 2], [3, 3, 3]], device=d)
say([torch.unique_consecutive(columns, dim=1).tolist(), state().unknown_reads])
"""
    )
    assert said == [[[1, 2], [1, 2], [3, 3]], 0]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_a_large_result_of_few_numbers_takes_no_memory_of_the_host(values: str) -> None:
    said = followed(
        """
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
small, large = torch.arange(9, device=d), torch.empty(0, dtype=torch.long, device=d)
made = [torch.eye(16384, dtype=torch.bool, device=d), torch.arange(1 << 27, device=d)]
torch.arange(1 << 27, out=large)
taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
torch.arange(4, out=large.resize_(0))
say([taken < 100_000, [unknown(each[:4]) > 0 for each in made], unknown(small), large.tolist()])
leave()
""",
        values=values,
    )
    assert said == [True, [True] * 2, 0, [0, 1, 2, 3]]


def test_labels_of_eight_images_select_as_on_a_real_card() -> None:
    said = followed(
        """
labels = torch.zeros(8, 1024, 1024, dtype=torch.long)
labels[:, :512] = 255
given, weights = labels.to(d), torch.zeros(8, 1024, 1024, dtype=torch.uint8).to(d)
valid = given != 255
scores = torch.empty(8, 1024, 1024, 2, device=d)[valid]
say([list(scores.shape), list(given[valid].shape), state().unknown_reads, unknown(valid.nonzero()[:4]) > 0,
     unknown(weights) > 0])
leave()
"""
    )
    half = 4 << 20
    assert said == [[half, 2], [half], 0, True, True]
