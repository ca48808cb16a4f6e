"""The set of per-rank files that comes with the project is what its README says."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.trace import Action

RANKS = Path(__file__).resolve().parents[4] / "fixtures" / "snapshots" / "ranks"


@pytest.mark.parametrize("rank", range(4))
def test_each_rank_tells_who_it_is_and_only_the_last_fails(rank: int) -> None:
    snapshot = load_snapshot(RANKS / f"snap-{rank}.pickle.gz")
    [trace] = snapshot.traces
    assert (snapshot.provenance.rank, snapshot.provenance.world_size) == (rank, 4)
    assert bool((trace.action == Action.OOM).any()) == (rank == 3)


@pytest.mark.parametrize("rank", range(4))
def test_no_path_of_a_machine_is_in_it(rank: int) -> None:
    [trace] = load_snapshot(RANKS / f"snap-{rank}.pickle.gz").traces
    paths = {frame.filename for stack in trace.stacks for frame in stack}
    assert any(path.startswith("oomscope/model/") for path in paths)
    assert not any(path.startswith("/") for path in paths)
