"""The backward of a custom function runs on the stream that it was applied on, whatever runs inside it."""

from __future__ import annotations

import torch

from oomscope.probe.sim.backend import module
from oomscope.snapshot.trace import Action


class CopiesAside(torch.autograd.Function):
    """Works on a side stream first, as an all-gather under a checkpoint does."""

    @staticmethod
    def forward(ctx, x, stream):
        with module.stream(stream):
            x.clone()
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


def test_backward_runs_where_the_function_was_applied(simulate) -> None:
    session = simulate()
    before = vars(torch.autograd.Function)["apply"]
    with session, session.iteration(0):
        x = torch.ones(256, device=session.device, requires_grad=True)
        CopiesAside.apply(x, torch.sim.Stream()).sum().backward()
    assert vars(torch.autograd.Function)["apply"] is before
    trace = session.measurement().trace
    streams = {
        trace.moments[trace.moment_id[i]].phase: int(trace.stream[i])
        for i in range(len(trace))
        if trace.action[i] == Action.ALLOC and trace.size[i] == 1024
    }
    assert streams["backward"] == 0
    asides = [int(trace.stream[i]) for i in range(len(trace)) if trace.action[i] == Action.ALLOC]
    assert any(asides), "nothing ran aside"
