"""What the simulated device says of the things that are captured on a card: single operations, and training."""

from __future__ import annotations

import gc
from typing import Any

from oomscope.probe.sessions import SessionSettings
from oomscope.probe.sim import SimSession
from oomscope.snapshot.trace import Action, Snapshot
from oomscope.virtual.cards import Card
from tests.gpu.captures.decoder import Shape, Way, named
from tests.gpu.captures.decoder import training as decoder_training
from tests.gpu.captures.operations import FAMILIES, Call, Place
from tests.gpu.captures.training import ITERATIONS

_SIGN = {Action.ALLOC: 1, Action.FREE_REQUESTED: -1}
_NAMES = {Action.ALLOC: "alloc", Action.FREE_REQUESTED: "free_requested"}


def card_of(machine: dict[str, Any]) -> Card:
    """Return the card that a captured machine describes; its speed is not asked for."""
    major, minor = map(int, machine["compute_capability"].split("."))
    return Card(
        name=machine["gpu"],
        device_name=machine["gpu"],
        total_bytes=machine["total_memory"],
        capability=(major, minor),
        multiprocessors=machine["multiprocessors"],
        l2_bytes=0,
        bus_bits=0,
        bf16_tflops=None,
        memory_gbps=1.0,
        nvlink_gbps=None,
        pcie_gbps=1.0,
        source="captured",
        cache_source="captured",
    )


def trained(item: dict[str, Any], gpu: Card, *, conf: str, torch_version: str) -> SimSession:
    """Return the session in which a decoder was trained as ``item`` says."""
    session = SimSession(SessionSettings(gpu=gpu, allocator_conf=conf, torch_version=torch_version))
    with session:
        work = decoder_training(Shape(**named(Shape, item)), Way(**named(Way, item)), session.device)
        for _ in range(ITERATIONS):
            work.step()
    return session


def operations(family: str, gpu: Card, *, torch_version: str, scale: float = 1.0) -> list[dict[str, Any]]:
    """Return rows like those of ``captures/temporaries.py``: what each operation takes when it is called again."""
    session = SimSession(SessionSettings(gpu=gpu, torch_version=torch_version))
    with session:
        calls = FAMILIES[family](Place(str(session.device), scale))
        return [{"op": name, **_watched(session, call)} for name, call in calls]


def _watched(session: SimSession, call: Call) -> dict[str, Any]:
    call()
    gc.collect()
    known = len(_trace(session).traces[0])
    left = call()
    trace = _trace(session).traces[0]
    del left
    events, live, peak = list[tuple[str, int]](), 0, 0
    for action, size in zip(trace.action[known:].tolist(), trace.size[known:].tolist(), strict=True):
        if action in _SIGN:
            events.append((_NAMES[Action(action)], size))
            live += _SIGN[Action(action)] * size
            peak = max(peak, live)
    return {"before": 0, "peak": peak, "after": live, "events": events}


def _trace(session: SimSession) -> Snapshot:
    return session._state().snapshot
