"""The trace of a run is the same to the byte whether shapes are remembered or asked of torch each time."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from oomscope.config.load import load_preset
from oomscope.probe.jobs import bundled_job
from oomscope.probe.measure import run_once
from oomscope.probe.sessions import open_session, settings_of
from oomscope.probe.sim import SimSession
from oomscope.snapshot.trace import Action, Trace
from oomscope.units import MiB


def same(first: Trace, second: Trace) -> bool:
    """Say whether two traces agree in every column and table."""
    pairs = [(getattr(first, field.name), getattr(second, field.name)) for field in fields(Trace)]
    return all(np.array_equal(one, two) if isinstance(one, np.ndarray) else one == two for one, two in pairs)


def bundled(*overrides: str, **changes: object) -> list[Trace]:
    """Return the traces of the smallest preset with and without memory, from one line of code for equal stacks."""
    job = replace(bundled_job(load_preset("gpt-tiny", overrides).config), backend="sim")
    traces = []
    for remember in (True, False):
        settings = replace(settings_of(job, "sim"), remember_shapes=remember, **changes)
        ending = run_once(job, settings, "sim", progress=lambda step: None, opener=open_session)
        assert ending.failure is None
        assert ending.measurement is not None
        traces.append(ending.measurement.trace)
    return traces


RECOMPUTED = (
    "recompute.recompute_granularity=full",
    "recompute.recompute_method=uniform",
    "recompute.recompute_num_layers=1",
)
PARALLEL = ("parallel.pipeline_model_parallel_size=2", "parallel.tensor_model_parallel_size=2")


@pytest.mark.parametrize("overrides", [RECOMPUTED, PARALLEL], ids=["full recompute", "tensor and pipeline parallel"])
def test_the_bundled_transformer(overrides):
    traces = bundled("model.num_layers=2", *overrides)
    assert len(traces[0]) > 500
    assert same(*traces)


def test_a_run_out_of_memory():
    traces = bundled("model.num_layers=2", limit_bytes=60 * MiB, non_torch_bytes=0)
    assert Action.OOM in traces[0].action
    assert same(*traces)


def test_a_program_of_its_own(simulate):
    def train(session: SimSession) -> Trace:
        with session:
            model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device=session.device)
            optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
            session.watch(model, optimizer)
            for index in range(3):
                with session.iteration(index):
                    x = torch.randn(4, 16, 64).to(session.device).requires_grad_()
                    for part in model(checkpoint(torch.sin, x, use_reentrant=False)).chunk(2, -1):
                        part.square().mean().backward(retain_graph=True)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
        return session.measurement().trace

    assert same(*(train(simulate(remember_shapes=remember)) for remember in (True, False)))
