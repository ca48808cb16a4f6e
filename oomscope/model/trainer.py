"""A rank's training loop: its stage of the model, its gradient buffers, its optimizer, and a step of all three.

The loop does what Megatron-LM's ``train_step`` does, in its order: gradients zeroed, microbatches through 1F1B,
gradients made complete, optimizer. It reports phases and the roles of tensors to an :class:`Observer` and knows
nothing else of measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.autograd.graph import GradientEdge

from oomscope.config.schema import Config
from oomscope.errors import UsageError
from oomscope.model.context_parallel import context_parallel
from oomscope.model.core_attention import causal_mask
from oomscope.model.data import Batches, RandomTokens
from oomscope.model.finalize_grads import finalize_grads
from oomscope.model.grad_buffer import GradBuffer, build_grad_buffers, is_shared_embedding
from oomscope.model.mesh import ParallelState
from oomscope.model.observer import Observer, Silent
from oomscope.model.optimizer import MixedPrecisionOptimizer
from oomscope.model.pipeline import StageLinks, run_one_forward_one_backward, stage_layers
from oomscope.model.transformer import GPTStage

_SILENT = Silent()
_SEED_STEP = 100
"""Between pipeline stages, so that their dropouts differ (Megatron-LM ``initialize.py``)."""


def params_dtype(config: Config) -> torch.dtype:
    """Return the dtype of parameters and activations."""
    if config.precision.bf16:
        return torch.bfloat16
    return torch.float16 if config.precision.fp16 else torch.float32


@dataclass(frozen=True)
class _Parts:
    """What :meth:`Trainer.setup` builds."""

    stage: GPTStage
    buffers: list[GradBuffer]
    optimizer: MixedPrecisionOptimizer
    links: StageLinks


class Trainer:
    """Trains one rank of a world on one device.

    Args:
        config: validated; its ``probe.seed`` fixes weights, data and dropout.
        state: this rank's place and process groups.
        device: where everything lives.
        observer: told phases and roles.
        data: random tokens if None.
    """

    def __init__(
        self,
        config: Config,
        state: ParallelState,
        *,
        device: torch.device,
        observer: Observer = _SILENT,
        data: Batches | None = None,
    ) -> None:
        self.config = config
        self.state = state
        self.device = device
        self.observer = observer
        self.data = data if data is not None else _random_tokens(config)
        self.context = context_parallel(config, state, observer)
        self._parts: _Parts | None = None

    @property
    def model(self) -> list[GPTStage]:
        """The stages that this rank holds."""
        return [self._built().stage]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the fp32 master weights."""
        return self._built().optimizer.inner

    def setup(self) -> None:
        """Build the stage, its buffers and the optimizer (phase ``init``)."""
        with self.observer.phase("init"):
            torch.manual_seed(self.config.probe.seed + _SEED_STEP * self.state.pp_rank)
            stage = _build_stage(self.config, self.state, self.device, self.observer)
            buffers = build_grad_buffers([stage], self.config, self.state, self.observer)
            _share_embedding(stage, self.state)
            self.observer.role("parameter", stage.parameters())
            self.observer.role("main_gradient", [buffer.grads for buffer in buffers])
            optimizer = MixedPrecisionOptimizer(self.config, self.state, buffers, self.observer)
            links = _build_links(self.config, self.state, self.device, self.observer)
            links.connect()
            self._parts = _Parts(stage, buffers, optimizer, links)

    def step(self, iteration: int) -> torch.Tensor | None:
        """Run one iteration; on the last stage return the mean loss of the step over all replicas, a 0-d tensor."""
        parts = self._built()
        microbatches = _Microbatches(self, parts, iteration)
        parts.optimizer.zero_grad()
        run_one_forward_one_backward(
            microbatches,
            parts.links,
            state=self.state,
            num_microbatches=self.config.num_microbatches,
            deallocate_outputs=self.config.parallel.deallocate_pipeline_outputs,
        )
        with self.observer.phase("backward", iteration=iteration):
            finalize_grads(parts.buffers, self.state, self.observer)
        with self.observer.phase("optimizer", iteration=iteration):
            parts.optimizer.step()
            return _mean_loss(microbatches.losses, self.state)

    def _built(self) -> _Parts:
        if self._parts is None:
            raise UsageError("the trainer has no model yet", remedy="call setup() first")
        return self._parts


class _Microbatches:
    """The microbatches of one iteration, as the schedule asks for them."""

    def __init__(self, trainer: Trainer, parts: _Parts, iteration: int) -> None:
        self._trainer = trainer
        self._parts = parts
        self._iteration = iteration
        self._count = trainer.config.num_microbatches
        self.losses: list[torch.Tensor] = []

    def forward(self, microbatch: int, received: torch.Tensor | None) -> torch.Tensor:
        """Run the stage; the last one's result is the loss over the number of microbatches."""
        trainer, state = self._trainer, self._trainer.state
        with trainer.observer.phase("forward", iteration=self._iteration, microbatch=microbatch):
            batch = trainer.data.batch(self._iteration, microbatch * state.dp_size + state.dp_rank)
            inputs = received if received is not None else self._to_device(batch.tokens)
            mask = self._attention_mask()
            if not state.is_last_stage:
                hidden: torch.Tensor = self._parts.stage(inputs, attention_mask=mask)
                return hidden
            labels = self._to_device(batch.labels)
            loss: torch.Tensor = self._parts.stage(inputs, labels, mask)
            with trainer.observer.phase("loss"):
                loss = loss / self._count
            self.losses.append(loss.detach())
            return loss

    def backward(self, microbatch: int, output: torch.Tensor | GradientEdge, output_grad: torch.Tensor | None) -> None:
        """Differentiate; gradients land in the main gradients."""
        for buffer in self._parts.buffers:
            buffer.is_last_microbatch = microbatch == self._count - 1
        with self._trainer.observer.phase("backward", iteration=self._iteration, microbatch=microbatch):
            torch.autograd.backward(output, output_grad)

    def _attention_mask(self) -> torch.Tensor | None:
        """Return the mask that comes with the batch, on the stages that read one (Megatron-LM ``get_batch``)."""
        config, state = self._trainer.config, self._trainer.state
        if not (config.data.create_attention_mask_in_dataloader and (state.is_first_stage or state.is_last_stage)):
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


def _random_tokens(config: Config) -> RandomTokens:
    return RandomTokens(
        vocab_size=config.model.vocab_size,
        seq_length=config.data.seq_length,
        micro_batch_size=config.data.micro_batch_size,
        seed=config.probe.seed,
    )


def _build_stage(config: Config, state: ParallelState, device: torch.device, observer: Observer) -> GPTStage:
    return GPTStage(
        config,
        state,
        layers=stage_layers(config, state.pp_rank),
        pre_process=state.is_first_stage,
        post_process=state.is_last_stage,
        device=device,
        dtype=params_dtype(config),
        observer=observer,
    )


def _build_links(config: Config, state: ParallelState, device: torch.device, observer: Observer) -> StageLinks:
    parallel = config.parallel
    shards = parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1
    rows = config.data.seq_length // (parallel.context_parallel_size * shards)
    return StageLinks(
        state,
        shape=(rows, config.data.micro_batch_size, config.model.hidden_size),
        dtype=params_dtype(config),
        device=device,
        observer=observer,
    )


def _share_embedding(stage: GPTStage, state: ParallelState) -> None:
    """Give the last stage the first one's values of a tied embedding."""
    if state.embedding_group is not None:
        for param in filter(is_shared_embedding, stage.parameters()):
            dist.broadcast(param.detach(), group_src=0, group=state.embedding_group)


def _mean_loss(losses: list[torch.Tensor], state: ParallelState) -> torch.Tensor | None:
    if not losses:
        return None
    loss = torch.stack(losses).sum()
    if state.dp_cp_group is not None:
        dist.all_reduce(loss.div_(state.dp_cp_size), group=state.dp_cp_group)
    return loss
