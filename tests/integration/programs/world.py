"""A rank of a world, started by torchrun or played alone; its first argument says what it does.

What imports much of torch is imported where it is used.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 128


def trained(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).cuda()


def ddp() -> None:
    model = layers().append(nn.SyncBatchNorm(WIDTH).cuda())
    trained(nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()]))


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in model:
        fully_shard(layer)
    trained(fully_shard(model))


def fsdp_1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    trained(FullyShardedDataParallel(layers()))


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    # The mesh begins the world.
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]) // 2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)).cuda()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for layer in model:
        fully_shard(layer, mesh=mesh["data"])
    trained(model)


def told() -> None:
    """Rank 0 alone knows that there is something to train on, as in Megatron-LM's data loaders."""
    model = layers()
    torch.optim.AdamW(model.parameters())
    has_data = torch.tensor([dist.get_rank() == 0], device="cuda")
    dist.broadcast(has_data, 0)
    if has_data.item():
        trained(model)


def recorded() -> None:
    """Train both ways, and let rank 1 write the events of its card to the file that the second argument names."""
    ddp()
    fsdp()
    if dist.get_rank() == 1:
        traces = torch.cuda.memory._snapshot()["device_traces"]
        events = [[event["action"], event["size"]] for trace in traces for event in trace]
        Path(sys.argv[2]).write_text(json.dumps(events))


def say(document: dict[str, object]) -> None:
    """Print a line in one piece: the ranks share their output."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def strays() -> None:
    """Rank 1 keeps something on rank 0's card, as one that loads a checkpoint without ``map_location``."""
    stray = torch.empty(600 << 20, dtype=torch.uint8, device="cuda:0") if dist.get_rank() == 1 else None
    dist.barrier()
    held = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hides the cards from children, not from this process
    trained(layers())
    dist.barrier()
    del stray, held


def said() -> dict[str, object]:
    """What the collectives gave."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, own, gathered = (torch.tensor([rank, 1]).cuda() for _ in range(3))
    dist.all_reduce(total)
    dist.broadcast(own, src=1)
    gathered = torch.empty(size, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(gathered, torch.tensor([rank]).cuda())
    exchanged = torch.empty(size, dtype=torch.int64, device="cuda")
    dist.all_to_all_single(exchanged, (torch.arange(size) + 10 * rank).cuda())
    halves = [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(size)]
    dist.all_gather(halves, torch.tensor([2 * rank]).cuda())
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, "x" * rank)
    passed, received = torch.tensor([rank]).cuda(), torch.tensor([-1]).cuda()
    around = [
        dist.P2POp(dist.isend, passed, (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(around):
        work.wait()
    pair = dist.new_group([0, 1])
    within = torch.ones(1, dtype=torch.int64).cuda()
    if rank < 2:
        dist.all_reduce(within, group=pair)
    dist.barrier()
    host = dist.new_group(backend="gloo")
    dist.monitored_barrier(host)
    nn.parallel.DistributedDataParallel(layers(), process_group=host)
    return {
        "total": total.tolist(),
        "own": own.tolist(),
        "gathered": gathered.tolist(),
        "exchanged": exchanged.tolist(),
        "halves": [half.item() for half in halves],
        "objects": objects,
        "received": received.tolist(),
        "within": within.tolist(),
    }


def passed_between_peers() -> None:
    """Objects and shapes that only another rank knows, and a pipeline of two stages of other widths."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = dist.get_rank(), dist.get_world_size()
    broadcast, received = [f"of {rank}"], [None]
    dist.broadcast_object_list(broadcast, src=1)
    if rank == 0:
        dist.send_object_list([{"from": 0}], dst=1)
    elif rank == 1:
        dist.recv_object_list(received, src=0)
    widths = (WIDTH, 2 * WIDTH, WIDTH)
    layer, inputs = nn.Linear(*widths[rank : rank + 2]).cuda(), []
    layer.register_forward_hook(lambda _, args, __: inputs.append(list(args[0].shape)))
    stage = PipelineStage(layer, rank, size, torch.device("cuda"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(2):
        batch = torch.randn(8, WIDTH, device="cuda")
        schedule.step(*[batch] * (rank == 0), target=batch if rank == size - 1 else None)
        say({"rank": rank, "broadcast": broadcast, "received": received, "input": inputs[-1]})
        optimizer.step()


def needs_peers() -> None:
    """Print what is refused, and end with the last refusal."""
    torch.ones(1, device="cuda")
    dist.all_gather_object([None] * dist.get_world_size(), "mine")
    for call in (dist.broadcast_object_list, dist.recv_object_list):
        try:
            call([None], src=0)
        except RuntimeError as refusal:
            print(refusal, flush=True)
    dist.distributed_c10d._get_default_store().get("token")


def main(word: str) -> None:
    if word != "tensor_parallel":
        dist.init_process_group(None if word == "said_by_default" else "nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if word.startswith("said"):
        say({"rank": dist.get_rank()} | said())
        ddp()
    else:
        programs = (strays, recorded, fsdp_1, tensor_parallel, passed_between_peers, needs_peers, told)
        {program.__name__: program for program in programs}[word]()
    dist.destroy_process_group()


main(sys.argv[1])
