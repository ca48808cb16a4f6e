"""Equal areas are equal bytes, and what is too narrow to be drawn is summed, never dropped."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.report.charts.segments import GAP, HEIGHT, PENDING, WIDTH, segment_chart, segment_data, strip_of
from oomscope.snapshot.explain.drawing import FloorPlan, PlacedBlock, PlacedSegment
from oomscope.snapshot.sites import Site
from oomscope.units import KiB, MiB

HERE = Site(file="here.py", line=1, function="f")


def plan(*segments: list[tuple[int, str]]) -> FloorPlan:
    """Return segments of blocks of these sizes and categories; ``pending`` is one, no category a gap."""
    placed, address = [], 1 << 40
    for blocks in segments:
        start, rows = address, []
        for size, what in blocks:
            is_pending = what == PENDING
            rows.append(
                PlacedBlock(
                    address=address,
                    size=size,
                    requested=size if what else 0,
                    category="activation" if is_pending else what,
                    is_pending=is_pending,
                    site=HERE if what else None,
                )
            )
            address += size
        placed.append(
            PlacedSegment(
                address=start,
                size=address - start,
                unused=sum(size for size, what in blocks if not what),
                stream=0,
                segment_type="large",
                is_private=False,
                blocks=tuple(rows),
            )
        )
    return FloorPlan(event=0, is_exact=True, segments=tuple(placed))


BLOCKS = st.tuples(st.integers(1, 64 * MiB), st.sampled_from(["", PENDING, "parameter", "activation"]))
PLANS = st.lists(st.lists(BLOCKS, min_size=1, max_size=8), min_size=1, max_size=40).map(lambda rows: plan(*rows))


@given(PLANS)
def test_the_strip_holds_every_byte_and_every_block(drawn: FloorPlan):
    strip = strip_of(drawn)
    assert sum(piece.size for piece in strip.pieces) == drawn.reserved_bytes == sum(strip.totals.values())
    assert sum(piece.segments for piece in strip.pieces) == len(drawn.segments)
    tiles = [tile for piece in strip.pieces for tile in piece.tiles]
    assert sum(tile.size for tile in tiles) == drawn.reserved_bytes
    blocks = [block for segment in drawn.segments for block in segment.blocks]
    assert sum(tile.count for tile in tiles) == sum(bool(block.category) for block in blocks)
    assert sum(tile.free for tile in tiles) == strip.totals.get(GAP, 0)
    assert sum(tile.requested for tile in tiles) == sum(block.requested for block in blocks)
    assert strip.line_bytes * strip.lines >= drawn.reserved_bytes


@given(PLANS, st.integers(0, 2**30), st.integers(1, 2**30))
def test_boxes_are_as_wide_as_their_bytes(drawn: FloorPlan, at: int, size: int):
    strip = strip_of(drawn)
    size = min(size, 50 * strip.line_bytes)
    boxes = list(strip.boxes(at, size))
    assert sum(right - left for _, left, right in boxes) == pytest.approx(size * WIDTH / strip.line_bytes)
    assert [line for line, *_ in boxes] == list(range(at // strip.line_bytes, (at + size - 1) // strip.line_bytes + 1))


def test_segments_too_narrow_are_one_piece_that_says_so():
    strip = strip_of(plan([(900 * MiB, "parameter")], *([(1 * MiB, "activation"), (1 * MiB, "")] for _ in range(12))))
    assert len(strip.pieces) == 13
    strip = strip_of(plan([(90_000 * MiB, "parameter")], *([(512 * KiB, "activation"), (MiB, "")] for _ in range(312))))
    large, folded = strip.pieces
    assert large.segments == 1
    assert str(folded) == "312 large segments too narrow to draw, together 468.00 MiB, 312.00 MiB unused"
    assert [(tile.category, tile.size, tile.count) for tile in folded.tiles] == [
        (GAP, 312 * MiB, 0),
        ("activation", 156 * MiB, 312),
    ]
    assert str(folded) in strip.caption()


def test_a_map_of_one_line():
    strip = strip_of(plan([(30 * MiB, "parameter"), (10 * MiB, ""), (40 * MiB, PENDING)]))
    chart = ET.fromstring(segment_chart(strip, "map", table="lines", when="at the end"))
    paths = {path.get("class"): path.get("d") for path in chart.iter("path")}
    assert paths["fill parameter"] == f"M0.00,2H375.00v{HEIGHT - 4}H0.00z"
    assert paths["fill gap"] == f"M375.00,2H500.00v{HEIGHT - 4}H375.00z"
    assert paths["fill activation"] == f"M500.00,2H1000.00v{HEIGHT - 4}H500.00z"
    strokes = [float(x) for x in re.findall(r"M([\d.]+),", paths["hatch"])]
    assert len(strokes) == 125
    assert 500 < min(strokes) < max(strokes) < 1000
    legend = ["".join(key.itertext()) for key in chart.iter() if "key" in (key.get("class") or "").split()]
    assert legend == ["parameter 30.00 MiB", "waiting for a stream 40.00 MiB", "free 10.00 MiB"]


def test_the_script_is_told_what_each_tile_is():
    data = segment_data(strip_of(plan([(3 * MiB, "parameter"), (MiB, "")], [(2 * MiB, "activation")])))
    assert data["rows"] == 3
    assert data["addresses"] == ["0x10000000000", "0x10000400000"]
    assert data["pieces"][0] == "segment of 4.00 MiB (large), 1.00 MiB unused"
    assert data["sites"] == ["", "here.py:1 f"]
