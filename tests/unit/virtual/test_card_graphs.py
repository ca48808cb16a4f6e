"""CUDA graphs and memory pools of PyTorch on the virtual card: capture, replay, and whose segments are whose."""

from __future__ import annotations

import json
from pathlib import Path

from tests.forked import oomscope
from tests.unit.virtual.on_card import on_card


def test_a_graph_is_captured_and_played() -> None:
    script = """
        static = torch.zeros(4, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            result = static * 2 + 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = static * 2 + 1
            copied = torch.empty_like(static).copy_(static)
        launched = state().launches
        static.copy_(torch.arange(4.0))
        graph.replay()
        kernels = state().launches - launched
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                result.sum().item()
        except RuntimeError as error:
            refused = "previous error during capture" in str(error) and "not permitted" in str(error.__context__)
        say([kernels, unknown(result), unknown(copied), copied.tolist(), refused, torch.cuda.memory_allocated() > 0])
        """
    kernels, *said = on_card(script, preamble="torch")
    assert kernels >= 3
    # The copy reads what a kernel of the same graph was given too.
    assert said[0] == 16
    assert said[3:] == [True, True]


PRIVATE = """
    def private():
        held = {}
        for segment in torch.cuda.memory_snapshot():
            held[segment["segment_pool_id"]] = held.get(segment["segment_pool_id"], 0) + segment["total_size"]
        held.pop((0, 0), None)
        return held
    """


def test_each_graph_and_pool_has_segments_of_its_own() -> None:
    script = """
    given = torch.ones(4 * MiB, device="cuda")
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    for graph, is_shared in zip(graphs, (False, False, True)):
        with torch.cuda.graph(graph, pool=graphs[0].pool() if is_shared else None):
            given * 2
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        large = torch.empty(30 * MiB, dtype=torch.uint8, device="cuda")
    held = private()
    own = [held.pop(id) for id in (graphs[0].pool(), graphs[1].pool(), pool.id)]
    graphs[2].replay()
    say([own, list(held), graphs[0].pool() == graphs[2].pool()])
    """
    assert on_card(PRIVATE + script, preamble="torch") == [[16 << 20, 16 << 20, 30 << 20], [], True]


def test_graphed_callables_train() -> None:
    script = """
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
        graphed = torch.cuda.make_graphed_callables(model, (torch.ones(8, 64, device="cuda", requires_grad=True),))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        held = []
        for _ in range(3):
            launched = state().launches
            graphed(torch.ones(8, 64, device="cuda", requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            held.append((torch.cuda.memory_allocated(), state().launches - launched))
        say(held)
        leave()
        """
    held = on_card(script, preamble="torch")
    assert held[1] == held[2]
    assert held[2][1] > 0


def test_a_freed_graph_gives_its_pool_back() -> None:
    script = """
    given = torch.ones(4 * MiB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = given * 2
    seen = [sum(private().values())]
    torch.cuda.empty_cache()
    seen.append(sum(private().values()))
    del doubled
    graph.reset()
    torch.cuda.empty_cache()
    say([*seen, sum(private().values())])
    """
    assert on_card(PRIVATE + script, preamble="torch") == [16 << 20, 16 << 20, 0]


def test_explain_names_the_pool_of_a_captured_graph(tmp_path: Path) -> None:
    file = tmp_path / "graph.pickle"
    script = f"""
        torch.cuda.memory._record_memory_history()
        given = torch.ones(4 * MiB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = given * 2
            given * 3
        torch.cuda.memory._dump_snapshot({str(file)!r})
        say(graph.pool())
        """
    pool = on_card(script, preamble="torch")
    explained = json.loads(oomscope("explain", file, "--json").stdout)
    assert explained["devices"][0]["pools"] == [
        {"pool_id": pool, "segments": 2, "reserved_bytes": 32 << 20, "active_bytes": 16 << 20}
    ]
    shown = oomscope("explain", file, "--full").stdout
    assert f"{pool[0]}, {pool[1]}" in shown[shown.index("Private pools at the end") :]
