"""Programs that compile nothing do without torch's compiler, and those that do meet torch as it is."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gc, json, sys, weakref
from oomscope import virtual
virtual.load()
from oomscope.probe.targets.compiler import import_compiler_late
if {late}:
    import_compiler_late()
import torch

net = torch.nn.Linear(4, 4)
garbage = torch.nn.Linear(4, 4)
garbage.itself = [garbage]
gone = weakref.finalize(garbage, print, "collected")
del garbage
optimizer = torch.optim.AdamW(net.parameters())

def step(x):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    torch.utils.checkpoint.checkpoint(net, x, use_reentrant=True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return x + 1

def needs_the_compiler():
    return "torch._dynamo" in sys.modules

step(torch.randn(2, 4, requires_grad=True))
collected = not gone.alive
asked = []
if {late}:
    asked = [needs_the_compiler(), hasattr(torch._compile, "__all__"), torch._compile.is_compiling()]
    asked.append(needs_the_compiler())

import torch._dynamo

def names_of(kind):
    functions = (found for found in gc.get_objects() if type(found) is type(step))
    codes = {{made.__code__ for made in functions if str(made.__module__).startswith(kind)}}
    return sorted((code.co_name, code.co_names) for code in codes if code.co_name in ("inner", "_use_grad"))

written = []

def backend(module, examples):
    written.append([str(node.target).partition(" at 0x")[0] for node in module.graph.nodes])
    return module.forward

torch.compile(step, backend=backend)(torch.randn(2, 4, requires_grad=True))
counted = {{kind: dict(counts) for kind, counts in torch._dynamo.utils.counters.items() if kind in ("frames", "stats")}}
compiled = [written, counted, names_of("torch")]
print(json.dumps({{"collected": collected, "asked": asked, "compiled": compiled}}))
"""


def test_a_plain_step_does_not_import_it_and_what_is_compiled_is_what_torch_compiles() -> None:
    said = {}
    for late in (True, False):
        command = [sys.executable, "-c", PROGRAM.format(late=late)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        said[late] = json.loads(done.stdout.splitlines()[-1])
    assert said[True]["collected"]
    assert said[False]["collected"], "the first optimizer has garbage collected"
    assert said[True]["asked"] == [False, False, False, True], "other questions reach it"
    assert said[True]["compiled"] == said[False]["compiled"]
    assert said[True]["compiled"][0] != []
