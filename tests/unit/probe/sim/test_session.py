"""A session is repeatable to the byte, writes what PyTorch's own tools read, and adds up."""

from __future__ import annotations

import gc
import pickle

import pytest
import torch

from oomscope.errors import NothingOnDeviceError
from oomscope.probe.sim.temporaries import Card, cublas_workspace_bytes
from oomscope.snapshot.trace import Action
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB, KiB, MiB
from oomscope.virtual.cards import find_card


def train(session):
    with session:
        model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device=session.device)
        optimizer = torch.optim.AdamW(model.parameters())
        session.watch(model, optimizer)
        for index in range(2):
            with session.iteration(index):
                x = torch.randn(4, 16, 64).to(session.device)
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return session.measurement()


def test_two_runs_give_byte_identical_snapshots(simulate, tmp_path):
    files = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.pickle"
        write_snapshot(train(simulate()).snapshot, path)
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_garbage_is_looked_for_only_among_what_came_since(simulate):
    frozen = []

    def seen(phase, info):
        if phase == "start":
            frozen.append(gc.get_freeze_count())

    session = simulate()
    gc.disable()  # so that only those are seen that are asked for
    gc.callbacks.append(seen)
    try:
        train(session)
    finally:
        gc.callbacks.remove(seen)
        gc.enable()
    assert len(frozen) >= 2
    assert min(frozen) > 100_000  # torch's modules


def test_what_a_process_froze_stays_frozen(simulate):
    session = simulate()
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        train(session)
        assert gc.get_freeze_count() >= before - 1000  # but for what went meanwhile
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("ask", [gc.enable, lambda: gc.set_threshold(1, 1, 1)], ids=["enable", "threshold"])
def test_a_program_that_asks_for_collection_gets_it_between_iterations_alone(simulate, ask):
    threshold, begun = gc.get_threshold(), []
    session = simulate()

    def seen(phase, _info):
        begun.append(phase)

    try:
        with session:
            ask()
            gc.callbacks.append(seen)
            kept = [[number] for number in range(50_000)]
            gc.callbacks.remove(seen)
    finally:
        gc.set_threshold(*threshold)
    assert (len(kept), begun) == (50_000, [])
    assert gc.isenabled()


def test_pytorchs_own_tools_read_the_snapshot_and_find_the_same_totals(simulate, tmp_path):
    from torch.cuda import _memory_viz

    measured = train(simulate())
    path = tmp_path / "snapshot.pickle"
    write_snapshot(measured.snapshot, path)
    snapshot = pickle.loads(path.read_bytes())
    segments = snapshot["segments"]
    assert sum(segment["total_size"] for segment in segments) == measured.stats.reserved_bytes_current
    active = [b for segment in segments for b in segment["blocks"] if b["state"] == "active_allocated"]
    assert sum(block["requested_size"] for block in active) == measured.stats.requested_bytes_current
    page = _memory_viz.trace_plot(snapshot)
    assert "<html" in page or "<!DOCTYPE html>" in page
    assert len(_memory_viz.segsum(snapshot)) > 0
    events = snapshot["device_traces"][0]
    live = {}
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            del live[event["addr"]]
    assert sum(live.values()) == measured.stats.requested_bytes_current


def test_the_trace_adds_up_to_the_allocators_counters(simulate, story):
    measured = train(simulate())
    assert story(measured).requested_bytes() == measured.stats.requested_bytes_current
    reserved = 0
    for action, size in zip(measured.trace.action, measured.trace.size, strict=True):
        reserved += int(size) * ((action == Action.SEGMENT_ALLOC) - int(action == Action.SEGMENT_FREE))
    assert reserved == measured.stats.reserved_bytes_current


def test_a_limit_is_a_card_with_that_many_bytes_in_all(simulate):
    session = simulate(limit_bytes=4 * GiB, non_torch_bytes=GiB, other_process_bytes=GiB)
    with session:
        assert torch.sim.mem_get_info() == (2 * GiB, 4 * GiB)
        torch.empty(2 * GiB, dtype=torch.uint8, device=session.device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * GiB + 1, dtype=torch.uint8, device=session.device)
    budget = session.measurement().device
    assert budget.available_bytes == 2 * GiB


def test_expandable_segments_are_heeded(simulate):
    session = simulate(allocator_conf="expandable_segments:True")
    with session:
        torch.empty(MiB, device=session.device)
    actions = {Action(int(action)) for action in session.measurement().trace.action}
    assert Action.SEGMENT_MAP in actions
    assert Action.SEGMENT_ALLOC not in actions


def test_an_unlimited_session_never_fails(simulate):
    session = simulate(limit_bytes=MiB, unlimited=True)
    with session:
        torch.empty(100 * GiB, dtype=torch.uint8, device=session.device)
    assert session.measurement().oom is None


@pytest.mark.parametrize(("gpu", "expected"), [("h100-80gb", 32 * MiB), ("a100-80gb", 8_519_680)])
def test_each_thread_that_multiplies_gets_one_cublas_workspace(simulate, story, gpu, expected):
    session = simulate(gpu=find_card(gpu), op_temporaries=True)
    with session, session.iteration(0):
        module = torch.nn.Linear(8, 8, device=session.device)
        for _ in range(3):
            module(torch.ones(2, 8, device=session.device)).sum().backward()
    found = story(session.measurement())
    assert found.categories()["workspace"] == 2 * expected
    assert found.allocations("forward").count(expected) == 1
    assert found.allocations("backward").count(expected) == 1


@pytest.mark.parametrize(
    ("config", "expected"), [(":4096:8", 32 * MiB), (":16:8", 128 * KiB), (":4096:2:16:8", 8_519_680)]
)
def test_the_workspace_configuration_is_summed(config, expected):
    card = Card(compute_capability=(8, 0), cublas_workspace_config=config)
    assert cublas_workspace_bytes(card) == expected


def test_an_unreadable_workspace_configuration_is_named():
    from oomscope.errors import ConfigError

    with pytest.raises(ConfigError, match="CUBLAS_WORKSPACE_CONFIG: cannot read 'lots'; give it as :4096:8"):
        cublas_workspace_bytes(Card(compute_capability=(9, 0), cublas_workspace_config="lots"))


def test_flash_attentions_backward_needs_its_accumulators(simulate, story):
    def peak(op_temporaries: bool) -> int:
        session = simulate(op_temporaries=op_temporaries)
        with session, session.iteration(0):
            shape = {"device": session.device, "dtype": torch.bfloat16, "requires_grad": True}
            q, k = torch.randn(1, 8, 1024, 64, **shape), torch.randn(1, 2, 1024, 64, **shape)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
            out.sum().backward()
        return sum(story(session.measurement()).allocations())

    softmax_d = 8 * 1024 * 4
    dq_accum = 1024 * 8 * 64 * 4
    expanded = 1024 * 8 * 64 * 2
    assert peak(op_temporaries=True) - peak(op_temporaries=False) == softmax_d + dq_accum + 2 * expanded


def test_the_embeddings_backward_needs_its_partial_sums(simulate, story):
    def total(op_temporaries: bool) -> int:
        session = simulate(op_temporaries=op_temporaries)
        with session, session.iteration(0):
            table = torch.nn.Embedding(1000, 64, device=session.device, dtype=torch.bfloat16)
            table(torch.zeros(4096, dtype=torch.long, device=session.device)).sum().backward()
        return sum(story(session.measurement()).allocations())

    partials = 409 + 1000
    expected = partials * 64 * 4 + 8 * (3 * 4096 + 2 * 1000 + partials)
    assert total(op_temporaries=True) - total(op_temporaries=False) == expected


def test_layer_norms_backward_sums_tall_inputs_in_two_steps(simulate, story):
    def total(op_temporaries: bool, rows: int) -> int:
        session = simulate(op_temporaries=op_temporaries)
        with session, session.iteration(0):
            norm = torch.nn.LayerNorm(64, device=session.device)
            norm(torch.ones(rows, 64, device=session.device)).sum().backward()
        return sum(story(session.measurement()).allocations())

    tall, low = 131072, 65536
    assert total(op_temporaries=True, rows=tall) - total(op_temporaries=False, rows=tall) == 2 * 4096 * 64 * 4
    assert total(op_temporaries=True, rows=low) == total(op_temporaries=False, rows=low)


def test_a_program_that_puts_nothing_on_the_device_is_told_so(simulate):
    session = simulate()
    said = pytest.raises(NothingOnDeviceError, match="put nothing on the simulated device")
    with session, said, session.iteration(0):
        torch.ones(4).sum()
