"""Which process speaks for a program, and when none has an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.measurement import DeviceBudget
from oomscope.probe.targets.program.receipt import Raised, Receipt, Refused
from oomscope.probe.targets.program.results import Ended, _device_of, _notes, failure_in, representative
from oomscope.units import MiB
from oomscope.virtual.extensions import NO_IPC


def receipt(peak: int = 100 * MiB, **fields: Any) -> Receipt:
    """Return the receipt of a process that held ``peak`` bytes on the card and was stopped after three steps."""
    stats = {"allocated_bytes.all.peak": peak} if peak else {}
    known = {
        "pid": 7,
        "argv": ["python", "train.py"],
        "began_ns": 1,
        "interpreter": "/usr/bin/python",
        "torch_version": "2.15.0",
        "cuda_version": "13.0",
        "state": "stopped",
        "is_cuda_initialised": bool(peak),
        "iterations": 3,
        "steps": 3,
        "optimizers": 1,
        "stats": stats,
        "parameters_on_card": peak // 2,
    }
    return Receipt(**known | fields)


def ended(*receipts: Receipt, status: int = 0) -> Ended:
    """Return how a program of these processes ended."""
    return Ended(status=status, killed=False, receipts=receipts, seconds=1.0)


REFUSED = Refused(
    device=0,
    requested_bytes=MiB,
    free_bytes=0,
    held_bytes=0,
    moment=["forward", 0, 0],
    snapshot="oom.pickle",
)
OUT = Raised(text="OutOfMemoryError: ...", details="", refusal={"failed_in": "device"})
UNSHARED = Raised(text=NO_IPC, details="Traceback ...")
WRONG = Raised(text="ValueError: no data (train.py:3 in main)", details="Traceback ...")
EMPTY: dict[str, Any] = {"peak": 0, "parameters_on_card": 0}


@pytest.mark.parametrize(
    ("left", "status", "kind", "said"),
    [
        ([], 0, "nothing", "no process of the program imported torch"),
        ([], 1, "exit", "the program failed before it imported torch (it ended with status 1)"),
        ([], -11, "crash", "the program failed before it imported torch (it was ended by SIGSEGV)"),
        ([receipt(state="ended", **EMPTY)], 0, "nothing", "the program put nothing on the card"),
        ([receipt(state="stopped", **EMPTY)], 0, "nothing", "the program put nothing on the card"),
        (
            [receipt(state="stopped", parameters_on_cpu=2 * MiB, **EMPTY)],
            0,
            "nothing",
            "the model is on the CPU: 2.00 MiB of parameters there, none on the card",
        ),
        (
            [receipt(state="ended", iterations=0, steps=0)],
            0,
            "nothing",
            "the program ended before its first step",
        ),
        (
            [receipt(state="ended", iterations=0, raised=WRONG)],
            1,
            "exit",
            "before its first step (it ended with status 1): ValueError: no data (train.py:3 in main)",
        ),
        (
            [receipt(state="ended", iterations=0, raised=UNSHARED)],
            1,
            "untestable",
            f"(it ended with status 1): {NO_IPC}",
        ),
        ([receipt(state="ended", iterations=1)], 3, "exit", "the program ended after 1 step (it ended with status 3)"),
        ([receipt(state="ended", iterations=2)], 125, "untestable", "the program ended after 2 steps"),
        ([receipt(state="running", iterations=2)], -11, "crash", "was ended after 2 steps and kept nothing"),
        (
            [receipt(state="ended", iterations=1, raised=WRONG, rank=1, world_size=2)],
            1,
            "exit",
            "rank 1 of 2 ended after 1 step",
        ),
        ([receipt(state="running", iterations=0)], -9, "killed", "(it was ended by SIGKILL)"),
        (
            [receipt(state="stopped", is_cuda_initialised=True, notes=["OSError: no space"], **EMPTY)],
            0,
            "internal",
            "the program could not be recorded; OSError: no space",
        ),
        ([receipt(defect="torch 2.4.0 cannot be recorded (...)", **EMPTY)], 0, "internal", "torch 2.4.0 cannot be"),
        ([receipt(unfit="virtual card: no library")], 0, "unfit", "virtual card: no library"),
        ([receipt(from_checkout="tiny (/home/me/tiny.py)")], 0, "untestable", "tiny (/home/me/tiny.py) was imported"),
    ],
)
def test_what_is_no_answer(left: list[Receipt], status: int, kind: str, said: str) -> None:
    failure = failure_in(ended(*left, status=status))
    assert failure is not None
    assert failure.kind == kind
    assert said in failure.message
    assert "\n" not in failure.message


def test_an_end_without_an_exception_is_distinguished_from_one_by_it() -> None:
    """Of the former the last line that was printed says more."""
    silent = failure_in(ended(receipt(state="ended", iterations=0), status=2))
    raised = failure_in(ended(receipt(state="ended", iterations=0, raised=WRONG), status=1))
    assert silent is not None
    assert raised is not None
    assert (silent.is_status_alone, raised.is_status_alone) == (True, False)


@pytest.mark.parametrize(
    "left",
    [
        receipt(state="ended", iterations=2),
        receipt(state="ended", iterations=0, steps=0, optimizers=0),
        receipt(parameters_on_cpu=500 * MiB),
        receipt(parameters_on_cpu=MiB, parameters_on_card=0),
        receipt(state="ended", raised=OUT, refused=REFUSED),
        receipt(state="ended", refused=REFUSED),
        receipt(state="ended", refused=REFUSED, went_on=True),
    ],
    ids=["early end", "no optimizer", "offloaded", "functional", "raised", "gave up", "survived"],
)
def test_what_is_an_answer(left: Receipt) -> None:
    assert failure_in(ended(left)) is None


def test_memory_ran_out_where_nothing_was_done_after_a_refusal() -> None:
    assert receipt(state="ended", refused=REFUSED).ran_out
    assert receipt(state="running", refused=REFUSED).ran_out, "killed by its launcher after it had failed"
    assert receipt(state="ended", raised=OUT).ran_out
    assert not receipt(state="ended", refused=REFUSED, went_on=True).ran_out
    assert not receipt(state="stopped", refused=REFUSED).ran_out
    assert not receipt(state="ended", raised=WRONG).ran_out


receipts = st.builds(
    receipt,
    peak=st.integers(0, 4 * MiB),
    state=st.sampled_from(["running", "stopped", "ended"]),
    steps=st.integers(0, 3),
    iterations=st.integers(0, 3),
    parameters_on_cpu=st.integers(0, 4 * MiB),
    refused=st.sampled_from([None, REFUSED]),
    went_on=st.booleans(),
)


def test_a_rank_that_failed_while_another_went_on_leaves_no_answer() -> None:
    parts = [receipt(rank=0, world_size=2), receipt(rank=1, world_size=2, state="ended", iterations=0)]
    failure = failure_in(ended(*parts, status=1))
    assert failure is not None
    assert failure.message.startswith("rank 1 of 2 failed: it made 0 of the 3 iterations of rank 0")
    crashed = [parts[0], receipt(rank=1, world_size=2, state="running", iterations=0)]
    assert failure_in(ended(*crashed, status=1)) is not None
    helper = [receipt(rank=0, world_size=2), receipt(0, rank=0, world_size=2, state="ended", iterations=0)]
    assert failure_in(ended(*helper, status=-9)) is None, "a child that only imports torch has the rank of its parent"
    behind = [parts[0], receipt(rank=1, world_size=2, state="ended", iterations=2)]
    assert failure_in(ended(*behind, status=1)) is None, "it may have failed because rank 0 was ended"


@given(st.lists(receipts, min_size=1, max_size=4))
def test_the_worst_process_represents_the_program(left: list[Receipt]) -> None:
    chosen = representative(left)
    assert chosen is not None
    assert chosen in left
    if any(each.ran_out for each in left):
        assert chosen.ran_out
    else:
        assert chosen.peak_bytes == max(each.peak_bytes for each in left)


def test_of_a_launcher_and_its_child_the_child_says_why() -> None:
    launcher = receipt(state="ended", raised=Raised(text="ChildFailedError", details=""), began_ns=1, **EMPTY)
    child = receipt(state="ended", raised=WRONG, began_ns=2, **EMPTY)
    killed = receipt(state="running", began_ns=3, **EMPTY)
    assert representative([launcher, child, killed]) is child
    exited = receipt(state="ended", rank=0, world_size=1, began_ns=2, **EMPTY)
    assert representative([launcher, exited]) is exited, "a rank that left by sys.exit, before its launcher said so"


def test_of_ranks_that_did_the_same_the_lowest_is_reported_whichever_began_first() -> None:
    launcher = receipt(peak=0, began_ns=1)
    zero, one = (receipt(rank=rank, began_ns=began) for rank, began in ((0, 2), (1, 3)))
    late_zero = receipt(rank=0, began_ns=9)
    assert representative([launcher, zero, one]) is zero
    assert representative([launcher, one, late_zero]) is late_zero
    more = receipt(peak=101 * MiB, rank=1, began_ns=3)
    assert representative([zero, more]) is more


def test_the_rank_with_the_least_margin_is_reported_though_another_allocated_more() -> None:
    zero, one = (
        receipt(rank=rank, world_size=2, stats={"allocated_bytes.all.peak": live, "reserved_bytes.all.peak": held})
        for rank, live, held in ((0, 90 * MiB, 100 * MiB), (1, 60 * MiB, 160 * MiB))
    )
    assert representative([zero, one]) is one
    failed = replace(zero, state="ended", raised=OUT)
    assert representative([failed, one]) is failed
    wants_more = replace(failed, rank=1, refused=replace(REFUSED, requested_bytes=2 * MiB))
    assert representative([failed, wants_more]) is wants_more


def test_a_rank_can_be_chosen() -> None:
    zero, one = receipt(rank=0, peak=2 * MiB), receipt(rank=1)
    assert representative([zero, one], rank=1) is one
    assert failure_in(ended(zero, one), rank=1) is None
    failure = failure_in(ended(zero, one), rank=5)
    assert failure is not None
    assert (failure.kind, failure.message) == ("usage", "the program started no rank 5; it started 0, 1")


@given(st.lists(receipts, max_size=4), st.integers(-15, 127))
def test_nothing_on_the_card_is_never_an_answer(left: list[Receipt], status: int) -> None:
    if not any(each.peak_bytes or each.ran_out for each in left):
        assert failure_in(ended(*left, status=status)) is not None


def test_the_process_that_was_refused_speaks_before_one_that_raised_its_error_again() -> None:
    trainer = receipt(peak=500 * MiB, state="ended", raised=OUT, stats={"reserved_bytes.all.peak": 500 * MiB})
    worker = receipt(peak=0, state="running", refused=REFUSED, rank=None)
    assert representative([trainer, worker]) is worker


def test_a_process_that_was_killed_after_a_refusal_is_known_as_it_was_then() -> None:
    then = {"reserved_bytes.all.peak": 3 * MiB}
    killed = receipt(peak=0, state="running", refused=replace(REFUSED, device=1, stats=then)).as_last_known
    assert (killed.device, killed.snapshot, killed.stats) == (1, "oom.pickle", then)
    went_on = receipt(peak=0, state="running", refused=REFUSED, went_on=True)
    assert went_on.as_last_known is went_on


def test_what_other_processes_held_beside_one_is_not_to_spare_for_it() -> None:
    mine = receipt(stats={"reserved_bytes.all.peak": 300 * MiB}, most_held=[0, 800 * MiB], device=1)
    actor = receipt(peak=0, pid=8, state="running", is_cuda_initialised=True)
    budget = DeviceBudget(gpu="h200", limit_bytes=2000 * MiB, non_torch_bytes=100 * MiB, other_process_bytes=50 * MiB)
    assert _device_of(mine, [mine, actor], budget).other_process_bytes == 550 * MiB
    assert _device_of(mine, [mine], budget) == budget, "alone, what else it holds is its own"


def test_steps_of_another_process_are_steps_of_the_program() -> None:
    worker, trainer = receipt(pid=8, state="ended", iterations=0), receipt(peak=50 * MiB)
    (alone,) = _notes(ended(worker), worker, 3, [])
    assert alone.startswith("no step of a torch.optim.Optimizer was seen")
    (beside,) = _notes(ended(trainer, worker), worker, 3, [trainer])
    assert beside.startswith("2 processes used the card; this is process 8, which held most")
