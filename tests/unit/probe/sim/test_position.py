"""Every allocation knows its phase, iteration, microbatch, module and line; in backward also the forward line."""

from __future__ import annotations

import pytest
import torch

from oomscope.snapshot.trace import Category


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).exp()


def trained(simulate, microbatches: int = 2):
    session = simulate()
    with session:
        model = Net().to(session.device)
        optimizer = torch.optim.AdamW(model.parameters())
        session.watch(model, optimizer)
        for index in range(2):
            with session.iteration(index):
                for _ in range(microbatches):
                    x = torch.randn(8, 64).to(session.device)
                    loss = model(x).square().mean()
                    loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return session.measurement()


def moments(trace, i):
    return trace.moments[trace.moment_id[i]]


def test_phases_are_seen_from_outside(simulate, story):
    trace = trained(simulate).trace
    seen = []
    for i in story(trained(simulate)).indices():
        moment = tuple(moments(trace, i))
        if moment not in seen:
            seen.append(moment)
    one = [("forward", 0, 0), ("loss", 0, 0), ("backward", 0, 0)]
    two = [("optimizer", 0, -1), ("forward", 0, 1), ("loss", 0, 1), ("backward", 0, 1)]
    assert seen[0] == ("init", -1, -1)
    assert seen[1 : 1 + len(one) + len(two)] == one + two
    assert seen[8:11] == [("forward", 1, 0), ("loss", 1, 0), ("backward", 1, 0)]


def test_categories_are_told_apart(simulate, story):
    found = story(trained(simulate, microbatches=1))
    weights = 64 * 64 * 4 + 64 * 4
    assert found.categories("init") == {"parameter": weights}
    assert found.categories("optimizer")["optimizer_state"] == 2 * weights
    assert found.categories("backward")["gradient"] == 2 * weights
    assert found.categories("forward")["input"] == 2 * 8 * 64 * 4
    assert found.categories("forward")["activation"] == 2 * 8 * 64 * 4  # exp's result; the linear's own dies at once
    assert "unknown" not in found.categories()


def test_modules_and_lines_are_known_in_forward_and_backward(simulate, story):
    measured = trained(simulate)
    trace, found = measured.trace, story(measured)
    gradients = [i for i in found.indices("backward") if trace.category[i] == Category.GRADIENT]
    assert {trace.modules[trace.module_id[i]] for i in gradients} == {"inner"}
    causes = [trace.stacks[trace.forward_stack_id[i]] for i in gradients]
    assert all(any(frame.name == "forward" and frame.filename == __file__ for frame in stack) for stack in causes)
    forward = [trace.stacks[trace.stack_id[i]] for i in found.indices("forward")]
    assert all(any(frame.filename == __file__ for frame in stack) for stack in forward)
    assert not any("oomscope/probe/sim" in frame.filename for stack in trace.stacks for frame in stack)


def test_a_program_that_tells_its_phases_is_believed(simulate, story):
    session = simulate()
    with session, session.iteration(0):
        with session.observer.phase("forward", microbatch=3):
            kept = torch.empty(256, device=session.device)
            torch.empty(128, device=session.device)
        with session.observer.phase("optimizer"):
            state = torch.empty(64, device=session.device)
            session.observer.role("optimizer_state", [state])
    trace = session.measurement().trace
    found = story(session.measurement())
    assert [tuple(moments(trace, i)) for i in found.indices()] == [
        ("forward", 0, 3),
        ("forward", 0, 3),
        ("optimizer", 0, 0),
    ]
    assert found.categories() == {"activation": 1024, "temporary": 512, "optimizer_state": 256}
    del kept


def test_recomputed_activations_are_activations(simulate, story):
    from torch.utils.checkpoint import checkpoint

    session = simulate()
    with session, session.iteration(0):
        x = torch.randn(64, 64, device=session.device, requires_grad=True)
        y = checkpoint(lambda x: x.exp().sin().exp(), x, use_reentrant=False)
        y.sum().backward()
    assert story(session.measurement()).categories("backward")["activation"] == 3 * 64 * 64 * 4


def test_what_is_made_after_the_step_is_no_activation(simulate, story):
    session = simulate()
    kept = []
    with session:
        model = Net().to(session.device)
        optimizer = torch.optim.SGD(model.parameters())
        session.watch(model, optimizer)
        for index in range(2):
            with session.iteration(index):
                model(torch.ones(8, 64).to(session.device)).sum().backward()
                optimizer.step()
                kept.append(torch.zeros(1 << 16, device=session.device))
    found = story(session.measurement())
    assert found.categories("optimizer")["temporary"] >= 2 * 4 * (1 << 16)
    assert found.categories("forward").get("activation", 0) < 4 * (1 << 16)


def test_saved_activations_are_told_when_forward_itself_fails(simulate, story):
    def deepen(y: torch.Tensor) -> None:
        for _ in range(100):
            y = y.exp()

    session = simulate(limit_bytes=64 << 20)
    with session, session.iteration(0):
        y = torch.ones(1 << 20, device=session.device, requires_grad=True)
        with pytest.raises(torch.OutOfMemoryError):
            deepen(y)
    assert story(session.measurement()).categories("forward")["activation"] > 8 * 4 << 20
