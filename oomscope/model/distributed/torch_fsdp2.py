"""Fully sharded parameters: torch's own FSDP2, wrapped round the model as Megatron-Core does it.

Each embedding, transformer layer and (with Transformer Engine) output layer is a unit whose parameters are gathered
when it runs and dropped behind it; what is left belongs to the model as a whole
(Megatron-Core ``distributed/torch_fully_sharded_data_parallel.py``). There is no mixed-precision policy: parameters
are gathered, and gradients reduced and kept, in the parameters' own dtype, and every microbatch reduces its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from oomscope.config.schema import Config
from oomscope.errors import UsageError
from oomscope.model.base.observer import Observer
from oomscope.model.distributed.parameter_store import ParameterStore
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.parallel.parallel_state import ParallelState


class FullyShardedParameters(ParameterStore):
    """The shards that this rank holds of a model's parameters, and of their gradients.

    FSDP2 itself gathers a unit's parameters when it runs and reduces its gradients behind its backward.

    Raises:
        UsageError: this rank holds its parameters alone.
    """

    def __init__(self, stage: GPTStage, config: Config, state: ParallelState, observer: Observer) -> None:
        shard(stage, config, state)
        self.params = tuple(param for param in stage.parameters() if param.requires_grad)

        def on_grad(param: torch.Tensor) -> None:
            if isinstance(param.grad, DTensor):
                observer.role("gradient", [param.grad])

        for param in self.params:
            param.register_post_accumulate_grad_hook(on_grad)

    def report_roles(self, observer: Observer) -> None:
        """Report the shards of the parameters to ``observer``."""
        observer.role("parameter", self.params)

    def zero(self) -> None:
        """Drop all gradients."""
        for param in self.params:
            param.grad = None

    def value(self, index: int) -> torch.Tensor:
        """Return this rank's shard; it is empty where the parameter has fewer rows than there are ranks."""
        return _shard_of(self.params[index].detach())

    def take_grad(self, index: int) -> torch.Tensor:
        """Return the shard of the gradient and drop the parameter's hold on it.

        The gradients of a unit are one tensor, which goes when the last of them has been taken.
        """
        grad, self.params[index].grad = _grad_of(self.params[index]), None
        return _shard_of(grad)

    def whole_grad(self, index: int) -> torch.Tensor:
        """Gather the gradient of all of parameter ``index`` (Megatron-Core ``_unshard_if_dtensor``)."""
        return _grad_of(self.params[index]).full_tensor()

    def put_whole_grad(self, index: int, grad: torch.Tensor) -> None:
        """Cut ``grad`` up again (Megatron-Core ``_reshard_if_dtensor``)."""
        like = _grad_of(self.params[index])
        self.params[index].grad = distribute_tensor(grad, like.device_mesh, like.placements)


def shard(stage: GPTStage, config: Config, state: ParallelState) -> None:
    """Wrap ``stage`` and its units in ``fully_shard``; the parameters keep what Megatron-Core says on them.

    Raises:
        UsageError: this rank holds its parameters alone.
    """
    if state.dp_cp.group is None:
        raise UsageError(
            "fully sharded parameters need ranks to shard them over",
            where="parallel.data_parallel_size",
            remedy="set data_parallel_size above 1, or use_torch_fsdp2 to false",
        )
    attributes = {name: dict(vars(param)) for name, param in stage.named_parameters()}
    options: dict[str, Any] = {
        "mesh": DeviceMesh.from_group(state.dp_cp.group, next(stage.parameters()).device.type),
        "reshard_after_forward": config.parallel.torch_fsdp2_reshard_after_forward,
    }
    for unit, prefetched in _units(stage, config):
        sharded: FSDPModule = fully_shard(unit, **options)
        if config.recompute.recompute_granularity is not None:
            # Upstream names the unit before it, because recomputation disturbs the order that torch has seen.
            sharded.set_modules_to_backward_prefetch([prefetched] if isinstance(prefetched, FSDPModule) else [])
    fully_shard(stage, **options)
    for name, param in stage.named_parameters():
        vars(param).update(attributes[name])


def _units(stage: GPTStage, config: Config) -> Iterator[tuple[nn.Module, nn.Module | None]]:
    """Yield what is gathered as one, in order, each with the unit that its backward fetches in advance.

    Upstream wraps rotary embeddings too, which have no parameters. The unit behind one names it, and so fetches
    nothing: the first layer, and with multi-latent attention, whose layers hold one each, every unit.
    """
    model = config.model
    before: nn.Module | None = None
    if stage.embedding is not None:
        yield stage.embedding, None
        before = None if model.position_embedding_type == "rope" else stage.embedding
    for layer in stage.layers:
        yield layer, before
        before = None if model.multi_latent_attention else layer
    if stage.output_layer is not None and model.transformer_impl == "transformer_engine":
        yield stage.output_layer, before


def _grad_of(param: nn.Parameter) -> DTensor:
    if not isinstance(param.grad, DTensor):
        raise TypeError("a fully sharded parameter has no gradient, or one that is whole")
    return param.grad


def _shard_of(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor
