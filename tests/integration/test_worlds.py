"""Programs of several ranks on the virtual card: one rank played alone, and a process for each rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.forked import oomscope

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
TWO_RANKS = (sys.executable, "ranks.py", "2")
ALONE = ("--rank", "3", "--world-size", "4")


def probed(word: str, *options: str, launcher: tuple[str, ...] = (sys.executable,)) -> tuple[int, dict, str]:
    """Return the exit code of a probe of ``world.py``, its JSON, and what the program printed."""
    options = ("--backend", "virtual", "--iterations", "2", "--timeout", "100", *options)
    done = oomscope("probe", "--repo", str(PROGRAMS), *options, "--json", "--quiet", "--", *launcher, "world.py", word)
    printed = ""
    if log := done.stderr.partition("What the program printed: ")[2].strip():
        printed = Path(log).read_text()
        Path(log).unlink()
    return done.returncode, json.loads(done.stdout), printed


def events_of_rank_1(file: Path, *options: str, launcher: tuple[str, ...] = (sys.executable,)) -> list[list]:
    """Return action and size of each event of rank 1's card while it trains with DDP and then with FSDP2."""
    given = ("--backend", "virtual", "--iterations", "9", "--timeout", "300", "--repo", str(PROGRAMS), *options)
    done = oomscope("probe", *given, "--json", "--quiet", "--", *launcher, "world.py", "recorded", str(file))
    assert done.returncode == 0, done.stderr
    if log := done.stderr.partition("What the program printed: ")[2].strip():
        Path(log).unlink()
    return json.loads(file.read_text())


def test_a_played_rank_is_that_rank_of_a_real_world(tmp_path: Path) -> None:
    played = events_of_rank_1(tmp_path / "played.json", "--rank", "1", "--world-size", "2")
    assert len(played) > 500
    assert played == events_of_rank_1(tmp_path / "real.json", launcher=TWO_RANKS)


DDP_HARNESS = """
import torch
from oomscope import Target
from torch.nn.parallel import DistributedDataParallel

def setup(ctx):
    model = DistributedDataParallel(torch.nn.Linear(512, 512, device=ctx.device))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.randn(8, 512, device=ctx.device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Target(step, model=model, optimizer=optimizer)
"""


def test_a_harness_plays_a_rank_with_ddp(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    harness.write_text(DDP_HARNESS)
    options = ("--backend", "virtual", "--repo", str(tmp_path), "--json", "--quiet")
    done = oomscope("probe", "--harness", str(harness), *options, *ALONE)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["rank"], document["world_size"]) == (3, 4)
    assert document["peak"]["requested_bytes"] > 5 * 512 * 512 * 4, "weights, both moments, gradients and their buckets"


def test_ranks_of_a_world_that_runs_exchange_data() -> None:
    size = 3
    code, _, printed = probed("said", launcher=(sys.executable, "ranks.py", str(size)))
    assert code == 0, "what pads the objects is read, and does not matter: the run was repeated"
    assert lines_of(printed)[::2] == lines_of(printed)[1::2]
    assert lines_of(printed)[::2] == [
        {
            "rank": rank,
            "total": [0 + 1 + 2, size],
            "own": [1, 1],
            "gathered": [0, 1, 2],
            "exchanged": [rank, rank + 10, rank + 20],
            "halves": [0, 2, 4],
            "objects": ["", "x", "xx"],
            "received": [(rank - 1) % size],
            "within": [2 if rank < 2 else 1],
        }
        for rank in range(size)
    ]


@pytest.mark.parametrize(
    ("limit", "visible", "outcome", "margin", "two_ranks"),
    [
        ("2400MiB", "3,2", "fits", 2400 - 1024 - 600, TORCHRUN),
        ("2GiB", "0,1", "oom", None, TWO_RANKS),
    ],
)
def test_what_another_rank_holds_of_a_rank_s_card_is_not_there_for_it(
    limit: str, visible: str, outcome: str, margin: int | None, two_ranks: tuple[str, ...]
) -> None:
    launcher = ("env", f"CUDA_VISIBLE_DEVICES={visible}", *two_ranks)
    code, document, printed = probed("strays", "--limit", limit, launcher=launcher)
    assert (document["outcome"], document["rank"]) == (outcome, 0), (code, printed)
    if margin is None:
        assert (document["verdict"]["kind"], document["verdict"]["tags"]) == ("capacity", ["foreign"])
    else:
        assert document["margin_bytes"] == margin * 2**20 - document["peak"]["reserved_bytes"]
        assert document["ranks"][1]["margin_bytes"] == document["margin_bytes"] + 600 * 2**20
        assert any(note.startswith("rank 1 held at most 600.00 MiB of cuda:3") for note in document["notes"])


def test_objects_and_shapes_pass_between_stages_of_a_pipeline() -> None:
    code, document, printed = probed("passed_between_peers", "--rank", "1", launcher=TWO_RANKS)
    assert code == 0, printed
    assert (document["rank"], document["world_size"]) == (1, 2)
    assert [(each["rank"], each["outcome"]) for each in document["ranks"]] == [(0, "fits"), (1, "fits")]
    assert document["ranks"][1]["peak"]["requested_bytes"] == document["peak"]["requested_bytes"]
    assert document["ranks"][1]["margin_bytes"] == document["margin_bytes"]
    assert not any("processes used the card" in note for note in document["notes"])
    assert lines_of(printed) == [
        {"rank": 0, "broadcast": ["of 1"], "received": [None], "input": [2, 128]},
        {"rank": 0, "broadcast": ["of 1"], "received": [None], "input": [2, 128]},
        {"rank": 1, "broadcast": ["of 1"], "received": [{"from": 0}], "input": [2, 256]},
        {"rank": 1, "broadcast": ["of 1"], "received": [{"from": 0}], "input": [2, 256]},
    ]


def lines_of(printed: str) -> list[dict]:
    return sorted((json.loads(line) for line in printed.splitlines() if line.startswith("{")), key=lambda x: x["rank"])


def test_a_played_rank_receives_its_own_values_from_every_rank() -> None:
    code, document, printed = probed("said_by_default", *ALONE)
    assert code == 0, printed
    assert (document["rank"], document["world_size"]) == (3, 4)
    heard, again = lines_of(printed)
    assert heard.pop("received") != again.pop("received"), "what rank 2 sends is not known: the run was repeated"
    assert heard == again
    assert heard == {
        "rank": 3,
        "total": [12, 4],
        "own": [3, 1],
        "gathered": [3] * 4,
        "exchanged": [33] * 4,
        "halves": [6] * 4,
        "objects": ["xxx"] * 4,
        "within": [1],
    }


def test_a_played_rank_of_two_dimensions() -> None:
    code, document, printed = probed("tensor_parallel", *ALONE)
    assert code == 0, printed
    assert document["peak"]["categories"]["parameter"] > 0


def test_whole_weights_of_fsdp_1_are_parameters() -> None:
    code, document, printed = probed("fsdp_1", *ALONE)
    assert code == 0, printed
    whole = 3 * (128 * 128 + 128) * 4
    assert document["peak"]["phase"] == "backward"
    assert document["peak"]["categories"]["parameter"] == whole + whole // 4, "gathered, and this rank's quarter"


def test_what_needs_a_peer_is_refused_by_name() -> None:
    code, document, printed = probed("needs_peers", *ALONE)
    assert code == 6
    assert "broadcast_object_list from rank 0 needs another rank" in printed
    assert "recv_object_list needs another rank" in printed
    missing = "the store's key 'default_pg/0//token', which another rank writes, needs another rank"
    assert missing in document["failure"]["message"]
    assert "torchrun --nproc-per-node" in document["failure"]["message"]
    assert "; every rank's objects were this one's (all_gather_object), which may" in document["failure"]["message"]


def test_a_played_rank_that_waits_for_another_is_no_answer() -> None:
    code, document, _ = probed("told", *ALONE)
    assert code == 6
    assert document["failure"]["message"].startswith("the program ended before its first step; a rank that is played")
