"""Torch's own eager allocations are the oracle: forward and backward of many graphs, block for block.

On the CPU torch runs the same autograd engine and formulas as on CUDA, without fake tensors or modes. What it
allocates there is what the simulated device must record, except where the kernels of the two differ (left out here).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

N = 64
THRESHOLD = N * N * 4
"""Bytes; smaller blocks are scalars, statistics and biases, which CPU kernels lay out in their own way."""


def residual(x: torch.Tensor) -> torch.Tensor:
    y = x + x.sin()
    return y + functional.gelu(y)


def attention(x: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.t()).masked_fill(torch.ones_like(x, dtype=torch.bool).triu(1), -1e9)
    return scores.softmax(-1) @ x


def custom(x: torch.Tensor) -> torch.Tensor:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.saved_tensors[0]

    return Square.apply(x) + x


GRAPHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "four uses": lambda x: x.sin() + x.cos() + x.exp() + x.tanh(),
    "residual": residual,
    "twice the same": lambda x: x * x + x,
    "chain": lambda x: (x * 2).relu().sigmoid().sqrt(),
    "views": lambda x: x.view(16, 256).sin().view(N, N) + x.t().contiguous(),
    "split and cat": lambda x: torch.cat([part.exp() for part in x.chunk(2, -1)], -1),
    "stack": lambda x: torch.stack([x, x.sin()]).sum(0),
    "broadcast": lambda x: (x * x.mean(-1, keepdim=True)) + x.sum(0),
    "matmul": lambda x: x @ x.t() @ x,
    "attention": attention,
    "silu gate": lambda x: functional.silu(x) * x,
    "mish": functional.mish,
    "softmax": lambda x: x.softmax(-1) * x,
    "log softmax": lambda x: x.log_softmax(-1),
    "cross entropy": lambda x: functional.cross_entropy(x, torch.zeros(N, dtype=torch.long, device=x.device)),
    "index": lambda x: x[torch.zeros(N, dtype=torch.long, device=x.device)],
    "index select": lambda x: x.index_select(0, torch.zeros(N, dtype=torch.long, device=x.device)),
    "gather": lambda x: x.gather(0, torch.zeros(N, N, dtype=torch.long, device=x.device)),
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "masked fill": lambda x: x.masked_fill(x > 0, 0.0),
    "linear with bias": lambda x: functional.linear(x, x, x[0]),
    "custom function": custom,
    "division": lambda x: x / (x.abs() + 1),
    "power": lambda x: x.pow(3) + x.square(),
    "detached": lambda x: x * x.detach() + x.sin().detach(),
    "in place": lambda x: (x * 2).add_(x).mul_(3),
}


def forward_and_backward(graph: Callable[[torch.Tensor], torch.Tensor], device: torch.device | str) -> torch.Tensor:
    x = torch.randn(N, N, device=device, requires_grad=True)
    (graph(x * 1) * 2).sum().backward()  # times 2: CPU kernels copy the expanded gradient of a bare sum
    assert x.grad is not None
    return x


def blocks_on_cpu(graph: Callable[[torch.Tensor], torch.Tensor]) -> Counter[int]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        forward_and_backward(graph, "cpu")
    sizes = [event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return Counter(size for size in sizes if size >= THRESHOLD)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_blocks_as_torch_itself(simulate, story, name):
    session = simulate()
    with session:
        forward_and_backward(GRAPHS[name], session.device)
    simulated = Counter(size for size in story(session.measurement()).allocations() if size >= THRESHOLD)
    assert simulated == blocks_on_cpu(GRAPHS[name])
