"""An estimate of what a step takes, part by part: what a saving of memory costs in time.

Time is work over speed: matrix products over FLOP/s, element-wise kernels over memory bandwidth, collectives and
copies over their links, with a share of each peak that is assumed (``cost.*``). ``advise`` and ``sweep`` rank by it.
What the parts cost relative to each other is sounder than their sum, which leaves out launch latencies, stragglers and
the data loader.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from oomscope.config.schema import Config
from oomscope.errors import UsageError
from oomscope.model.cost.parameters import element_bytes, expert_parameters, prediction_layers, stage_parameters
from oomscope.model.cost.work import Work, head_work, heads_of_stage, layers_of_stage, offloaded_bytes, stage_work
from oomscope.model.parallel.parallel_state import Axis, group_of, stage_of
from oomscope.virtual.cards import DEFAULT_CARD, Card, find_card

_HOST_ADAM_BYTES = 28
"""Bytes a parameter that Adam reads (parameter, gradient, two moments) and writes (all but the gradient) in fp32."""
_FP32 = 4
_GIGA = 1e9
_TERA = 1e12


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of one iteration on one rank, by what they are spent on."""

    matmul_s: float = 0.0
    """Matrix products of forward and backward."""
    elementwise_s: float = 0.0
    """Norms, non-linearities, residual additions, unfused attention."""
    collectives_s: float = 0.0
    """Tensor-, context- and expert-parallel communication, which the next kernel waits for."""
    recompute_s: float = 0.0
    """Seconds of these three that recomputation runs again."""
    activation_offload_s: float = 0.0
    """Seconds of copies of activations beyond the computation that they overlap with."""
    bubble_s: float = 0.0
    """Waiting for other pipeline stages: (p - 1)/(v·m) of the above (Narayanan et al. 2021)."""
    data_parallel_s: float = 0.0
    """Reducing gradients and gathering parameters, less what overlap hides."""
    optimizer_offload_s: float = 0.0
    """Copies to and from the host's optimizer, and its update."""

    @property
    def seconds(self) -> float:
        """The whole iteration."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    @property
    def slowdown(self) -> float:
        """What recomputation and offloading add, as a share of the iteration without them."""
        saved = self.recompute_s + self.activation_offload_s
        worked = self.matmul_s + self.elementwise_s + self.collectives_s + saved
        added = saved + self.optimizer_offload_s + (self.bubble_s * saved / worked if self.bubble_s else 0.0)
        plain = self.seconds - added
        return added / plain if plain > 0 else 0.0

    def to_json(self) -> dict[str, float]:
        """Return all parts, ``seconds`` and ``slowdown``."""
        return {**asdict(self), "seconds": self.seconds, "slowdown": self.slowdown}


def step_cost(config: Config, *, rank: int) -> StepCost | None:
    """Return the estimate for ``rank`` on the configured card; None in fp32 and where the card's speed is not known.

    Raises:
        UsageError: the world has no such rank.
        ConfigError: the layers cannot be shared out.
    """
    try:
        card = find_card(config.device.gpu or DEFAULT_CARD)
    except UsageError:
        return None
    half = config.precision.bf16 or config.precision.fp16
    return None if card.bf16_tflops is None or not half else _Estimate(config, rank, card, card.bf16_tflops).cost()


@dataclass
class _Passes:
    """Seconds of the forward and backward of one microbatch."""

    matmul: float = 0.0
    elementwise: float = 0.0
    collectives: float = 0.0
    recompute: float = 0.0

    @property
    def forward(self) -> float:
        """A third of the whole: backward does twice the work."""
        return (self.matmul + self.elementwise + self.collectives) / 3

    @property
    def backward(self) -> float:
        return 2 * self.forward + self.recompute


class _Estimate:
    """The estimate of one rank; rates are FLOP/s, and bytes a second in one direction."""

    def __init__(self, config: Config, rank: int, card: Card, tflops: float) -> None:
        cost = config.cost
        self._config = config
        self._rank = rank
        self._stage = stage_of(config, rank)
        self._matmul = tflops * _TERA * cost.matmul_efficiency
        self._memory = card.memory_gbps * _GIGA * cost.memory_efficiency
        self._nvlink = (card.nvlink_gbps or card.pcie_gbps) * _GIGA * cost.link_efficiency
        self._network = cost.network_gbps * _GIGA * cost.link_efficiency
        self._pcie = card.pcie_gbps * _GIGA * cost.link_efficiency

    def cost(self) -> StepCost:
        config, passes, times = self._config, self._microbatch(), self._config.num_microbatches
        copy = offloaded_bytes(config, self._stage) / times / self._pcie
        exposed = max(0.0, copy - passes.forward) + max(0.0, copy - passes.backward)
        work = times * (passes.forward + passes.backward + exposed)
        return StepCost(
            matmul_s=times * passes.matmul,
            elementwise_s=times * passes.elementwise,
            collectives_s=times * passes.collectives,
            recompute_s=times * passes.recompute,
            activation_offload_s=times * exposed,
            bubble_s=work * (config.parallel.pipeline_model_parallel_size - 1) / (config.model_chunks * times),
            data_parallel_s=self._data_parallel(passes),
            optimizer_offload_s=self._optimizer_offload(),
        )

    def _microbatch(self) -> _Passes:
        config, passes = self._config, _Passes()
        for work, again in stage_work(config, self._stage):
            passes.matmul += 3 * work.flops / self._matmul
            passes.elementwise += 3 * work.moved / self._memory
            passes.collectives += 2 * self._communication(work)
            if config.parallel.sequence_parallel:  # backward gathers again inputs of which shards were kept
                passes.collectives += work.sent["tp"] / 2 / self._link("tp")
            passes.recompute += again.flops / self._matmul + again.moved / self._memory + self._communication(again)
        head, heads = head_work(config), heads_of_stage(config, self._stage)
        passes.matmul += heads * 3 * head.flops / self._matmul
        passes.elementwise += heads * head.moved / self._memory
        return passes

    def _communication(self, work: Work) -> float:
        return sum(nbytes / self._link(axis) for axis, nbytes in work.sent.items())

    def _data_parallel(self, passes: _Passes) -> float:
        """Return the exposed seconds of reducing gradients and of gathering or keeping parameters.

        Fully sharded parameters are gathered for every microbatch, in forward and, if they were freed, in backward.
        """
        parallel, optimizer, times = self._config.parallel, self._config.optimizer, self._config.num_microbatches
        strategy = parallel.data_parallel_sharding_strategy if parallel.use_megatron_fsdp else None
        in_fp32 = self._config.precision.grad_reduce_in_fp32 and not (parallel.use_torch_fsdp2 or strategy)
        element = element_bytes(self._config)
        reduce_s = self._replicas_s(_FP32 if in_fp32 else element)
        shards = self._config.shards_optimizer_states
        gather_s = self._replicas_s(element) if shards else reduce_s  # without shards all-reduced: twice the bytes
        if parallel.use_torch_fsdp2 or strategy == "optim_grads_params":
            again = gather_s if strategy or parallel.torch_fsdp2_reshard_after_forward else 0.0
            return times * (max(0.0, gather_s - passes.forward) + max(0.0, again + reduce_s - passes.backward))
        if optimizer.overlap_grad_reduce or strategy == "optim_grads":
            reduce_s = max(0.0, reduce_s - passes.backward)
        if optimizer.overlap_param_gather:
            gather_s = max(0.0, gather_s - passes.forward)
        return (times if strategy == "optim_grads" else 1) * reduce_s + gather_s

    def _replicas_s(self, element: int) -> float:
        """Return the seconds of one reduce-scatter or all-gather of all parameters, ``element`` bytes each."""
        seconds = 0.0
        for parameters, axis in self._replicated():
            ranks = len(group_of(self._config, self._rank, axis))
            seconds += element * parameters * (ranks - 1) // ranks / self._link(axis)
        return seconds

    def _replicated(self) -> tuple[tuple[int, Axis], tuple[int, Axis]]:
        """Return the parameters of this rank, dense and of experts, with the axes of those that share their states."""
        config = self._config
        numbers = [layer.number for layer in layers_of_stage(config, self._stage)]
        is_last = self._stage == config.parallel.pipeline_model_parallel_size - 1
        first = numbers[0] if numbers else 0
        whole = stage_parameters(config, len(numbers), pre_process=self._stage == 0, post_process=is_last, first=first)
        layers = sum(config.is_moe_layer(number) for number in numbers)
        if is_last and config.is_moe_layer(config.model.num_layers - 1):
            layers += prediction_layers(config)
        experts = layers * expert_parameters(config)
        return (whole - experts, "intra_dp_cp"), (experts, "intra_expert_dp")

    def _optimizer_offload(self) -> float:
        """Return the seconds of the host's part of the step: one after the other, or the longest of them."""
        optimizer = self._config.optimizer
        if not optimizer.optimizer_cpu_offload:
            return 0.0
        is_sharded = self._config.shards_optimizer_states
        updated = optimizer.optimizer_offload_fraction * sum(
            parameters / (len(group_of(self._config, self._rank, axis)) if is_sharded else 1)
            for parameters, axis in self._replicated()
        )
        copy = _FP32 * updated / self._pcie
        cost = self._config.cost
        neighbours = min(cost.gpus_per_node, self._config.parallel.world_size)
        update = _HOST_ADAM_BYTES * updated * neighbours / (cost.host_memory_gbps * _GIGA)
        return max(copy, update) if optimizer.overlap_cpu_optimizer_d2h_h2d else copy + update + copy

    def _link(self, axis: Axis) -> float:
        """Return the bandwidth along ``axis``: NVLink where the group stays inside a node."""
        nodes = {rank // self._config.cost.gpus_per_node for rank in group_of(self._config, self._rank, axis)}
        return self._nvlink if len(nodes) == 1 else self._network
