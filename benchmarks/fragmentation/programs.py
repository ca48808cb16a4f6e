"""Training and serving programs whose memory fragments, made from a seed.

Each family is a pattern of allocations that people meet: batches of other lengths, tensors that outlive their
neighbours, key-value caches, buffers of side streams, optimizer states that are created between activations. A name
such as ``kv_cache:17`` stands for one program: the family, and the seed of its sizes. The same name gives the same
requests on every run. Nothing of oomscope is imported, so that a program can be run without it:

    python benchmarks/fragmentation/programs.py kv_cache:17

The file is a harness as well: ``oomscope probe --harness benchmarks/fragmentation/programs.py --iterations 4`` with the
name in the variable ``FRAGMENTATION_PROGRAM``. ``search.py`` finds the size of card on which a program fails.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from decoder import Decoder
from torch import Tensor

if TYPE_CHECKING:
    from oomscope import Context, Target

VARIABLE = "FRAGMENTATION_PROGRAM"
STEPS = 4
"""Iterations of every program."""
KIB, MIB = 1024, 1024**2
Step = Callable[[], None]


def empty(size: int) -> Tensor:
    """Return ``size`` bytes of device memory."""
    return torch.empty(max(1, size), dtype=torch.uint8, device="cuda")


def growing_lengths(rng: random.Random) -> Step:
    """Train a decoder on batches of other lengths, mostly longer ones; AdamW makes its states in the first step."""
    model = Decoder(width=rng.choice((1024, 1536, 2048)), layers=rng.randint(3, 8), vocabulary=32_000).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    lengths = iter([rng.randrange(128, 1024, 8), *(rng.randrange(512, 4096, 8) for _ in range(STEPS))])
    batch = rng.randint(1, 8)

    def step() -> None:
        for _ in range(1 + batch % 2):
            model.loss(batch, next(lengths, 1024)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def recompute(rng: random.Random) -> Step:
    """Train with activation checkpointing and accumulation over microbatches of other lengths."""
    model = Decoder(width=rng.choice((1024, 2048, 3072)), layers=rng.randint(4, 10), vocabulary=50_304).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    microbatches = rng.randint(2, 4)

    def step() -> None:
        for _ in range(microbatches):
            model.loss(rng.randint(1, 6), rng.randrange(256, 4096, 16), checkpointing=True).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train_then_evaluate(rng: random.Random) -> Step:
    """Alternate steps of training with an evaluation whose batches have another shape, and keep its logits."""
    model = Decoder(width=rng.choice((768, 1024, 1536)), layers=rng.randint(3, 6), vocabulary=32_000).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept: list[Tensor] = []

    def step() -> None:
        model.loss(rng.randint(2, 8), rng.randrange(256, 2048, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(rng.randint(2, 6)):
                logits = model(model.tokens(rng.randint(1, 4), rng.randrange(128, 3072, 8)))
                kept.append(logits[:, -rng.randint(1, 128) :].contiguous())

    return step


def survivors(rng: random.Random) -> Step:
    """Make temporaries of changing size; every few of them a smaller result is made beside them and is kept."""
    kept: list[Tensor] = []
    every = rng.randint(2, 6)
    low, high = rng.choice(((16, 160), (48, 500), (96, 1200)))

    def step() -> None:
        held: list[Tensor] = []
        for index in range(rng.randint(40, 120)):
            held.append(empty(rng.randint(low * MIB, high * MIB)))
            if index % every == 0:
                kept.append(empty(rng.randint(MIB // 2, low * MIB)))
            if len(held) > 8:
                del held[rng.randrange(len(held))]
        del kept[:: rng.randint(2, 4)]

    return step


def kv_cache(rng: random.Random) -> Step:
    """Serve requests that come and go; the cache of each grows by copies, for every layer a pair of tensors."""
    layers, width = rng.randint(8, 24), rng.choice((1024, 2048, 4096)) * 2
    requests: dict[int, list[Tensor]] = {}
    count = rng.randint(4, 12)
    numbers = iter(range(10**6))

    def step() -> None:
        for _ in range(rng.randint(10, 20)):
            if len(requests) >= count or (requests and rng.random() < 0.3):
                del requests[rng.choice(sorted(requests))]
            prompt = rng.randint(64, 4096)
            requests[next(numbers)] = [empty(prompt * width) for _ in range(2 * layers)]
            grown = requests[rng.choice(sorted(requests))]
            more = rng.randint(32, 512) * width
            for index, cache in enumerate(grown):
                grown[index] = torch.cat((cache, empty(more)))

    return step


def side_streams(rng: random.Random) -> Step:
    """Prefetch and reduce on side streams: buffers of several streams, handed over with record_stream."""
    streams = [torch.cuda.Stream() for _ in range(rng.randint(1, 3))]
    unit = rng.randint(16, 256) * MIB
    kept: list[Tensor] = []

    def step() -> None:
        layers = rng.randint(8, 24)
        activations: list[Tensor] = []
        for index in range(layers):
            side = streams[index % len(streams)]
            with torch.cuda.stream(side):
                weights = empty(unit + rng.randint(0, unit))
            weights.record_stream(torch.cuda.current_stream())
            activations.append(empty(rng.randint(unit // 4, 2 * unit)))
            if rng.random() < 0.3:
                with torch.cuda.stream(rng.choice(streams)):
                    kept.append(empty(rng.randint(MIB, unit // 2)))
        while activations:
            gradient = empty(activations.pop().numel())
            with torch.cuda.stream(rng.choice(streams)):
                bucket = empty(gradient.numel() // rng.randint(1, 4))
            gradient.record_stream(rng.choice(streams))
            if rng.random() < 0.2:
                kept.append(bucket)
        if len(kept) > 12:
            del kept[::2]

    return step


def small_and_large(rng: random.Random) -> Step:
    """Fill the small pool with many tensors, free most of them, then want large ones; and the other way round."""
    kept: list[Tensor] = []
    peak = rng.randint(400, 2400)
    holes = rng.randint(3, 12)

    def step() -> None:
        small = [empty(rng.randint(KIB, 1000 * KIB)) for _ in range(rng.randint(peak, 3 * peak))]
        kept.extend(small[:: holes * 4])
        del small
        large = [empty(rng.randint(1100 * KIB, 9 * MIB)) for _ in range(rng.randint(peak // 8, peak // 3))]
        kept.extend(large[::holes])
        del large
        final = [empty(rng.randint(10 * MIB, 120 * MIB)) for _ in range(rng.randint(4, 24))]
        del final
        del kept[:: rng.randint(2, 5)]

    return step


def temporaries(rng: random.Random) -> Step:
    """Run operators that each need a workspace and leave a result: softmax, sorting and masked losses in fp32."""
    hidden = rng.choice((4096, 8192, 12_288))
    results: list[Tensor] = []

    def step() -> None:
        for _ in range(rng.randint(6, 16)):
            rows = rng.randint(4096, 65_536)
            scores = torch.empty(rows, hidden, dtype=torch.bfloat16, device="cuda")
            weights = torch.softmax(scores.float(), dim=-1).to(torch.bfloat16)
            order = torch.sort(scores[:, : rng.randint(256, 2048)], dim=-1).values
            results.append(weights[:, : rng.randint(hidden // 8, hidden)].contiguous())
            results.append(order.float().mean(dim=0))
            if len(results) > 10:
                del results[rng.randrange(len(results))]

    return step


def optimizer_states(rng: random.Random) -> Step:
    """Train large weights by hand: the first step makes two states a weight where its activations were."""
    sizes = [rng.randint(8, 160) * MIB + rng.randint(0, 2047) * 512 for _ in range(rng.randint(10, 30))]
    weights = [empty(size) for size in sizes]
    states: list[Tensor] = []
    activation = rng.randint(16, 256) * MIB
    factor = 1.0

    def step() -> None:
        nonlocal factor
        activations = [empty(int(activation * factor * rng.uniform(0.6, 1.4))) for _ in weights]
        gradients: list[Tensor] = []
        for weight in reversed(weights):
            empty(activations.pop().numel())
            gradients.append(empty(weight.numel()))
            if rng.random() < 0.3:
                empty(rng.randint(MIB, activation))
        for gradient in gradients:
            if len(states) < 2 * len(weights):
                states.extend((empty(gradient.numel()), empty(gradient.numel())))
            empty(gradient.numel())
        gradients.clear()
        factor *= rng.uniform(1.02, 1.3)

    return step


def gathered_layers(rng: random.Random) -> Step:
    """Shard weights: those of a layer are gathered before it runs and freed after it; gradients go through buckets."""
    layers = [rng.randint(24, 200) * MIB for _ in range(rng.randint(16, 40))]
    shards = [empty(size // 8 + rng.randint(0, 4096)) for size in layers]
    side = torch.cuda.Stream()
    gradients: list[Tensor] = []

    def gather(size: int) -> Tensor:
        with torch.cuda.stream(side):
            gathered = empty(size)
        gathered.record_stream(torch.cuda.current_stream())
        return gathered

    def step() -> None:
        tokens = rng.uniform(0.3, 1.5)
        saved = []
        for size in layers:
            whole, after = gather(size), gather(size // 2)
            saved.append(empty(int(tokens * size)))
            del whole, after
        for size, shard in zip(reversed(layers), reversed(shards), strict=True):
            whole = gather(size)
            reduced = empty(size)
            reduced.record_stream(side)
            saved.pop()
            gradients.append(empty(shard.numel()))
            del whole, reduced
        if rng.random() < 0.6:
            gradients.clear()

    return step


FAMILIES: dict[str, Callable[[random.Random], Step]] = {
    family.__name__: family
    for family in (
        growing_lengths,
        recompute,
        train_then_evaluate,
        survivors,
        kv_cache,
        side_streams,
        small_and_large,
        temporaries,
        optimizer_states,
        gathered_layers,
    )
}


def build(name: str) -> Step:
    """Return the step of the program ``name``, ``FAMILY:SEED``; what lives through all steps is allocated now."""
    family, _, _ = name.partition(":")
    return FAMILIES[family](random.Random(name))  # noqa: S311 - sizes, not secrets


def setup(_context: Context) -> Target:
    """Return the program named in the environment as a target of a probe."""
    from oomscope import Target

    return Target(step=build(os.environ[VARIABLE]))


def run(name: str) -> dict[str, Any]:
    """Run the program to its end or to its first failure; return what torch counted, in bytes."""
    failed = None
    try:
        step = build(name)
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        failed = str(error)
    stats = torch.cuda.memory_stats()
    return {
        "name": name,
        "failed": failed,
        "requested_bytes": stats["requested_bytes.all.peak"],
        "reserved_bytes": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
