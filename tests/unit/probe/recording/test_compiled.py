"""What Dynamo makes of a program while functions of torch are replaced."""

from __future__ import annotations

from tests.unit.virtual.on_card import on_card

SCRIPT = """
import torch._dynamo
from oomscope.probe.recording.compiled import graphs_are_unchanged
from oomscope.probe.recording.values.assumed_values import finite_numbers
from oomscope.probe.recording.values.known_values import values_are_followed
from torch._dynamo.utils import counters

def begin():
    torch._dynamo.reset()
    counters.clear()

own = [torch.ones, torch.where, torch.cat, torch.nn.functional.cross_entropy]
written = []

def backend(module, examples):
    written.extend(node.target for node in module.graph.nodes if node.op == "call_function")
    return module.forward

def loss(x, target):
    x = torch.where(torch.ones(4, device=x.device) > 0, x, x + 1)
    return torch.nn.functional.cross_entropy(torch.cat([x, x]), target)

with graphs_are_unchanged(), values_are_followed():
    torch.compile(loss, backend=backend)(torch.randn(2, 4, device="cuda"), torch.tensor([1, 2, 3, 0], device="cuda"))
own_are_written = [function in written for function in own]

@torch._dynamo.disable(recursive=False)
def between(x):
    return torch.cumsum(x.to(torch.float64), 0)

@torch.compile(backend="eager")
def compiled(x):
    return between(x * 2) + 1

def frames():
    begin()
    compiled(torch.randn(64, device="cuda"))
    return counters["frames"]["total"]

plain = frames()
with graphs_are_unchanged(), values_are_followed():
    followed = frames()

begin()
documents = torch.zeros(256, dtype=torch.int32, device="cuda")

def same_document(batch, head, query, key):
    return documents[query] == documents[key]

with graphs_are_unchanged(), finite_numbers(print), values_are_followed():
    from torch.nn.attention.flex_attention import create_block_mask

    torch.compile(create_block_mask, backend="eager")(same_document, None, None, 256, 256)
say([own_are_written, [plain, followed], [counters["stats"]["unique_graphs"], dict(counters["graph_break"])]])
"""


def test_graphs_are_those_of_a_program_whose_functions_are_torch_s_own() -> None:
    own_are_written, (plain, followed), of_a_mask = on_card(SCRIPT, preamble="torch", fresh=True)
    assert own_are_written == [True] * 4, "a graph holds what stands in for them"
    assert plain == followed > 0, "what runs between graphs is compiled"
    # A mask of flex attention is made under a mode of torch functions, and as big as its scores if not compiled whole.
    assert of_a_mask == [1, {}]
