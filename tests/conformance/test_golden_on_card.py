"""PyTorch's allocator on the virtual card and the emulator do the same with recorded operations, event for event.

The player is the one that plays them on a real card (``tests/gpu/capture.py``). The address policies decide where each
segment lies; the emulator is given the addresses that the card gave.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oomscope.virtual import CardSettings
from oomscope.virtual.cards import find_card
from oomscope.virtual.settings import AddressPolicy
from tests.conformance import card_captures as captures

ROOT = Path(__file__).resolve().parents[2]
PLAYER = "import sys, tests.card; from tests.gpu import capture; sys.exit(capture.main(sys.argv[1:]))"
NEEDS_HELD_STREAMS = {"fsdp-a/00", "fsdp-a/03@2.12.1", "streams-a/00@2.12.1", "streams-a/04@2.12.1"}
"""Their events are not ready for a while, which takes a kernel that runs; here every event is ready at once."""


def play(out: Path, *words: str, policy: AddressPolicy) -> list[captures.Item]:
    """Play recorded operations through PyTorch's allocator on the virtual card."""
    card = CardSettings(card=find_card("h200"), address_policy=policy)
    done = subprocess.run(
        [sys.executable, "-c", PLAYER, str(out), "--part", "golden", "--at-once", "2", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | card.variables(),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return captures.items(out, "golden")


def problems(items: list[captures.Item]) -> dict[str, list[str]]:
    """Return what differs, of each item that has no streams to hold."""
    found = {
        captures.titled(item): captures.golden_differences(item) for item in items if not captures.released_early(item)
    }
    return {name: differs for name, differs in found.items() if differs}


def test_the_emulator_repeats_the_allocator_on_scattered_addresses(tmp_path: Path) -> None:
    items = play(tmp_path, policy="scattered")
    assert {item["name"] for item in items if captures.released_early(item)} == NEEDS_HELD_STREAMS
    assert problems(items) == {}


def test_the_emulator_repeats_the_allocator_with_every_record(ground_truth: Path, tmp_path: Path) -> None:
    """Those of the test above among them; some 40 s."""
    items = play(tmp_path, "--golden", str(ground_truth / "allocator-golden"), policy="ascending")
    assert sum(not captures.released_early(item) for item in items) > 100
    assert problems(items) == {}
