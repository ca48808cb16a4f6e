"""Where the program is, as every event carries it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.recording.position import Position
from oomscope.snapshot.metadata import from_text
from oomscope.snapshot.trace import Category, Moment


@pytest.fixture
def texts() -> list[str]:
    return []


@pytest.fixture
def position(texts: list[str]) -> Position:
    return Position(texts.append)


def moments(texts: list[str]) -> list[Moment]:
    return [from_text(text).moment for text in texts]


def test_the_first_phase_is_announced_when_asked_for(position: Position, texts: list[str]) -> None:
    position.announce()
    assert moments(texts) == [Moment("init", -1, -1)]


def test_told_phases_nest_and_the_innermost_wins(position: Position, texts: list[str]) -> None:
    with position.phase("forward", iteration=3, microbatch=1), position.phase("loss"):
        assert position.moment == Moment("loss", 3, 1)
    forward, init = Moment("forward", 3, 1), Moment("init", -1, -1)
    assert moments(texts) == [forward, Moment("loss", 3, 1), forward, init]


def test_an_implied_phase_keeps_its_iteration(position: Position, texts: list[str]) -> None:
    position.imply("forward", iteration=2, microbatch=0)
    position.imply("optimizer")
    assert moments(texts) == [Moment("forward", 2, 0), Moment("optimizer", 2, -1)]
    assert position.is_training
    assert not position.is_told


def test_a_module_without_a_name_goes_by_the_one_round_it(position: Position, texts: list[str]) -> None:
    for name in ("layers.0", "", "layers.0.mlp"):
        position.enter_module(name)
    for _ in range(3):
        position.leave_module()
    modules = [json.loads(text).get("mod", "") for text in texts]
    assert modules == ["layers.0", "layers.0", "layers.0.mlp", "layers.0", "layers.0", ""]


def test_a_forward_inside_backward_recomputes_activations(position: Position, texts: list[str]) -> None:
    position.enter_module("mlp")
    with position.phase("backward", iteration=0, microbatch=0):
        pass
    categories = [from_text(text).category for text in texts]
    assert categories == [Category.UNKNOWN, Category.ACTIVATION, Category.UNKNOWN]


@given(st.lists(st.sampled_from(["enter", "leave"]), max_size=20))
def test_leaving_more_modules_than_were_entered_does_no_harm(steps: list[str]) -> None:
    position, depth = Position(None), 0
    for step in steps:
        if step == "enter":
            position.enter_module("m")
            depth += 1
        else:
            position.leave_module()
            depth = max(0, depth - 1)
        assert position.module_depth == depth
