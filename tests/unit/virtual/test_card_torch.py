"""PyTorch, unmodified, on the virtual card."""

from __future__ import annotations

import re

import pytest

from oomscope.virtual.cards import CARDS
from oomscope.virtual.installed_torch import find_torch
from oomscope.virtual.settings import CardSettings
from tests.unit.virtual.on_card import on_card

MiB = 1 << 20
_torch = find_torch()
pytestmark = pytest.mark.skipif(_torch is None or _torch.cuda is None, reason="torch is built without CUDA")


def test_importing_torch_does_not_choose_the_card() -> None:
    assert on_card("say(state().entered)", preamble="torch") is False


def test_torch_s_own_error_beyond_the_budget_and_the_program_goes_on() -> None:
    text, allocated, again, retries = on_card(
        """
        held = []
        try:
            while True:
                held.append(torch.empty(100 * MiB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            text = str(error)
        allocated = torch.cuda.memory_allocated() // MiB
        del held
        again = torch.empty(1500 * MiB, dtype=torch.uint8, device="cuda").numel() // MiB
        say([text, allocated, again, torch.cuda.memory_stats()["num_alloc_retries"]])
        """,
        preamble="torch",
        total=2048 * MiB,
        used=300 * MiB,
    )
    assert text.startswith(
        "CUDA out of memory. Tried to allocate 100.00 MiB. "
        "GPU 0 has a total capacity of 2.00 GiB of which 48.00 MiB is free."
    )
    assert (allocated, again) == (1700, 1500)
    assert retries == 2, "each time the allocator releases what it caches, and asks again"


@pytest.mark.parametrize("lag", [0, 3])
def test_a_block_waits_for_the_streams_that_used_it_as_many_allocations_as_the_lag(lag: int) -> None:
    said = on_card(
        """
        side = torch.cuda.Stream()
        block = torch.empty(1024, device="cuda")
        address = block.data_ptr()
        block.record_stream(side)
        del block
        kept = [torch.empty(1024, device="cuda") for _ in range(6)]
        say([one.data_ptr() == address for one in kept].index(True))
        """,
        preamble="torch",
        event_lag=lag,
    )
    assert said == lag


def test_expandable_segments_map_what_they_need() -> None:
    said = on_card(
        """
        torch.cuda.memory._record_memory_history()
        first = torch.empty(30 * MiB, dtype=torch.uint8, device="cuda")
        second = torch.empty(50 * MiB, dtype=torch.uint8, device="cuda")
        held = state().used_bytes // MiB
        del first, second
        torch.cuda.empty_cache()
        actions = [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
        counted = [actions.count(f"segment_{action}") for action in ("map", "unmap", "alloc")]
        say([held, state().used_bytes, *counted])
        """,
        preamble="torch",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    assert said == [80, 0, 2, 1, 0]


def test_the_allocator_goes_by_what_the_card_gives_and_programs_by_what_it_reports() -> None:
    """Expandable segments have addresses for one request beyond the card, and a fraction is one of what it gives."""
    said = on_card(
        """
        torch.cuda.set_per_process_memory_fraction(0.5)
        told = torch.cuda.get_device_properties(0).total_memory, torch.cuda.mem_get_info()[1]
        held = [torch.empty(size * MiB, dtype=torch.uint8, device="cuda") for size in (300, 100, 20)]
        segments = torch.cuda.memory_snapshot()
        say([[size // MiB for size in told], len(segments), segments[0]["is_expandable"]])
        """,
        preamble="torch",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        total=100 * MiB,
        budget=1000 * MiB,
    )
    assert said == [[100, 100], 1, True]


TRAINING = """
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    class Layer(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            parts = self.qkv(self.norms[0](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norms[1](x))))

    embedding, head = nn.Embedding(1000, 128).cuda(), nn.Linear(128, 1000).cuda()
    layers = nn.ModuleList(Layer(128, 4) for _ in range(3)).cuda()
    parameters = [*embedding.parameters(), *layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=FUSED)
    peaks = []
    for _ in range(4):
        tokens = torch.randint(0, 1000, (4, 65), pin_memory=True).cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = embedding(tokens[:, :-1])
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False)
            loss = F.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    torch.cuda.synchronize()
    say([peaks, state().unsupported, state().unknown_reads, state().used_bytes == torch.cuda.memory_reserved()])
    leave()
    """


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("order", ["spans", "ascending", "scattered"])
def test_a_training_step(fused: bool, order: str) -> None:
    script = TRAINING.replace("FUSED", str(fused))
    peaks, unsupported, unknown_reads, agrees = on_card(script, preamble="torch", addresses=order)
    # Under torch 2.11 both threads' workspaces of cuBLAS, 32 MiB each, stay; then the optimizer step is the peak.
    assert peaks[0] <= peaks[1] == peaks[2] == peaks[3] < 96 * MiB
    assert unsupported == []
    assert unknown_reads == 0
    assert agrees


def test_two_runs_give_the_same_addresses() -> None:
    script = """
        sizes = [3, 1000, 5_000_000, 40, 30_000_000, 77]
        say([torch.empty(size, device="cuda").data_ptr() for size in sizes])
        """
    assert on_card(script, preamble="torch") == on_card(script, preamble="torch")


def test_kernels_make_unknown_what_they_are_given_and_nothing_else() -> None:
    """Operations whose arguments are structs that are set only in part, on both threads of a training step."""
    script = """
        import torch.nn as nn
        import torch.nn.functional as F
        a = torch.randn(128, 64, device="cuda", requires_grad=True)
        b = torch.randn(300, 300, device="cuda")
        index = torch.randint(0, 100, (16,), device="cuda")
        linear = nn.Linear(64, 64).cuda()
        parameters = [torch.randn(100, device="cuda", requires_grad=True) for _ in range(50)]
        for one in parameters:
            one.grad = torch.randn_like(one)
        adam = torch.optim.AdamW(parameters)
        operations = [
            lambda: a + a, lambda: b.t() + b, lambda: b.sum(), lambda: b.sum(0), lambda: linear(a).sum().backward(),
            lambda: torch.cat([a, a]), lambda: a[index], lambda: a.topk(3), lambda: a.sort(), lambda: adam.step(),
            lambda: torch.randperm(100, device="cuda"), lambda: (a > 0).nonzero(), lambda: b.std(), lambda: b[b > 0],
            lambda: ((a * 2).exp().log().tanh()).sum().backward(), lambda: F.cross_entropy(a, index.repeat(8) % 64),
            lambda: torch.zeros(100, 64, device="cuda").scatter_(0, index[:, None].expand(16, 64), a.detach()[:16]),
        ]
        wrong = []
        for number, operation in enumerate(operations):
            for _ in range(3):
                held = [torch.arange(n).cuda() for n in (64, 7, 1, 1000, 3, 3, 3)]
                operation()
                wrong += [(number, i) for i, one in enumerate(held) if unknown(one)]
        missed = []
        for number, write in enumerate([
            lambda x: x.add_(1), lambda x: x.zero_(), lambda x: x[2:].mul_(2), lambda x: torch.add(x, 1, out=x),
            lambda x: x.index_fill_(0, index[:1], 5), lambda x: torch._foreach_add_([x, a.detach()], 1),
            lambda x: torch.sort(x, out=(x, torch.empty_like(x))),
            lambda x: x.copy_(torch.arange(64, device="cuda").flip(0)),
        ]):
            x = torch.arange(64).cuda()
            write(x)
            if number != 1 and not unknown(x):
                missed.append(number)
        say([wrong, missed])
        leave()
        """
    assert on_card(script, preamble="torch") == [[], []]


def test_values_that_the_host_copied_decide_sizes_and_others_are_counted() -> None:
    script = """
        lengths = torch.tensor([3, 5, 2]).cuda()
        sizes = lengths.tolist()
        parts = [p.shape[0] for p in torch.randn(10, 4, device="cuda").split(sizes)]
        known = state().unknown_reads
        chosen = torch.randn(10, device="cuda")
        say([parts, known, chosen[chosen > 0].shape[0], state().unknown_reads > 0, lengths.sum().item()])
        """
    assert on_card(script, preamble="torch", values="zeros") == [[3, 5, 2], 0, 0, True, 0]
    assert on_card(script, preamble="torch", values="larger") == [[3, 5, 2], 0, 1108606977, True, 257]


def test_sorting_on_a_card_that_torch_has_no_code_of_its_own_for() -> None:
    """CUB takes the tuning for the PTX version of the code that runs, and fails for another: 8.6's runs on 8.9."""
    script = """
        weight = torch.randn(50000, 64, device="cuda", requires_grad=True)
        index = torch.randint(0, 50000, (4096,), device="cuda")
        weight[index, :].sum().backward()
        say([torch.cuda.get_device_capability(), list(weight.grad.shape)])
        leave()
        """
    said = on_card(script, preamble="torch", environment=CardSettings(card=CARDS["rtx4090"]).variables())
    assert said == [[8, 9], [50000, 64]]


def test_data_loaders_with_workers_and_pinned_memory() -> None:
    script = """
        from torch.utils.data import DataLoader
        torch.ones(3, device="cuda")
        total, how = 0, {"num_workers": 2, "pin_memory": True, "multiprocessing_context": "fork"}
        for batch in DataLoader(torch.arange(1000).view(100, 10), batch_size=10, **how):
            assert batch.is_pinned()
            total += int(batch.cuda(non_blocking=True).cpu().sum())
        say([total, state().unknown_reads])
        """
    assert on_card(script, preamble="torch", fresh=True) == [499500, 0], "workers fork from it"


def test_a_fork_after_use_fails_as_torch_says_and_ends_quietly() -> None:
    script = """
        import os
        kept = [torch.ones(3, device="cuda"), torch.cuda.Event(), torch.cuda.Stream()]
        kept[1].record()
        torch.cuda.synchronize()
        readable, writable = os.pipe()
        if not os.fork():
            try:
                torch.ones(3, device="cuda")
            except RuntimeError as error:
                os.write(writable, str(error).encode())
            del kept
            sys.exit(0)
        status = os.wait()[1]
        say([status, os.read(readable, 1000).decode()])
        """
    status, text = on_card(script, preamble="torch")
    assert status == 0
    assert re.match("Cannot re-initialize CUDA in forked subprocess", text)
