"""An estimate of what a step takes, part by part: what a saving of memory costs in time, before anybody runs it.

Time is work over speed: matrix products over FLOP/s, element-wise kernels over memory bandwidth, collectives and
copies over their links, with a share of each peak that is assumed (``cost.*``). What the parts cost relative to each
other is sounder than their sum, which leaves out launch latencies, stragglers and the data loader.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from oomscope.config.schema import Config
from oomscope.model.cost.flops import (
    StageLayer,
    head_flops,
    layer_flops,
    layers_of_stage,
    prediction_flops,
    recomputed_layer_flops,
    tokens_of,
)
from oomscope.model.cost.offload_traffic import offloaded_bytes
from oomscope.model.cost.parameters import expert_parameters, prediction_layers, stage_parameters
from oomscope.model.cost.traffic import (
    Collectives,
    element_bytes,
    gathers_tokens,
    layer_collectives,
    layer_traffic,
    prediction_collectives,
    prediction_traffic,
)
from oomscope.model.memory.layer_groups import recomputes_predictions
from oomscope.model.parallel.parallel_state import Axis, group_of, rank_coordinates

_HOST_ADAM_BYTES = 28
"""What Adam reads (parameter, gradient, two moments) and writes (all but the gradient) in fp32 a parameter."""
_FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What is reached of a machine: FLOP/s, and bytes a second in one direction."""

    matmul: float
    memory: float
    nvlink: float
    """Between cards of a node; that of PCI Express where there is no NVLink."""
    network: float
    pcie: float
    host_memory: float
    """Of a whole node, for all its ranks together."""
    gpus_per_node: int


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of one iteration on one rank, by what they are spent on, and the bytes that leave the card."""

    matmul_s: float = 0.0
    """Matrix products of forward and backward."""
    elementwise_s: float = 0.0
    """Norms, non-linearities, residual additions, unfused attention."""
    collectives_s: float = 0.0
    """Tensor-, context- and expert-parallel communication, which the next kernel waits for."""
    recompute_s: float = 0.0
    """What recomputation runs again of these three."""
    activation_offload_s: float = 0.0
    """What copies of activations take beyond the computation that they run beside."""
    bubble_s: float = 0.0
    """Waiting for other pipeline stages: (p - 1)/(v·m) of the above (Narayanan et al. 2021)."""
    data_parallel_s: float = 0.0
    """Reducing gradients and gathering parameters, less what overlap hides."""
    optimizer_offload_s: float = 0.0
    """Copies to and from the host's optimizer, and its update."""
    recompute_flops: int = 0
    network_bytes: int = 0
    """Sent to other ranks, in the node and beyond."""
    pcie_bytes: int = 0
    """Copied to the host and back."""

    @property
    def seconds(self) -> float:
        """The whole iteration."""
        return float(sum(getattr(self, field.name) for field in fields(self) if field.name.endswith("_s")))

    def without_savings_s(self) -> float:
        """Return the seconds of the same iteration without recomputation and offloading."""
        spent = self.seconds - self.activation_offload_s - self.optimizer_offload_s - self.recompute_s
        in_pipeline = self.matmul_s + self.elementwise_s + self.collectives_s
        saved = self.recompute_s + self.activation_offload_s
        return spent - (self.bubble_s * saved / (in_pipeline + saved) if self.bubble_s else 0.0)

    @property
    def slowdown(self) -> float:
        """What recomputation and offloading add, as a share of the iteration without them."""
        plain = self.without_savings_s()
        return self.seconds / plain - 1 if plain > 0 else 0.0

    def to_json(self) -> dict[str, float]:
        """Return all parts, ``seconds`` and ``slowdown``."""
        return {**asdict(self), "seconds": self.seconds, "slowdown": self.slowdown}


def step_cost(config: Config, *, rank: int, rates: Rates) -> StepCost:
    """Return the estimate for ``rank``.

    Raises:
        UsageError: the world has no such rank.
        ConfigError: the layers cannot be shared out.
    """
    return _Estimate(config, rank, rates).cost()


@dataclass
class _Passes:
    """Seconds of one microbatch, and bytes that it sends."""

    matmul: float = 0.0
    elementwise: float = 0.0
    collectives: float = 0.0
    recompute: float = 0.0
    recompute_flops: int = 0
    network_bytes: int = 0

    @property
    def forward(self) -> float:
        """A third of the whole: backward does twice the work."""
        return (self.matmul + self.elementwise + self.collectives) / 3

    @property
    def backward(self) -> float:
        return 2 * self.forward + self.recompute


class _Estimate:
    """The estimate of one rank."""

    def __init__(self, config: Config, rank: int, rates: Rates) -> None:
        self._config = config
        self._rank = rank
        self._rates = rates
        self._stage = rank_coordinates(config, rank).pp
        self._layers = list(layers_of_stage(config, self._stage))

    def cost(self) -> StepCost:
        config, passes, times = self._config, self._microbatch(), self._config.num_microbatches
        offloaded = offloaded_bytes(config, self._stage)
        copy = offloaded / times / self._rates.pcie
        exposed = max(0.0, copy - passes.forward) + max(0.0, copy - passes.backward)
        work = times * (passes.forward + passes.backward + exposed)
        stages = config.parallel.pipeline_model_parallel_size
        reduced = self._data_parallel(passes)
        host_parameters = self._host_parameters()
        return StepCost(
            matmul_s=times * passes.matmul,
            elementwise_s=times * passes.elementwise,
            collectives_s=times * passes.collectives,
            recompute_s=times * passes.recompute,
            activation_offload_s=times * exposed,
            bubble_s=work * (stages - 1) / (config.model_chunks * times),
            data_parallel_s=reduced[0],
            optimizer_offload_s=self._optimizer_offload(host_parameters),
            recompute_flops=times * passes.recompute_flops,
            network_bytes=times * (passes.network_bytes + self._pipeline_bytes()) + reduced[1],
            pcie_bytes=2 * offloaded + 2 * _FP32 * host_parameters,
        )

    # One microbatch -------------------------------------------------------------------------------------------

    def _microbatch(self) -> _Passes:
        passes = _Passes()
        for layer in self._layers:
            self._add(passes, layer)
        if self._is_last:
            self._add_head(passes)
            for _depth in range(self._config.model.mtp_num_layers or 0):
                self._add_prediction(passes)
        return passes

    @property
    def _is_last(self) -> bool:
        return self._stage == self._config.parallel.pipeline_model_parallel_size - 1

    def _add_head(self, passes: _Passes) -> None:
        vocabulary = self._config.padded_vocab_size // self._config.parallel.tensor_model_parallel_size
        passes.matmul += 3 * head_flops(self._config) / self._rates.matmul
        # logits written, copied to fp32, maximum and sum taken, exponentiated in place; the gradient cast back
        moved = tokens_of(self._config) * vocabulary * (3 * element_bytes(self._config) + 6 * _FP32)
        passes.elementwise += moved / self._rates.memory

    def _add_prediction(self, passes: _Passes) -> None:
        """Add one depth of multi-token prediction: a layer, a projection between collectives, norms, and a head."""
        config, rates, is_again = self._config, self._rates, recomputes_predictions(self._config)
        last = config.model.num_layers - 1
        self._add(passes, StageLayer(last, is_again))
        self._add_head(passes)
        flops = prediction_flops(config)[0] - layer_flops(config, last).total - head_flops(config)
        moved, sent = prediction_traffic(config), prediction_collectives(config)
        passes.matmul += 3 * flops / rates.matmul
        passes.elementwise += 3 * moved / rates.memory
        passes.collectives += 2 * sent / self._link("tp")
        passes.network_bytes += (3 if is_again else 2) * sent
        if is_again:
            passes.recompute += flops / rates.matmul + moved / rates.memory + sent / self._link("tp")
            passes.recompute_flops += flops

    def _add(self, passes: _Passes, layer: StageLayer) -> None:
        config, rates = self._config, self._rates
        flops, moved = layer_flops(config, layer.number).total, layer_traffic(config, layer.number).total
        sent = layer_collectives(config, layer.number)
        passes.matmul += 3 * flops / rates.matmul
        passes.elementwise += 3 * moved / rates.memory
        passes.collectives += 2 * self._communication(sent) + self._gathered_again(sent)
        passes.network_bytes += 2 * sent.total
        if layer.recomputed:
            again = (flops, moved, sent)
        else:
            again = (
                recomputed_layer_flops(config, layer.number),
                recomputed_traffic(config, layer.number),
                _recomputed_collectives(config, sent, layer.number),
            )
        passes.recompute += again[0] / rates.matmul + again[1] / rates.memory + self._communication(again[2])
        passes.recompute_flops += again[0]
        passes.network_bytes += again[2].total

    def _communication(self, sent: Collectives) -> float:
        experts: Axis = "expert_tp_ep" if gathers_tokens(self._config) else "ep"
        sent_by_axis: tuple[tuple[int, Axis], ...] = (
            (sent.tp, "tp"),
            (sent.cp, "cp"),
            (sent.ep, experts),
            (sent.expert_tp, "expert_tp"),
        )
        return sum(sent_bytes / self._link(axis) for sent_bytes, axis in sent_by_axis)

    def _gathered_again(self, sent: Collectives) -> float:
        """Return what sequence parallelism gathers again in backward, the shards alone being kept."""
        if not self._config.parallel.sequence_parallel:
            return 0.0
        return sent.tp / 2 / self._link("tp")

    def _pipeline_bytes(self) -> int:
        """Return what goes to neighbouring stages: a hidden state forward and its gradient back, for each chunk."""
        config = self._config
        if config.parallel.pipeline_model_parallel_size == 1:
            return 0
        shards = config.parallel.tensor_model_parallel_size if config.parallel.sequence_parallel else 1
        hidden = element_bytes(config) * tokens_of(config) * config.model.hidden_size // shards
        return 2 * hidden * config.model_chunks

    # One step -------------------------------------------------------------------------------------------------

    def _data_parallel(self, passes: _Passes) -> tuple[float, int]:
        """Return exposed seconds and bytes of reducing gradients and of gathering or keeping parameters."""
        config = self._config
        if config.parallel.use_torch_fsdp2:
            return self._fully_sharded(passes)
        if config.parallel.use_megatron_fsdp:
            return self._megatron_fsdp(passes)
        gradient = _FP32 if config.precision.grad_reduce_in_fp32 else element_bytes(config)
        reduce_s = gather_s = 0.0
        sent = 0
        for parameters, axis in self._replicated():
            ranks, link = len(group_of(config, self._rank, axis)), self._link(axis)
            share = parameters * (ranks - 1) // ranks
            again = element_bytes(config) if config.optimizer.use_distributed_optimizer else gradient
            over_instances = self._over_instances(parameters // ranks * gradient)
            reduce_s += share * gradient / link + over_instances / self._link("inter_dist_opt")
            gather_s += share * again / link
            sent += share * (gradient + again) + over_instances
        if config.optimizer.overlap_grad_reduce:
            reduce_s = max(0.0, reduce_s - passes.backward)
        if config.optimizer.overlap_param_gather:
            gather_s = max(0.0, gather_s - passes.forward)
        return reduce_s + gather_s, sent

    def _over_instances(self, shard_bytes: int) -> int:
        """Return what the all-reduce of a shard over the optimizer's instances sends."""
        instances = self._config.optimizer.num_distributed_optimizer_instances
        return 2 * shard_bytes * (instances - 1) // instances

    def _fully_sharded(self, passes: _Passes) -> tuple[float, int]:
        """Return the same of FSDP2: each microbatch gathers every unit, and reduces it, beside the computation."""
        config = self._config
        ranks, link, times = len(group_of(config, self._rank, "dp_cp")), self._link("dp_cp"), config.num_microbatches
        share = element_bytes(config) * self._parameters() * (ranks - 1) // ranks
        again = 1 if config.parallel.torch_fsdp2_reshard_after_forward else 0
        exposed = max(0.0, share / link - passes.forward) + max(0.0, (1 + again) * share / link - passes.backward)
        return times * exposed, times * (2 + again) * share

    def _megatron_fsdp(self, passes: _Passes) -> tuple[float, int]:
        """Return the same of Megatron-FSDP: each microbatch communicates what is sharded, each step the rest once.

        Units are gathered in forward and in backward; what belongs to none is counted so too, although it is not
        gathered again.
        """
        config, times = self._config, self._config.num_microbatches
        strategy = config.parallel.data_parallel_sharding_strategy
        shares = [
            (parameters * (ranks - 1) // ranks, self._link(axis))
            for parameters, axis in self._replicated()
            for ranks in [len(group_of(config, self._rank, axis))]
        ]
        gradient = self._reduced_bytes()
        again = element_bytes(config) if strategy != "no_shard" else gradient
        reduced, gathered = (sum(share for share, _ in shares) * size for size in (gradient, again))
        reduce_s, gather_s = (sum(share * size / link for share, link in shares) for size in (gradient, again))
        if strategy == "optim_grads_params":
            exposed = max(0.0, gather_s - passes.forward) + max(0.0, gather_s + reduce_s - passes.backward)
            return times * exposed, times * (2 * gathered + reduced)
        reductions = times if strategy == "optim_grads" else 1
        if strategy == "optim_grads" or config.optimizer.overlap_grad_reduce:
            reduce_s = max(0.0, reduce_s - passes.backward)
        if config.optimizer.overlap_param_gather:
            gather_s = max(0.0, gather_s - passes.forward)
        return reductions * reduce_s + gather_s, reductions * reduced + gathered

    def _reduced_bytes(self) -> int:
        """Return the bytes in which Megatron-FSDP reduces a gradient."""
        parallel = self._config.parallel
        sizes = {"fp32": _FP32, "bf16": 2, "fp16": 2}
        kept = sizes.get(parallel.megatron_fsdp_main_grads_dtype, element_bytes(self._config))
        return sizes.get(parallel.megatron_fsdp_grad_comm_dtype, kept)

    def _parameters(self) -> int:
        stages = self._config.parallel.pipeline_model_parallel_size
        return stage_parameters(
            self._config,
            len(self._layers),
            pre_process=self._stage == 0,
            post_process=self._stage == stages - 1,
            first=self._layers[0].number if self._layers else 0,
        )

    def _replicated(self) -> tuple[tuple[int, Axis], tuple[int, Axis]]:
        """Return the parameters of this rank, dense and of experts, with the axes of those that share their states."""
        experts = sum(
            expert_parameters(self._config) for layer in self._layers if self._config.is_moe_layer(layer.number)
        )
        if self._is_last and self._config.is_moe_layer(self._config.model.num_layers - 1):
            experts += prediction_layers(self._config) * expert_parameters(self._config)
        return (self._parameters() - experts, "intra_dp_cp"), (experts, "intra_expert_dp")

    def _host_parameters(self) -> int:
        """Return how many parameters of this rank the host updates."""
        optimizer = self._config.optimizer
        if not optimizer.optimizer_cpu_offload:
            return 0
        is_sharded = self._config.shards_optimizer_states
        updated = sum(
            parameters / (len(group_of(self._config, self._rank, axis)) if is_sharded else 1)
            for parameters, axis in self._replicated()
        )
        return round(optimizer.optimizer_offload_fraction * updated)

    def _optimizer_offload(self, parameters: int) -> float:
        """Return the seconds of the host's part of the step: one after the other, or the longest of them."""
        copy = _FP32 * parameters / self._rates.pcie
        neighbours = min(self._rates.gpus_per_node, self._config.parallel.world_size)
        update = _HOST_ADAM_BYTES * parameters * neighbours / self._rates.host_memory
        if self._config.optimizer.overlap_cpu_optimizer_d2h_h2d:
            return max(copy, update)
        return copy + update + copy

    def _link(self, axis: Axis) -> float:
        """Return the bandwidth along ``axis``: NVLink where the group stays inside a node."""
        nodes = {rank // self._rates.gpus_per_node for rank in group_of(self._config, self._rank, axis)}
        return self._rates.nvlink if len(nodes) == 1 else self._rates.network


def recomputed_traffic(config: Config, layer: int) -> int:
    """Return the element-wise bytes that selective recomputation moves again in ``layer``."""
    traffic, modules, moe = layer_traffic(config, layer), config.recompute_modules, config.is_moe_layer(layer)
    fused = config.model.transformer_impl == "transformer_engine"
    again = 0
    if "core_attn" in modules:
        again += traffic.core_attention
    if ("moe" if moe else "mlp") in modules:
        again += traffic.activation + (traffic.norms // 2 if fused and not moe else 0)
    elif moe:
        again += traffic.activation - traffic.shared_activation if "moe_act" in modules else 0
        again += traffic.shared_activation if "shared_experts" in modules else 0
    if "mla_up_proj" in modules and config.model.multi_latent_attention:
        again += traffic.attention - traffic.core_attention
    if "layernorm" in modules and (moe or not fused):
        again += traffic.norms // 2 if fused else traffic.norms
    return again


def _recomputed_collectives(config: Config, sent: Collectives, layer: int) -> Collectives:
    """Return what selective recomputation sends again: an ordinary checkpoint replays its region's collectives."""
    modules, moe = config.recompute_modules, config.is_moe_layer(layer)
    whole_mlp = ("moe" if moe else "mlp") in modules
    latents = sent.latents_tp if "mla_up_proj" in modules else 0
    return Collectives(
        attention_tp=latents,
        latents_tp=latents,
        mlp_tp=sent.mlp_tp if whole_mlp or (moe and "shared_experts" in modules) else 0,
        cp=sent.cp if "core_attn" in modules else 0,
        ep=sent.ep if whole_mlp else 0,
        expert_tp=sent.expert_tp if whole_mlp else 0,
    )
