"""A rank's training loop: its part of the model, its gradient buffers, its optimizer, and a step of all three.

The loop does what Megatron-LM's ``train_step`` does, in its order: gradients zeroed, microbatches through 1F1B,
gradients made complete, optimizer. It reports phases and the roles of tensors to an :class:`Observer` and knows
nothing else of measurement.
"""

from __future__ import annotations

import zlib
from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.graph import GradientEdge

from oomscope.config.rules.layer_split import stage_layers
from oomscope.config.schema import Config
from oomscope.model.base.device import workspaces
from oomscope.model.base.observer import NullObserver, Observer
from oomscope.model.base.operations import run_backward
from oomscope.model.distributed.megatron_fsdp import MegatronShardedParameters
from oomscope.model.distributed.param_and_grad_buffer import build_grad_buffers
from oomscope.model.distributed.parameter_store import ParameterStore, finalize_grads, is_shared_embedding
from oomscope.model.fp8.quantized import fp8_tensors
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.layers.core_attention import causal_mask
from oomscope.model.moe.router import update_expert_bias
from oomscope.model.optimizer.mixed_precision import MixedPrecisionOptimizer
from oomscope.model.parallel.context_parallel import context_parallel
from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule, run_interleaved
from oomscope.model.parallel.p2p_communication import Action, StageLinks
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.parallel.schedules import run_one_forward_one_backward

_NULL_OBSERVER = NullObserver()
_SEED_STEP = 100
"""Step of the seed between pipeline stages, so that their dropouts differ (Megatron-LM ``initialize.py``)."""


def params_dtype(config: Config) -> torch.dtype:
    """Return the dtype of parameters and activations."""
    if config.precision.bf16:
        return torch.bfloat16
    return torch.float16 if config.precision.fp16 else torch.float32


class Batch(NamedTuple):
    """One microbatch: ``tokens`` and the ``labels`` that follow them, int64 [b, s]."""

    tokens: torch.Tensor
    labels: torch.Tensor


def random_batch(config: Config, iteration: int, index: int) -> Batch:
    """Return microbatch ``index`` of ``iteration``, counted over all replicas: random tokens, a label is what follows.

    They depend on the seed, the iteration and the index alone, so that runs of different parallelism can be compared.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{config.probe.seed}:{iteration}:{index}".encode()))
    shape = (config.data.micro_batch_size, config.data.seq_length + 1)
    tokens = torch.randint(config.model.vocab_size, shape, generator=generator)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


class Trainer:
    """Trains one rank of a world on one device; :meth:`setup` comes before all else."""

    model: list[GPTStage]
    """The model chunks that this rank holds; one without the interleaved schedule."""
    stores: list[list[ParameterStore]]
    """Stores of the parameters and gradients of each chunk."""

    def __init__(
        self,
        config: Config,
        state: ParallelState,
        *,
        device: torch.device,
        observer: Observer = _NULL_OBSERVER,
    ) -> None:
        self.config = config
        self.state = state
        self.device = device
        self.observer = observer
        self.context = context_parallel(config, state, observer)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the fp32 master weights."""
        return self.mixed_precision.inner

    def setup(self) -> None:
        """Build the model chunks, their buffers and the optimizer (phase ``init``)."""
        config, state, observer = self.config, self.state, self.observer
        with observer.phase("init"):
            torch.manual_seed(config.probe.seed + _SEED_STEP * state.pp.rank)
            self.model = self._build_chunks()
            self.stores = [self._build_stores(chunk) for chunk in self.model]
            for chunk, stores in zip(self.model, self.stores, strict=True):
                if state.embedding.group is not None:  # the last stage begins with the first one's tied embedding
                    for param in filter(is_shared_embedding, chunk.parameters()):
                        dist.broadcast(param.detach(), group_src=0, group=state.embedding.group)
                observer.role("parameter", chain(chunk.parameters(), chunk.buffers(), fp8_tensors(chunk)))
                for store in stores:
                    store.report_roles(observer)
            self.mixed_precision = MixedPrecisionOptimizer(config, state, list(chain(*self.stores)), observer)
            self._links = self._build_links()
            self._links.connect()
            self._workspaces = workspaces(config, self.device)
            observer.role("workspace", self._workspaces)

    def step(self, iteration: int) -> torch.Tensor | None:
        """Run one iteration; on the last stage return the mean loss of the step over all replicas, a 0-d tensor."""
        microbatches = _Microbatches(self, iteration)
        self.mixed_precision.zero_grad()
        output_layer = self.model[-1].output_layer
        self._run(microbatches)
        with self.observer.phase("backward", iteration=iteration):
            if output_layer is not None:
                output_layer.finish_step()
            finalize_grads(list(chain(*self.stores)), self.state, self.observer)
            update_expert_bias(self.model, self.state, rate=self.config.model.moe_router_bias_update_rate)
        with self.observer.phase("optimizer", iteration=iteration):
            self.mixed_precision.step()
            return self._mean_loss(microbatches.losses)

    def _run(self, microbatches: _Microbatches) -> None:
        config, state, count = self.config, self.state, self.config.num_microbatches
        deallocate = config.parallel.deallocate_pipeline_outputs
        if config.model_chunks == 1:
            run_one_forward_one_backward(
                microbatches, self._links, state=state, num_microbatches=count, deallocate_outputs=deallocate
            )
            return
        group_size = config.microbatch_group_size
        schedule = InterleavedSchedule(state.pp.size, state.pp.rank, count, config.model_chunks, group_size)
        run_interleaved(
            microbatches, self._links, schedule, deallocate_outputs=deallocate, overlap=config.overlap_p2p_comm
        )

    def _mean_loss(self, losses: list[torch.Tensor]) -> torch.Tensor | None:
        if not losses:
            return None
        loss = torch.stack(losses).sum()
        if self.state.dp_cp.group is not None:
            dist.all_reduce(loss.div_(self.state.dp_cp.size), group=self.state.dp_cp.group)
        return loss

    def _build_chunks(self) -> list[GPTStage]:
        config, state = self.config, self.state
        chunks: list[GPTStage] = []
        for index, layers in enumerate(stage_layers(config, state.pp.rank)):
            chunk = GPTStage(
                config,
                state,
                layers=layers,
                pre_process=state.is_first_stage and index == 0,
                post_process=state.is_last_stage and index == config.model_chunks - 1,
                device=self.device,
                dtype=params_dtype(config),
                observer=self.observer,
                beside=chunks[0] if chunks else None,
            )
            chunks.append(chunk)
        return chunks

    def _build_stores(self, chunk: GPTStage) -> list[ParameterStore]:
        config, state, observer = self.config, self.state, self.observer
        if config.parallel.use_torch_fsdp2:
            from oomscope.model.distributed.torch_fsdp2 import FullyShardedParameters  # FSDP2 takes a while to import

            return [FullyShardedParameters(chunk, config, state, observer)]
        if config.parallel.use_megatron_fsdp:
            return [MegatronShardedParameters(chunk, config, state, observer)]
        return list(build_grad_buffers([chunk], config, state, observer, is_first_chunk=chunk is self.model[0]))

    def _build_links(self) -> StageLinks:
        config = self.config
        shards = config.parallel.tensor_model_parallel_size if config.parallel.sequence_parallel else 1
        rows = config.data.seq_length // (config.parallel.context_parallel_size * shards)
        return StageLinks(
            self.state,
            shape=(rows, config.data.micro_batch_size, config.model.hidden_size),
            dtype=params_dtype(config),
            device=self.device,
            observer=self.observer,
        )


class _Microbatches:
    """The microbatches of one iteration, as the schedule asks for them."""

    def __init__(self, trainer: Trainer, iteration: int) -> None:
        self._trainer = trainer
        self._iteration = iteration
        self._count = trainer.config.num_microbatches
        self.losses: list[torch.Tensor] = []

    def forward(self, action: Action, received: torch.Tensor | None) -> torch.Tensor:
        """Run a model chunk; at the end of the model the result is the loss over the number of microbatches."""
        trainer, state = self._trainer, self._trainer.state
        chunk = self._trainer.model[action.chunk]
        for store in self._trainer.stores[action.chunk]:
            store.await_gather()
        with trainer.observer.phase("forward", iteration=self._iteration, microbatch=action.microbatch):
            index = action.microbatch * state.dp.size + state.dp.rank
            batch = random_batch(trainer.config, self._iteration, index)
            inputs = received if received is not None else self._to_device(batch.tokens)
            mask = self._attention_mask(chunk)
            if not chunk.is_last:
                hidden: torch.Tensor = chunk(inputs, attention_mask=mask)
                return hidden
            labels = self._to_device(batch.labels)
            tokens = self._to_device(batch.tokens) if chunk.mtp is not None and not chunk.is_first else None
            loss: torch.Tensor = chunk(inputs, labels, mask, tokens)
            with trainer.observer.phase("loss"):
                loss = loss / self._count
            self.losses.append(loss.detach())
            return loss

    def backward(self, action: Action, output: torch.Tensor | GradientEdge, output_grad: torch.Tensor | None) -> None:
        """Differentiate; gradients land in the main gradients."""
        for store in self._trainer.stores[action.chunk]:
            store.is_last_microbatch = action.microbatch == self._count - 1
        with self._trainer.observer.phase("backward", iteration=self._iteration, microbatch=action.microbatch):
            scaler = self._trainer.mixed_precision.scaler
            if output_grad is None and scaler is not None and isinstance(output, torch.Tensor):
                output = scaler.scale_loss(output)
            if output_grad is None:
                torch.autograd.backward(output)
            else:
                run_backward([output], [output_grad])

    def _attention_mask(self, chunk: GPTStage) -> torch.Tensor | None:
        """Return the mask that comes with the batch, at both ends of the model (Megatron-LM ``get_batch``)."""
        config = self._trainer.config
        if not (config.data.create_attention_mask_in_dataloader and (chunk.is_first or chunk.is_last)):
            return None
        mask = causal_mask(config.data.micro_batch_size, config.data.seq_length, self._trainer.device)
        mask = self._trainer.context.shard(mask, dim=2)
        self._trainer.observer.role("input", [mask])
        return mask

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move tokens or labels [b, s] and keep this rank's [b, s/c] of them."""
        moved = self._trainer.context.shard(tensor.to(self._trainer.device), dim=1)
        self._trainer.observer.role("input", [moved])
        return moved
