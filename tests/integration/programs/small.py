"""Small programs, one for each word of the command line; ``train`` is what most of them do."""

import gc
import itertools
import os
import subprocess
import sys

import torch
import torch.nn as nn


def model(device: str = "cuda") -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, device: str = "cuda", rows: int = 64):
    """Yield the number of each step that is complete, without an end."""
    for number in itertools.count():
        net(torch.randn(rows, 256, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield number


def train(device: str = "cuda", count: int = 1000) -> None:
    net = model(device)
    for number in steps(net, torch.optim.AdamW(net.parameters()), device):
        print("step", number, flush=True)
        if number + 1 == count:
            break


def tuned() -> None:
    """Train as Lightning's search for a batch size does: below a function of its file."""
    search = compile("train()", "/x/lightning/pytorch/tuner/batch_size_scaling.py", "exec")
    exec(search, {"train": train})


def unmarked() -> None:
    """As under a torch before 2.10, which lets nobody mark its allocator's events."""
    del torch._C._cuda_setMemoryMetadata
    collected()


def collected() -> None:
    """What only Python's collector frees is freed in the second iteration, always there: nothing else collects."""
    gc.disable()
    for _ in range(50):
        cycle = [torch.empty(1 << 20, device="cuda")]
        cycle.append(cycle)
    torch.cuda.reset_accumulated_memory_stats()
    net = model()
    for number in steps(net, torch.optim.AdamW(net.parameters())):
        if number == 0:
            gc.collect()


def cycles() -> None:
    """Each iteration leaves 8 MiB and the graph of a loss in a cycle: Python does not collect it yet."""
    net = model()
    for _ in steps(net, torch.optim.AdamW(net.parameters())):
        cycle = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda"), net(torch.randn(4, 256, device="cuda")).sum()]
        cycle.append(cycle)


def on_cpu() -> None:
    torch.cuda.init()
    train("cpu")


def fails_after_step() -> None:
    """A check of the program's own: the card gives 0 for what it does not compute."""
    train(count=1)
    if not 1 < torch.randn(4, device="cuda").square().sum().item() < 2:
        raise ValueError("step two")


def inference() -> None:
    with torch.no_grad():
        model()(torch.randn(4, 256, device="cuda"))


def swallows() -> None:
    net = model()
    endless = steps(net, torch.optim.AdamW(net.parameters()))
    while True:
        try:
            print("step", next(endless), flush=True)
        except BaseException:  # noqa: BLE001
            endless = steps(net, torch.optim.AdamW(net.parameters()))


def gan() -> None:
    """Two networks, two optimizers; the discriminator steps first, layer by layer, and the other one seldom."""
    maker, judge = model(), model()
    layers = [{"params": list(judge[index].parameters())} for index in (0, 2)]
    of_judge, of_maker = torch.optim.AdamW(layers), torch.optim.AdamW(maker.parameters())
    layers = of_judge.param_groups
    for number in itertools.count():
        noise = torch.randn(8, 256, device="cuda")
        judge(maker(noise).detach()).sum().backward()
        for layer in layers:
            of_judge.param_groups = [layer]
            of_judge.step()
        if number % 5 == 4:
            judge(maker(noise)).sum().backward()
            of_maker.step()
        print("step", number, flush=True)


def in_backward() -> None:
    """Each parameter has an optimizer of its own, which steps inside backward, on autograd's thread."""
    net = model()
    optimizers = {each: torch.optim.AdamW([each]) for each in net.parameters()}
    for each in net.parameters():
        each.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for number in itertools.count():
        net(torch.randn(8, 256, device="cuda")).sum().backward()
        print("step", number, flush=True)


def child() -> None:
    """The training runs in a fork of a child."""
    sys.exit(subprocess.run([sys.executable, __file__, "forked", *sys.argv[2:]], check=False).returncode)


def forked() -> None:
    """The training runs in a fork of a process that has imported torch."""
    from multiprocessing import get_context

    process = get_context("fork").Process(target=train)
    process.start()
    process.join()


def workers() -> None:
    """Data comes from two worker processes, which look for a file outside the checkout, through pinned memory."""
    import contextlib
    from pathlib import Path

    from torch.utils.data import DataLoader, TensorDataset

    class Rows(TensorDataset):
        def __getitem__(self, index: int) -> object:
            with contextlib.suppress(FileNotFoundError):
                Path("/nowhere/rows.bin").read_bytes()
            return super().__getitem__(index)

    rows_of = Rows(torch.randn(4096, 256))
    loader = DataLoader(rows_of, batch_size=16, num_workers=2, pin_memory=True, persistent_workers=True)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for epoch in itertools.count():
        for (rows,) in loader:
            net(rows.cuda(non_blocking=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        print("epoch", epoch, flush=True)


def without_anomaly_mode() -> None:
    """As Lightning's Trainer does; the model has a buffer of 8 MiB beside its weights of 2 MiB."""
    with torch.autograd.set_detect_anomaly(False):
        net = model()
        net.register_buffer("table", torch.zeros(2 << 20, device="cuda"))
        for number in steps(net, torch.optim.AdamW(net.parameters()), rows=8192):
            if number == 2:
                break


def steps_by_value() -> None:
    """Whether the optimizer steps depends on a value of the card, and the program has no end of its own."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        loss = net(torch.randn(64, 256, device="cuda")).square().mean()
        loss.backward()
        if loss.item() == 0:
            optimizer.step()
        optimizer.zero_grad()


def checks_a_value() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        scores = torch.rand(4 << 20, device="cuda")
        assert (scores >= 0).all(), "scores are negative"
        net(scores.view(-1, 256)).mean().backward()
        optimizer.step()


def prints_loss() -> None:
    """A value is read, and nothing depends on it."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(4):
        loss = net(torch.randn(8, 256, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        print("loss", loss.item(), flush=True)


def hard_exit() -> None:
    train(count=2)
    os._exit(0)


def two_phases() -> None:
    """A step of the optimizer that stepped first, then another layer and optimizer."""
    kept = []
    for _ in range(2):
        layer = torch.nn.Linear(1024, 1024, device="cuda")
        optimizer = torch.optim.Adam(layer.parameters())
        layer(torch.randn(64, 1024, device="cuda")).sum().backward()
        optimizer.step()
        kept.append((layer, optimizer))


def aborts() -> None:
    train(count=1)
    os.abort()


def logs_and_runs_out() -> None:
    """Each loss is printed, and the third step needs more than there is."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for rows in (64, 64, 1 << 18):
        loss = net(torch.randn(rows, 256, device="cuda")).square().mean()
        print(loss, loss.item(), flush=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


history: list[torch.Tensor] = []


def leaks(count: str = "1000") -> None:
    """A tensor of each step is kept in a list."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for number in steps(net, optimizer):
        history.append(torch.empty(64 << 20, device="cuda"))
        if number + 1 == int(count):
            break


def keeps_outputs() -> None:
    """What its last step would free is not freed when it is ended."""
    kept = []
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        output = net(torch.randn(4096, 256, device="cuda"))
        kept.append(output.detach())
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def leaks_by_cat() -> None:
    kept = None
    net = model()
    for _ in steps(net, torch.optim.AdamW(net.parameters())):
        more = torch.empty(64 << 20, device="cuda")
        kept = more if kept is None else torch.cat([kept, more])


def clears_by_value() -> None:
    kept = []
    net = model()
    for number in steps(net, torch.optim.AdamW(net.parameters())):
        kept.append(torch.empty(4 << 20, device="cuda"))
        if number >= 4 and float(kept[-1][0]) < 0.5:
            kept.clear()


def shuffles() -> None:
    """Draws batches of other lengths each time, unless somebody seeds it, and reads its loss."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(10):
        rows = 64 * int(torch.randint(1, 1000, ()))
        loss = net(torch.randn(rows, 256, device="cuda")).square().mean()
        print(float(loss))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def spawns() -> None:
    """Two ranks, of which the second one makes a larger batch."""
    torch.multiprocessing.spawn(rank_of_two, nprocs=2)


def rank_of_two(rank: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
    torch.cuda.set_device(rank)
    net = nn.parallel.DistributedDataParallel(model(f"cuda:{rank}"), device_ids=[rank])
    for _ in steps(net, torch.optim.AdamW(net.parameters()), f"cuda:{rank}", rows=(rank + 1) << 17):
        pass


def two_processes() -> None:
    """This process holds 6 GiB while its child asks for 5."""
    held = torch.empty(6 << 30, dtype=torch.uint8, device="cuda")
    subprocess.run([sys.executable, __file__, "five"], check=True)
    del held


def resumes() -> None:
    """The optimizer's states are asked for before the first step, as to load a checkpoint into them."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    get_state_dict(net, optimizer)
    for _ in steps(net, optimizer):
        pass


def two_cards() -> None:
    """A layer on each of two cards; the first runs out of memory, while more of the second is reserved."""
    layers = [nn.Linear(256, 256).to(f"cuda:{index}") for index in range(2)]
    optimizer = torch.optim.AdamW([each for layer in layers for each in layer.parameters()])
    for _ in range(3):
        more = torch.empty(800 << 20, dtype=torch.uint8, device="cuda:1")
        held = [torch.empty(450 << 20, dtype=torch.uint8, device="cuda:0") for _ in range(2)]
        hidden = layers[0](torch.randn(4, 256, device="cuda:0"))
        layers[1](hidden.to("cuda:1")).sum().backward()
        optimizer.step()
        del more, held


def five() -> None:
    torch.empty(5 << 30, dtype=torch.uint8, device="cuda")


def survives() -> None:
    """A batch that is too large is tried first."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for rows in (1 << 22, 64):
        try:
            for number in steps(net, optimizer, rows=rows):
                print("step", number, flush=True)
        except torch.OutOfMemoryError:
            print("smaller", flush=True)


def gives_up() -> None:
    """Out of memory is caught, and the program ends well."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    try:
        next(steps(net, optimizer, rows=1 << 22))
    except torch.OutOfMemoryError:
        print("gave up", flush=True)


def meddles() -> None:
    """Record, end the recording, reset the peaks after each step, of which the first is the largest, and save."""
    torch.cuda.memory._record_memory_history(max_entries=10)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for rows in (8192, 8, 8, 8):
        next(steps(net, optimizer, rows=rows))
        print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), flush=True)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(None)
        torch.save(net.state_dict(), sys.argv[2])


def sets_allocator() -> None:
    """The program chooses its allocator's settings, as some do."""
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:128")
    train()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
