"""Values that the host computes for a virtual card: results, sizes and gradients are those of the host."""

from __future__ import annotations

import pytest
import torch

from tests.unit.probe.recording.values.both import OPERATIONS
from tests.unit.probe.recording.values.known import computed
from tests.unit.virtual.on_card import on_card

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")


@pytest.mark.parametrize("group", OPERATIONS)
def test_operations_give_what_they_give_on_the_host(group: str) -> None:
    said = computed(
        f"""
from tests.unit.probe.recording.values.both import differing
say([differing({group!r}), list(refused), state().unknown_reads])
leave()
"""
    )
    assert said == [[], [], 0]


_TRAINING = """
def trained():
    torch.manual_seed(0)
    layers = [torch.nn.Embedding(64, 32), *(torch.nn.Linear(32, 32) for _ in range(3)), torch.nn.Linear(32, 64)]
    first, *middle, last = (each.cuda() for each in layers)
    optimizer = torch.optim.AdamW([each for layer in layers for each in layer.parameters()])
    requests = []
    for _ in range(3):
        before = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        tokens = torch.randint(0, 64, (4, 16)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            hidden = first(tokens)
            for each in middle:
                hidden = hidden + torch.nn.functional.dropout(each(hidden).relu(), 0.1)
            loss = torch.nn.functional.cross_entropy(last(hidden).view(-1, 64), tokens.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(middle[0].parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        requests.append(torch.cuda.memory_stats()["allocation.all.allocated"] - before)
    return requests, torch.cuda.max_memory_allocated(), loss.item()

requests, peak, loss = trained()
say([requests, peak, loss > 0, state().unknown_reads])
leave()
"""


def test_a_training_requests_what_it_requests_uncomputed() -> None:
    requests, peak, _, reads = on_card(_TRAINING, preamble="torch")
    assert reads > 0
    assert computed(_TRAINING) == [requests, peak, True, 0]


def test_random_numbers_repeat_from_the_same_state_and_leave_the_host_s_alone() -> None:
    said = computed(
        """
torch.manual_seed(3)
expected = torch.rand(2).tolist()
torch.manual_seed(3)
state_before = torch.cuda.get_rng_state()
ones = torch.ones(1000, device=d)
once = torch.nn.functional.dropout(ones, 0.5)
again = torch.nn.functional.dropout(ones, 0.5)
torch.cuda.set_rng_state(state_before)
repeated = torch.nn.functional.dropout(ones, 0.5)
generator = torch.Generator("cuda").manual_seed(5)
own = torch.rand(3, device=d, generator=generator).tolist()
generator.manual_seed(5)
is_own_same = own == torch.rand(3, device=d, generator=generator).tolist()
kept = int(once.count_nonzero())
say([bool((once == repeated).all()), bool((once == again).all()), 400 < kept < 600, is_own_same,
     torch.rand(2).tolist() == expected, state().unknown_reads])
leave()
"""
    )
    assert said == [True, False, True, True, True, 0]


def test_what_the_host_cannot_compute_is_unknown_and_so_is_what_follows() -> None:
    said = computed(
        """
cell = torch.nn.LSTM(4, 4, device=d)
known = torch.randn(3, 2, 4, device=d)
result = cell(known)[0]
shared = torch.zeros(2, 8, device=d)
shared[:, :4] = result[0]
say([unknown(result), unknown(result + 1), unknown(shared), unknown(known), list(refused)])
leave()
"""
    )
    result, following, shared, known, refused = said
    assert (result, following, known) == (96, 96, 0)
    assert shared > 0
    assert "aten._cudnn_rnn.default" in refused


def test_a_kernel_of_somebody_else_makes_what_it_got_unknown() -> None:
    said = computed(
        """
from tests.unit.probe.recording.values import known as scripts
exec(scripts._STRANGER)
given, other = torch.ones(1 << 20, device=d), torch.ones(8, device=d)
launch_of_a_stranger(given)
say([unknown(given) > 0, unknown(other)])
leave()
"""
    )
    assert said == [True, 0]


def test_who_catches_an_error_keeps_no_operand() -> None:
    said = computed(
        """
before = torch.cuda.memory_allocated()
try:
    torch.ones(1 << 20, device=d) @ torch.ones(3, device=d)
except RuntimeError as error:
    kept = torch.cuda.memory_allocated() - before
say(kept)
leave()
"""
    )
    assert said == 0


def test_copies_of_any_size_are_moved_and_freed_memory_is_forgotten() -> None:
    said = computed(
        """
numbers = torch.arange(1 << 20, dtype=torch.float64)
copied = numbers.cuda()
is_same = bool((copied.cpu() == numbers).all())
address = copied.data_ptr()
del copied
torch.cuda.empty_cache()
fresh = torch.empty(1 << 20, dtype=torch.float64, device=d)
say([is_same, fresh.data_ptr() == address, float(fresh.sum())])
leave()
"""
    )
    assert said == [True, True, 0.0]


def test_a_count_that_an_operation_reads_by_another_one_is_known() -> None:
    said = computed(
        """
def select(boxes, scores, threshold):
    return torch.arange(3, device=d).masked_select(torch.empty(3, dtype=torch.bool, device=d))

library = torch.library.Library("detector", "DEF")
library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
library.impl("nms", select, "CUDA")
library.impl("nms", lambda boxes, scores, threshold: torch.tensor([0, 2]), "CPU")
with values_are_computed(refused):
    kept = torch.ops.detector.nms(torch.ones(3, 4, device=d), torch.ones(3, device=d), 0.5)
    say([kept.tolist(), list(refused), state().unknown_reads])
leave()
"""
    )
    assert said == [[0, 2], [], 0]
