"""What Dynamo makes of a program while functions of torch are replaced."""

from __future__ import annotations

from tests.unit.virtual.on_card import on_card

BEGIN = """
from oomscope.probe.recording.compiled import graphs_are_unchanged
from oomscope.probe.recording.values.known_integers import integers_are_followed
"""


def test_graphs_hold_torch_s_own_functions() -> None:
    said = on_card(
        BEGIN
        + """
own = [torch.ones, torch.where, torch.cat, torch.nn.functional.cross_entropy]
written = []

def backend(module, examples):
    written.extend(node.target for node in module.graph.nodes if node.op == "call_function")
    return module.forward

def loss(x, target):
    x = torch.where(torch.ones(4, device=x.device) > 0, x, x + 1)
    return torch.nn.functional.cross_entropy(torch.cat([x, x]), target)

with graphs_are_unchanged(), integers_are_followed():
    torch.compile(loss, backend=backend)(torch.randn(2, 4, device="cuda"), torch.tensor([1, 2, 3, 0], device="cuda"))
say([function in written for function in own])
""",
        preamble="torch",
        fresh=True,
    )
    assert said == [True] * 4


def test_what_runs_between_graphs_is_not_compiled() -> None:
    said = on_card(
        BEGIN
        + """
import torch._dynamo

@torch._dynamo.disable(recursive=False)
def between(x):
    return torch.cumsum(x.to(torch.float64), 0)

@torch.compile(backend="eager")
def compiled(x):
    return between(x * 2) + 1

def frames():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled(torch.randn(64, device="cuda"))
    return torch._dynamo.utils.counters["frames"]["total"]

plain = frames()
with graphs_are_unchanged(), integers_are_followed():
    followed = frames()
say([plain, followed])
""",
        preamble="torch",
        fresh=True,
    )
    plain, followed = said
    assert plain == followed > 0
