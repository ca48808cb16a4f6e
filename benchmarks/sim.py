"""How long the simulated device takes beside torch's own memory tracker, on the same training code.

Both run in this process, on the same functions: a stack of llama blocks, two iterations of forward, backward and AdamW
each. ``torch.distributed._tools.mem_tracker.MemTracker`` under ``FakeTensorMode`` sums live storages by module; the
simulated device serves every allocation from an emulated caching allocator and keeps the stack of each. The
tracker's fake tensors lie on the CPU (on ``cuda`` their backward needs a GPU), the simulated device's on ``sim``. Time
is processor time of the iterations alone, without imports; each side runs once before it is measured, so that torch's
own caches are warm for both. Peaks differ by what only a card has: the kernels' own temporaries are left out here, but
attention, norms and the optimizer's foreach kernels follow CUDA's paths on one side and the CPU's on the other.

    python benchmarks/sim.py [--layers N] [--repeats N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional

from oomscope.probe.session import SessionSettings
from oomscope.probe.sim import SimSession
from oomscope.units import format_size
from oomscope.virtual.cards import find_card

WIDTH, HEADS, FFN, VOCAB, TOKENS = 4096, 32, 14336, 32000, 2048
ITERATIONS = 2


class Block(nn.Module):
    """A llama layer without rotary embedding: norm, attention, norm, gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up, self.down = nn.Linear(WIDTH, 2 * FFN, bias=False), nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[b, s, h]`` to ``[b, s, h]``."""
        batch, tokens, _ = x.shape
        q, k, v = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        hidden: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return hidden


class Llama(nn.Module):
    """Embedding, blocks, norm, logits, loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting ``tokens``, ``[b, s]``."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


Iteration = Callable[[int], AbstractContextManager[object]]
Train = Callable[[Iteration], None]


def training(layers: int, device: str) -> tuple[nn.Module, torch.optim.Optimizer, Train]:
    """Return the model, its optimizer and what runs the iterations, each in the context it is given."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Llama(layers)
        tokens = torch.zeros(1, TOKENS, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def train(iteration: Iteration) -> None:
        for index in range(ITERATIONS):
            with iteration(index):
                model(tokens).backward()
                optimizer.step()
                optimizer.zero_grad()

    return model, optimizer, train


def tracked(layers: int) -> tuple[float, int]:
    """Return MemTracker's seconds and peak bytes."""
    with FakeTensorMode():
        model, optimizer, train = training(layers, "cpu")
        tracker = MemTracker()
        tracker.track_external(model, optimizer)

        @contextmanager
        def iteration(index: int) -> Iterator[None]:
            tracker.reset_mod_stats()  # it refuses to see a module twice
            yield

        with tracker:
            began = time.process_time()
            train(iteration)
            took = time.process_time() - began
        peak = tracker.get_tracker_snapshot("peak")
    return took, peak[torch.device("cpu")]["Total"]


def simulated(layers: int, *, remember: bool = True) -> tuple[float, int]:
    """Return the simulated device's seconds and peak of requested bytes."""
    gpu = find_card("h200")
    session = SimSession(SessionSettings(gpu=gpu, unlimited=True, op_temporaries=False, remember_shapes=remember))
    with session:
        model, optimizer, train = training(layers, "sim")
        session.watch(model, optimizer)
        began = time.process_time()
        train(session.iteration)
        took = time.process_time() - began
    return took, session.measurement().stats.requested_bytes_peak


def main() -> None:
    """Print both times, both peaks and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sides: dict[str, Callable[[], tuple[float, int]]] = {
        "MemTracker": lambda: tracked(options.layers),
        "simulated device": lambda: simulated(options.layers),
        "simulated device, shapes not remembered": lambda: simulated(options.layers, remember=False),
    }
    print(f"{options.layers} layers, {ITERATIONS} iterations, median of {options.repeats} runs")
    seconds = {}
    for name, run in sides.items():
        run()
        times, peaks = zip(*(run() for _ in range(options.repeats)), strict=True)
        seconds[name] = median(times)
        print(f"{name:40s} {seconds[name]:7.2f} s   peak {format_size(peaks[0])}")
    print(f"MemTracker takes {seconds['MemTracker'] / seconds['simulated device']:.1f} times as long")


if __name__ == "__main__":
    main()
