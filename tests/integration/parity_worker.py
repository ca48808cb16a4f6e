"""One rank of a world: trains every case that it is given and writes what came out, parameters put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from oomscope.config.rules.layer_split import stage_layers
from oomscope.config.schema import Config
from oomscope.model.distributed.megatron_fsdp import MegatronShardedParameters
from oomscope.model.distributed.parameter_store import is_expert
from oomscope.model.parallel.parallel_state import ParallelState, build_parallel_state
from oomscope.model.trainer import Trainer

STEPS = 2


def train(config: Config, state: ParallelState) -> dict[str, Any]:
    """Return losses and, after the last step, the clipped gradients and the parameters of this stage, whole."""
    trainer = Trainer(config, state, device=torch.device("cpu"))
    trainer.setup()
    losses = [trainer.step(iteration) for iteration in range(STEPS)]
    for store in chain(*trainer.stores):
        if isinstance(store, MegatronShardedParameters) and store._weights:
            store._gathering.gather(range(len(store._groups)), forward=None)
        store.await_gather()
    names = global_names(config, state, trainer.model)
    grads = owned_grads(trainer, state)
    return {
        "losses": [loss.item() for loss in losses if loss is not None],
        "grads": {names[p]: whole(names[p], p, grads[p], config, state) for p in names},
        "parameters": {names[p]: whole(names[p], p, put_together(p.detach()), config, state) for p in names},
    }


def global_names(
    config: Config, state: ParallelState, chunks: Sequence[torch.nn.Module]
) -> dict[torch.nn.Parameter, str]:
    """Name layers by their place in the whole model, and a tied output layer by the embedding."""
    names = {}
    for layers, chunk in zip(stage_layers(config, state.pp.rank), chunks, strict=True):
        for name, param in chunk.named_parameters():
            parts = name.split(".")
            if parts[0] == "layers":
                parts[1] = str(layers[int(parts[1])])
            names[param] = "words" if param.shared_embedding else ".".join(parts)  # type: ignore[attr-defined]
    return names


def owned_grads(trainer: Trainer, state: ParallelState) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Return the main gradients, shards of the distributed optimizer, of FSDP2 or of Megatron-FSDP put together."""
    grads = {}
    if trainer.config.parallel.use_torch_fsdp2:
        for weight in trainer.mixed_precision.weights:
            param = weight.store.params[weight.index]
            grads[param] = put_together(
                DTensor.from_local(
                    weight.master.grad, param.device_mesh, param.placements, shape=param.shape, stride=param.stride()
                )
            )
        return grads
    for buffer in chain(*trainer.stores):
        for index, param in enumerate(buffer.params):
            owned = buffer.owned(index)
            grad = torch.zeros_like(param)
            grad.view(-1)[owned.start : owned.end] = buffer.take_grad(index).reshape(-1)
            replicas = state.intra_expert_dp.group if is_expert(param) else state.intra_dp_cp.group
            if trainer.config.shards_optimizer_states and replicas is not None:
                dist.all_reduce(grad, group=replicas)
            grads[param] = grad
    return grads


def put_together(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole(
    name: str, param: torch.nn.Parameter, local: torch.Tensor, config: Config, state: ParallelState
) -> torch.Tensor:
    """Put a parameter together from the shards of all ranks."""
    if is_expert(param):
        return whole_experts(name, local, config, state)
    if state.tp.group is None or not param.tensor_model_parallel:  # type: ignore[attr-defined]
        return local.clone()
    shards = [torch.empty_like(local) for _ in range(state.tp.size)]
    dist.all_gather(shards, local.contiguous(), group=state.tp.group)
    if name.endswith(("projection.weight", "fc2.weight")):
        return torch.cat(shards, dim=1)
    blocks = split_blocks(name, config)
    sizes = [rows // state.tp.size for rows in blocks] if blocks else [local.shape[0]]
    parts = [shard.split(sizes) for shard in shards]
    return torch.cat([part[block] for block in range(len(sizes)) for part in parts])


def whole_experts(name: str, local: torch.Tensor, config: Config, state: ParallelState) -> torch.Tensor:
    """Put grouped experts [E/e, …] together, each of them from its parts."""
    if state.expert_tp_ep.group is None:
        return local.clone()
    shards = [torch.empty_like(local) for _ in range(state.ep.size * state.expert_tp.size)]
    dist.all_gather(shards, local.contiguous(), group=state.expert_tp_ep.group)
    experts = [shards[start : start + state.expert_tp.size] for start in range(0, len(shards), state.expert_tp.size)]
    if name.endswith("fc2"):
        return torch.cat([torch.cat(parts, dim=2) for parts in experts])
    halves = 2 if config.model.gated_linear_unit else 1
    blocks = [[part.chunk(halves, 1)[half] for half in range(halves) for part in parts] for parts in experts]
    return torch.cat([torch.cat(parts, dim=1) for parts in blocks])


def split_blocks(name: str, config: Config) -> list[int]:
    """Return the rows of the matrices that a fused layer stacks, each of which is split over the ranks."""
    if ".qkv." in name:
        heads = (config.model.num_attention_heads, config.query_groups, config.query_groups)
        return [count * config.head_dim for count in heads]
    if ".fc1." in name and config.model.gated_linear_unit:
        f = config.model.moe_shared_expert_intermediate_size if ".shared." in name else config.ffn_size
        return [f or 0, f or 0]
    return []


def train_cases(rank: int, cases: Mapping[str, Config], out: Path) -> None:
    """Train each configuration in turn; the first rank of each stage writes ``out/NAME.stageN.pt``."""
    for name, config in cases.items():
        state = build_parallel_state(config, rank=rank, world_size=dist.get_world_size())
        result = train(config, state)
        if state.tp.rank == state.dp.rank == state.cp.rank == 0:
            torch.save(result, out / f"{name}.stage{state.pp.rank}.pt")
        dist.barrier()
