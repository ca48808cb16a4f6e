"""Values that the host knows for a virtual card: whatever decides on them decides as on a real card."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch.nn import init

from oomscope.probe.recording.values.assumed_values import rounds_of
from tests.unit.virtual.on_card import on_card

BEGIN = "from oomscope.probe.recording.values.known_integers import integers_are_followed\nd = 'cuda'\n"
STRANGER = """
import ctypes
cudart, address = ctypes.CDLL(None), ctypes.c_void_p
code, host = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
cudart.__cudaRegisterFatBinary.restype = address
cudart.__cudaRegisterFunction(address(cudart.__cudaRegisterFatBinary(code)), host, None, b"kernel", 0, *[None] * 5)

class Size(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]

def launch_of_a_stranger(tensor):
    pointer, one = address(tensor.data_ptr()), Size(1, 1, 1)
    arguments = (address * 1)(ctypes.addressof(pointer))
    assert cudart.cudaLaunchKernel(host, one, one, arguments, ctypes.c_size_t(0), None) == 0
"""
"""A kernel that an extension registered, and its launch."""


def followed(script: str, **settings: object) -> object:
    """Run a script on the card with integers followed; return what it said."""
    lines = "".join(f"    {line.strip() if not line.startswith('    ') else line}\n" for line in script.splitlines())
    return on_card(BEGIN + STRANGER + "with integers_are_followed():\n" + lines, preamble="torch", **settings)


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
        values="threes",
    )
    assert said == [True, 9, [7, 3, 4], 0]


@pytest.mark.parametrize("values", ["zeros", "threes"])
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


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_what_functions_without_a_wrapper_read_stays_known(values: str) -> None:
    said = followed(
        """longer = torch.arange(2432, device=d)
del longer
numbers, after = (torch.arange(2408, device=d) for _ in range(2))
mask = numbers > 8
torch.ops.aten.index_select(torch.randn(2408, 2, device=d), 0, numbers)
torch.ops.aten.masked_fill(torch.randn(2408, device=d), mask, 0)
is_held = [unknown(each) == 0 for each in (numbers, mask)]
before = state().unknown_reads
with answers_are_known():
    chosen = [len(after[part]) for part in (mask, ~mask, numbers > 10)] + [len(after[8:24][mask[8:24]])]
say([is_held, chosen, state().unknown_reads - before])""",
        values=values,
    )
    assert said == [[False, False], [2399, 9, 2397, 15], 0]


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_what_an_extension_s_kernel_may_have_written_is_unknown(values: str) -> None:
    said = followed(
        """numbers, buffer = torch.arange(8, device=d), torch.zeros(8, dtype=torch.long, device=d)
launch_of_a_stranger(buffer)
say([unknown(buffer + 1), unknown(numbers + 1)])""",
        values=values,
    )
    assert said == [64, 0]


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_what_is_written_past_a_copied_tensor_s_version_is_not_taken_for_the_copy(values: str) -> None:
    said = followed(
        """number = torch.zeros(1, dtype=torch.long).to(d)
other = torch.zeros(1, dtype=torch.long).to(d)
logits = torch.randn(1, 7, device=d, requires_grad=True)
third = torch.zeros(1, dtype=torch.long).to(d)
number.data.add_(1)
other.random_(1, 9)
third.data.add_(torch.randint(1, 9, (1,), device=d))
for each in (number, other, third):
    torch.nn.functional.cross_entropy(logits, each).backward()
say([unknown(each > 0) or bool(each > 0) for each in (number, other, third)])""",
        values=values,
    )
    assert all(said), "none is a known 0"


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_leftovers_of_other_tensors_are_not_taken_for_values(values: str) -> None:
    said = followed(
        """freed = torch.zeros(4096, dtype=torch.bool, device=d)
torch.ops.aten.masked_fill(torch.randn(4096, device=d), freed, 0)
del freed
converted = torch.ones(4096).to(d, torch.bool, non_blocking=True)
halves = torch.empty(1024, dtype=torch.long, device=d)
halves[:512].fill_(7)
halves[512:].fill_(7)
halves[:512].random_(0, 5)
halves[512:].fill_(0)
replaced, unchanged = torch.zeros(64, dtype=torch.long, device=d), 0
for _ in range(4):
    replaced.data = torch.zeros_like(replaced).scatter_add_(0, replaced, torch.ones_like(replaced))
    unchanged += unknown(replaced == 0) == 0 and bool((replaced == 0).all())
scale, found = torch.full((), 0.0, device=d), torch.ones(2, device=d)
norm = torch.nn.BatchNorm1d(4).to(d)
norm(torch.randn(8, 4, device=d))
torch._amp_foreach_non_finite_check_and_unscale_([found], scale, torch.ones((), device=d))
say([unknown(converted == 0), unknown(halves == 7), unchanged, unknown(scale > 0), unknown(norm.running_mean == 0)])""",
        values=values,
    )
    assert said[2] == 0
    assert all(said[:2] + said[3:]), "all were written by kernels"


@pytest.mark.parametrize("values", ["zeros", "threes"])
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


@pytest.mark.parametrize("values", ["zeros", "threes"])
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


def test_what_lies_behind_an_operand_stays_known() -> None:
    said = followed(
        """tokens, labels = (torch.arange(512).to(d) for _ in range(2))
touch = labels.data_ptr() - tokens.data_ptr()
torch.nn.functional.embedding(tokens, torch.randn(512, 8, device=d))
say([touch, unknown(labels), unknown(tokens)])"""
    )
    assert said == [4096, 0, 0]


BEGIN = """
from oomscope.probe.recording.values.known_answers import answers_are_known
from oomscope.probe.recording.values.known_integers import integers_are_followed
d = 'cuda'
labels = torch.tensor([[-100, 5, 6, -100], [7, -100, -100, -100]], device=d)
"""
pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


def counted(script: str, **settings: object) -> object:
    """Run a script on the card with counts known; return what it said."""
    lines = "".join(f"    {line}\n" for line in script.strip().splitlines())
    return on_card(f"{BEGIN}with integers_are_followed(), answers_are_known():\n{lines}", preamble="torch", **settings)


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


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_choices_among_few_entries_of_unknown_scores_are_even(values: str) -> None:
    said = counted(
        """
from oomscope.probe.recording.values.even_choices import choices_are_even
notes = []
with choices_are_even(notes.append):
    scores = torch.randn(6, 4, device=d)
    rows, columns, best = scores.topk(2).indices, scores.t().topk(2, 0).indices, scores.argmax(-1, keepdim=True)
    share = torch.bincount(rows.flatten(), minlength=4)
    known = torch.tensor([[5, 1, 9, 3], [2, 8, 1, 0]], device=d).topk(1).indices
    drawn = scores.softmax(-1).multinomial(1)
    words, whole, single = torch.randn(8, 5000, device=d).argmax(-1), scores.argmax(), scores[:1].argmax(1)
say([rows.tolist(), columns.t().tolist(), best.flatten().tolist(), share.tolist(), known.tolist(), len(notes),
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
        [0, 1, 2, 3, 0, 1],
        [True, True, True],
    ]


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_counts_of_numbers_and_repeats_are_known(values: str) -> None:
    said = counted(
        """
numbers = torch.tensor([3, 1, 3, 0], device=d)
lengths = torch.tensor([2, 0, 3], dtype=torch.int32, device=d)
parts = torch.repeat_interleave(lengths), torch.arange(3, device=d).repeat_interleave(lengths.long())
say([torch.bincount(numbers).tolist(), torch.bincount(numbers, minlength=6).tolist(),
     torch.bincount(lengths.to(torch.uint8)).tolist(), [each.tolist() for each in parts], state().unknown_reads])
""",
        values=values,
    )
    repeated = [0, 0, 2, 2, 2]
    assert said == [[1, 1, 0, 2], [1, 1, 0, 2, 0, 0], [1, 0, 1, 1], [repeated, repeated], 0]


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_what_is_asked_of_known_numbers_is_answered(values: str) -> None:
    said = counted(
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
    said = counted(
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


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_a_mask_that_backward_expands_stays_known(values: str) -> None:
    said = counted(
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


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_what_distributions_check_holds(values: str) -> None:
    said = counted(
        """
from oomscope.probe.recording.values.assumed_values import arguments_are_valid, finite_numbers
notes, finite = [], []
with finite_numbers(finite.append), arguments_are_valid(notes.append):
    from torch.distributions import Categorical, Normal
    scores = torch.randn(16, 4, device=d)
    for drawn in (Categorical(logits=scores), Normal(scores, scores.exp())):
        drawn.log_prob(drawn.sample())
    loss = torch.nn.GaussianNLLLoss()(scores, scores, scores.exp())
say([len(notes), finite, list(loss.shape)])
leave()
""",
        values=values,
    )
    assert said == [1, [], []]


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_a_factorisation_that_linalg_checks_succeeds(values: str) -> None:
    said = counted(
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
    said = counted(
        """
random = torch.randn(8, device=d)
shape = list(random[random > 0].shape)
say([shape, state().unknown_reads])
"""
    )
    assert said == [[0], 1]


draws_again = pytest.mark.skipif(
    ".any()" not in inspect.getsource(init._no_grad_trunc_normal_), reason="this torch draws once"
)


@draws_again
@pytest.mark.parametrize("bounds", [(0.0, 0.02, -2.0, 2.0), (0.0, 1.0, -2.0, 2.0), (0.0, 1.0, -1.0, 1.0)])
def test_as_often_as_the_cpu_draws(bounds: tuple[float, float, float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    find = torch.Tensor.any
    monkeypatch.setattr(torch.Tensor, "any", lambda *args: asked.append(1) or find(*args))
    torch.manual_seed(0)
    for _ in range(5):
        init.trunc_normal_(torch.empty(100_000), *bounds)
    drawn_again = len(asked) / 5 - 1
    assert math.isclose(drawn_again, rounds_of(100_000, *bounds), abs_tol=2.5)
    assert (drawn_again == 0) == (rounds_of(100_000, *bounds) == 0)


@draws_again
@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_nothing_unknown_is_read_and_it_ends(values: str) -> None:
    said = on_card(
        """
        from oomscope.probe.recording.values.assumed_values import redrawn_as_expected
        weight = torch.empty(1 << 18, device='cuda')
        with redrawn_as_expected():
            torch.nn.init.trunc_normal_(weight)
        say([state().unknown_reads, torch.cuda.max_memory_allocated() // weight.nbytes])
        """,
        preamble="torch",
        values=values,
    )
    assert said == [0, 4], "weight, what was drawn before and now, and their choice"


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_what_is_printed_is_not_read_from_the_card(values: str) -> None:
    said = on_card(
        """
        from oomscope.probe.recording.values.assumed_values import printed_from_the_host
        loss = torch.nn.Linear(4, 4, device='cuda')(torch.randn(8, 4, device='cuda')).square().mean()
        copied = torch.tensor([[2, 0], [1, 7]]).cuda()[:, 1]
        large, none = torch.randn(1 << 20, device='cuda'), torch.empty(0, device='cuda')
        before = torch.cuda.memory_stats()['allocation.all.allocated']
        with printed_from_the_host():
            text = [repr(each) for each in (loss, copied, large, none, torch.ones(1))]
        say([text, state().unknown_reads, torch.cuda.memory_stats()['allocation.all.allocated'] - before])
        """,
        preamble="torch",
        values=values,
    )
    assert said == [
        [
            "tensor(?, device='cuda:0', grad_fn=<MeanBackward0>)",
            "tensor([0, 7], device='cuda:0')",
            "tensor(?, device='cuda:0')",
            "tensor([], device='cuda:0')",
            "tensor([1.])",
        ],
        *(0, 0),
    ]


def test_a_list_of_tensors_is_read_as_numbers() -> None:
    """A Python function as ``Tensor.__getitem__`` would make each tensor a sequence, whose length is asked for."""
    said = counted(
        """
losses = [torch.zeros((), device=d), torch.randn(3, device=d).norm(), torch.ones(())]
say([torch.tensor(losses).shape, torch.tensor([[each] for each in losses[::2]]).tolist()])
"""
    )
    assert said == [[3], [[0.0], [1.0]]]


def test_what_known_indices_choose_of_known_numbers_is_known() -> None:
    said = counted(
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


def test_subclasses_find_torch_s_own_methods_in_their_tables() -> None:
    """As a parameter without a shape does, which only some methods may be called on."""
    said = on_card(
        BEGIN
        + """
from oomscope.probe.recording.values.assumed_values import finite_numbers
own, looked_up = {torch.Tensor.to, torch.Tensor.clone, torch.Tensor.add, torch.Tensor.any}, []

class Image(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = function.__name__
        if name in ("to", "clone", "add", "any"):
            looked_up.append((name, function in own, function is getattr(torch.Tensor, name)))
        return super().__torch_function__(function, types, args, kwargs or {})

image = torch.zeros(2, 2, device=d).as_subclass(Image)
with integers_are_followed(), finite_numbers([].append):
    lazy = torch.nn.LazyLinear(4).to(d).cuda()
    kept = [type(each).__name__ for each in (image.to(torch.float16), image.clone(), image.add(1), image.any())]
    say([list(lazy(torch.randn(3, 8, device=d)).shape), kept, sorted(set(looked_up))])
""",
        preamble="torch",
    )
    assert said == [[3, 4], ["Image"] * 4, [[name, True, True] for name in ("add", "any", "clone", "to")]]


def test_kernels_that_torch_compiles_itself_write_what_its_versions_tell() -> None:
    """Its jiterator launches them as strangers' are, by the driver; what they are given stays known all the same."""
    said = counted(
        """
numbers = torch.arange(4, device=d)
torch.gcd(numbers, numbers)
say([(numbers + 1).tolist(), state().unknown_reads])
"""
    )
    assert said == [[1, 2, 3, 4], 0]


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_views_with_gaps_or_repeated_elements_are_read_as_they_are(values: str) -> None:
    said = counted(
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


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_what_cpp_writes_into_a_copy_is_not_taken_for_the_copy(values: str) -> None:
    said = counted(
        """
table, places = torch.arange(12, device=d).view(3, 4), torch.randint(0, 3, (1, 4), device=d)
changed = torch.ops.aten.scatter(table[:, [1, 0, 3, 2]].t().t()[:, 1:], 0, places[:, 1:], 7)
kept = torch.ops.aten.copy_(table[:, 0], table[:, 1])
lazy = torch.tensor([1 + 2j, 3 + 4j]).to(d).conj().imag
say([unknown(each) > 0 for each in (changed, changed + 1, table, table + 1, lazy + 0)])
""",
        values=values,
    )
    assert said == [True] * 5


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_integers_are_known_however_many_are_copied_to_the_card(values: str) -> None:
    said = counted(
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


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_one_operand_decides_what_another_cannot_change(values: str) -> None:
    said = counted(
        """
yes, no, both = (torch.tensor(each, device=d) for each in ([True, True], [False, False], [True, False]))
def coin(): return torch.randn(2, device=d) > 0
def number(): return torch.randint(0, 9, (2,), device=d)
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


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_a_loop_over_unknown_tokens_ends_at_its_longest_length(values: str) -> None:
    said = counted(
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
    assert said == 12 or (values == "threes" and said == 5)


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_sparse_gradients_have_as_many_rows_as_known_tokens(values: str) -> None:
    said = counted(
        """
tokens = torch.tensor([3, 1, 3, 0]).to(d)
table = torch.nn.Embedding(1000, 8, sparse=True, device=d)
for kind in (torch.optim.SGD, torch.optim.SparseAdam):
    optimizer = kind(table.parameters())
    table(tokens).sum().backward()
    rows = table.weight.grad.coalesce()._nnz()
    optimizer.step()
    optimizer.zero_grad()
places = torch.tensor([[3, 1, 3, 0], [0, 2, 0, 1]]).to(d)
pairs = torch.sparse_coo_tensor(places, torch.randn(4, device=d), (4, 3)).coalesce()
say([rows, pairs.indices().tolist(), state().unknown_reads])
leave()
""",
        values=values,
    )
    assert said == [3, [[0, 1, 3], [1, 2, 0]], 0]


@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_a_tensor_is_known_after_a_resize_that_keeps_its_memory(values: str) -> None:
    said = counted(
        """
numbers = torch.ByteTensor([7] * 16).to(d)
torch.ops.aten.add(numbers, 1)
numbers.resize_(4, 4)
shorter = torch.tensor([5, 6, 7]).to(d).resize_(2)
longer = torch.tensor([5, 6, 7]).to(d).resize_(1000)
random = torch.randint(0, 9, (4,), device=d).resize_(2)
say([numbers.sum().item(), shorter.tolist(), state().unknown_reads, unknown(longer) > 0, unknown(random) > 0])
""",
        values=values,
    )
    assert said == [112, [5, 6], 0, True, True]
