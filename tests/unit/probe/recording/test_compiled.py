"""What Dynamo makes of a program while functions of torch are replaced."""

from __future__ import annotations

from tests.unit.virtual.on_card import on_card

BEGIN = """
from oomscope.probe.recording.compiled import graphs_are_unchanged
from oomscope.probe.recording.values.assumed_values import finite_numbers
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


def test_what_a_mode_of_torch_functions_calls_is_no_break_of_a_graph() -> None:
    """A mask of flex attention, made under such a mode: as big as its scores where it is not compiled whole."""
    said = on_card(
        BEGIN
        + """
documents = torch.zeros(256, dtype=torch.int32, device="cuda")

def same_document(batch, head, query, key):
    return documents[query] == documents[key]

with graphs_are_unchanged(), finite_numbers(print), integers_are_followed():
    from torch.nn.attention.flex_attention import create_block_mask

    torch.compile(create_block_mask, backend="eager")(same_document, None, None, 256, 256)
counters = torch._dynamo.utils.counters
say([counters["stats"]["unique_graphs"], dict(counters["graph_break"])])
""",
        preamble="torch",
        fresh=True,
    )
    assert said == [1, {}]
