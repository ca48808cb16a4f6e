"""Random but consistent traces: what a real allocator could have recorded."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from oomscope.snapshot.trace import Action, Block, Category, Frame, Moment, Segment, Trace
from tests.trace_builder import TraceBuilder

FRAMES = (
    Frame("/repo/model.py", 10, "forward"),
    Frame("/repo/train.py", 20, "main"),
    Frame("/x/site-packages/torch/nn/modules/module.py", 1, "_call_impl"),
    Frame("??", 0, "at::empty"),
)
STACKS = st.one_of([st.sampled_from([*product(FRAMES, repeat=depth)]) for depth in range(5)])
"""Up to four frames deep; chosen whole, since drawing them frame by frame took half the time of the tests."""
PHASES = ("", "forward", "backward")
MOMENTS = st.sampled_from([Moment(*parts) for parts in product(PHASES, range(-1, 4), range(-1, 4))])
STREAMS = (0, 7)
MODULES = ("", "layers.0.mlp")
POOLS = ((0, 0), (0, 3))
TRAITS = st.sampled_from([*product(STREAMS, Category, MODULES, POOLS)])
TIMES = st.integers(0, 2**40)
SIZES = st.integers(1, 10_000)


def segment(total: int, *blocks: Block, address: int = 0, **facts) -> Segment:
    """Return a large segment of the default stream and pool, unless ``facts`` say otherwise."""
    known = {"device": 0, "stream": 0, "segment_type": "large", "is_expandable": False}
    return Segment(address=address, total_size=total, blocks=blocks, **known | facts)


@st.composite
def recordings(draw: st.DrawFn, *, clean_start: bool = False) -> tuple[Trace, tuple[Segment, ...], list[int]]:
    """Return a trace, the segments at its end, and the requested bytes after each of its events.

    Every block lives in a segment of its own, so that addresses are simple; a block gets a new tenant only once it
    was returned. Unless ``clean_start``, the trace is cut off at a random event, as a ring buffer does.
    """
    builder = TraceBuilder()
    slots = draw(st.integers(1, 5))
    any_slot = st.integers(0, slots - 1)
    size_of: dict[int, int] = {}
    state = dict.fromkeys(range(slots), "inactive")
    requested = []
    total = 0
    events = []
    for _ in range(draw(st.integers(0, 30))):
        slot = draw(any_slot)
        if state[slot] == "inactive":
            size_of[slot] = draw(SIZES)
            state[slot] = "active_allocated"
            total += size_of[slot]
            action = Action.ALLOC
        elif state[slot] == "active_allocated":
            state[slot] = "active_pending_free"
            action = Action.FREE_REQUESTED
        else:
            state[slot] = "inactive"
            total -= size_of[slot]
            action = Action.FREE_COMPLETED
        events.append((action, address_of(slot), size_of[slot]))
        requested.append(total)
    cut = 0 if clean_start else draw(st.integers(0, len(events)))
    for action, address, size in events[cut:]:
        stream, category, module, pool = draw(TRAITS)
        time_us, stack, moment, forward_stack = draw(TIMES), draw(STACKS), draw(MOMENTS), draw(STACKS)
        builder.event(action, address, size, stream, time_us, stack, moment, category, module, forward_stack, pool)
    segments = tuple(
        Segment(
            device=0,
            address=address_of(slot),
            total_size=2 * 1024**2,
            stream=0,
            segment_type="small",
            is_expandable=False,
            blocks=(
                Block(
                    address=address_of(slot),
                    size=2 * 1024**2,
                    requested_size=size_of.get(slot, 0),
                    state=state[slot],
                ),
            ),
        )
        for slot in range(slots)
    )
    return builder.build(), segments, requested[cut:]


def address_of(slot: int) -> int:
    """Return the address of a slot, past 2**63 so that signed columns would show."""
    return 2**63 + slot * 2 * 1024**2
