"""Categories told by evidence are the true ones of a program whose categories are known, and never a silent guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from oomscope.snapshot.accounting.lifetimes import BEFORE
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.categorise import NO_RULE, RECORDED, categorise
from oomscope.snapshot.infer.category_rules import Confidence
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Category, Frame
from oomscope.units import MiB
from tests.unit.snapshot import foreign
from tests.unit.snapshot.cuts import tail
from tests.unit.snapshot.foreign import PARAMETERS, Training
from tests.unit.snapshot.strategies import recordings

FIXTURES = Path(__file__).parents[4] / "fixtures" / "snapshots"


def trained(steps: int = 3, **how) -> Training:
    job = Training(**how)
    job.build()
    for _ in range(steps):
        job.step()
    return job


@pytest.mark.parametrize("backward", [foreign.BACKWARD, foreign.ENGINE], ids=["python frames", "no frames"])
def test_every_block_of_a_training_job_gets_its_true_category(backward):
    job = trained(backward=backward)
    timeline = job.timeline()
    evidence = categorise(timeline)
    found = {int(timeline.lifetimes.born[row]): Category(evidence.category[row]) for row in range(len(evidence.rule))}
    assert found == job.truth
    assert set(evidence.confidence.tolist()) <= {Confidence.MEDIUM, Confidence.HIGH}


def test_what_the_recording_says_counts_first():
    job = trained()
    trace = job.trace()
    said = np.where(trace.category == 0, Category.WORKSPACE, trace.category).astype(np.int8)
    evidence = categorise(Timeline.of(replace(trace, category=said), job.segments()))
    assert set(evidence.category.tolist()) == {Category.WORKSPACE}
    assert set(evidence.confidence.tolist()) == {Confidence.CERTAIN}
    assert {evidence.rules[rule] for rule in evidence.rule} == {RECORDED}


def test_a_recording_without_a_known_model_is_not_certain_of_what_is_temporary():
    job = trained()
    trace, truth = job.trace(), job.truth
    said = np.zeros_like(trace.category)
    said[list(truth)] = Category.TEMPORARY
    timeline = Timeline.of(replace(trace, category=said), job.segments())
    evidence = categorise(timeline)
    found = {int(timeline.lifetimes.born[row]): Category(evidence.category[row]) for row in range(len(evidence.rule))}
    assert found == truth
    assert Confidence.CERTAIN not in evidence.confidence


def test_a_forward_inside_backward_is_a_recomputed_activation():
    job = trained(1)
    job.make(40 * MiB, foreign.FORWARD, Category.ACTIVATION)
    job.make(9 * MiB, foreign.BACKWARD, Category.TEMPORARY)
    again = job.make(40 * MiB, foreign.RECOMPUTED, Category.ACTIVATION)
    job.free(again)
    timeline = job.timeline()
    evidence = categorise(timeline)
    row = int(np.flatnonzero(timeline.lifetimes.born == max(job.truth))[0])
    assert Category(evidence.category[row]) is Category.ACTIVATION
    assert evidence.rules[evidence.rule[row]] == "recomputed in backward"


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "alloc_storage"),
        ("torch/distributed/fsdp/_flat_param.py", "_alloc_padded_unsharded_flat_param"),
        ("deepspeed/runtime/zero/partition_parameters.py", "_all_gather_coalesced"),
    ],
)
def test_whole_weights_are_parameters_though_they_come_and_go(file, function):
    job = trained(1)
    stack = (Frame(f"/venv/lib/{file}", 9, function), *foreign.FORWARD)
    passing, held = (job.make(32 * MiB, stack, Category.PARAMETER) for _ in range(2))
    job.free(passing)
    job.make(9 * MiB, foreign.BACKWARD, Category.TEMPORARY)
    job.free(held)
    timeline = job.timeline()
    evidence = categorise(timeline)
    made = [born for born, kind in job.truth.items() if kind is Category.PARAMETER][-2:]
    rows = np.flatnonzero(np.isin(timeline.lifetimes.born, made))
    assert {Category(evidence.category[row]) for row in rows} == {Category.PARAMETER}


def test_a_failure_in_the_middle_of_backward_takes_blocks_for_what_their_like_were():
    job = trained(2)
    job.make(40 * MiB, foreign.FORWARD, Category.ACTIVATION)
    job.make(9 * MiB, foreign.BACKWARD, Category.TEMPORARY)
    timeline = job.timeline()
    evidence = categorise(timeline)
    last = int(timeline.lifetimes.born.argmax())
    assert Category(evidence.category[last]) is Category.TEMPORARY
    assert evidence.confidence[last] == Confidence.MEDIUM


@pytest.mark.parametrize("states", [0, 1, 2, 3])
def test_parameters_and_states_from_before_the_recording_are_counted_by_the_sizes_of_gradients(states):
    job = Training()
    older = [job.alloc(size, stack=()) for size in PARAMETERS * (1 + states)]
    job.states = older
    start = len(job.builder)
    job.step()
    job.step()
    timeline = Timeline.of(tail(job.trace(), start), job.segments())
    evidence = categorise(timeline)
    size = timeline.lifetimes.size
    before = timeline.lifetimes.born == BEFORE
    assert before.sum() == len(older)
    for category, times in ((Category.PARAMETER, 1), (Category.OPTIMIZER_STATE, states)):
        assert size[before & (evidence.category == category)].sum() == times * sum(PARAMETERS)
    assert set(evidence.confidence[before].tolist()) == {Confidence.LOW}


def test_what_a_forward_kept_before_the_recording_is_no_optimizer_state_whatever_its_size():
    """The segments keep its stack; a full ring holds the last iterations only."""
    job = Training()
    job.build()
    job.step()
    kept = [job.make(2 * size, foreign.FORWARD, Category.KEPT) for size in PARAMETERS * 2]
    start = len(job.builder)
    for _ in range(3):
        job.step()
    stacks = dict.fromkeys(kept, foreign.FORWARD)
    segments = tuple(
        replace(
            each, blocks=tuple(replace(block, stack=stacks.get(block.address, block.stack)) for block in each.blocks)
        )
        for each in job.segments()
    )
    timeline = Timeline.of(tail(job.trace(), start), segments)
    evidence = categorise(timeline)
    of_size = np.isin(timeline.lifetimes.size, [2 * size for size in PARAMETERS])
    assert of_size.sum() == len(kept)
    assert set(evidence.category[of_size].tolist()) == {Category.KEPT}


@given(recordings())
def test_each_block_has_a_category_with_a_rule_or_none_with_none(recording):
    trace, segments, _ = recording
    timeline = Timeline.of(trace, segments)
    evidence = categorise(timeline)
    assert len(evidence.category) == len(evidence.confidence) == len(evidence.rule) == len(timeline.lifetimes)
    for category, confidence, rule in zip(evidence.category, evidence.confidence, evidence.rule, strict=True):
        assert (category == Category.UNKNOWN) == (confidence == Confidence.NONE) == (evidence.rules[rule] == NO_RULE)


def test_gradients_from_before_a_ring_that_lost_its_beginning_are_counted():
    """They are most before the first event: backward is not run again, and later gradients are added to them."""
    snapshot = load_snapshot(FIXTURES / "torch-2.6-wrapped-gradients.pickle")
    for start in (0, 20, 48):
        timeline = Timeline.of(tail(snapshot.traces[0], start), snapshot.segments)
        table = timeline.lifetimes
        stays = (table.born == BEFORE) & (table.freed == table.end)
        numbers, counts = np.unique(categorise(timeline).category[stays], return_counts=True)
        found = dict(zip(map(Category, numbers.tolist()), counts.tolist(), strict=True))
        assert found == {Category.PARAMETER: 3, Category.GRADIENT: 3, Category.OPTIMIZER_STATE: 6}
