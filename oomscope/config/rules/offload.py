"""Rules of offloading activations and optimizer states to the host, most of them about keys that do nothing."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.rules.saved_tensors import SMALLEST_OFFLOADED, largest_of_layer
from oomscope.config.schema import Config

_CORE = "Megatron-Core transformer/transformer_config.py"
_TE = "Transformer Engine pytorch/cpu_offload.py"
_OPTIMIZER = "Megatron-Core optimizer/__init__.py"


def _offloads_layers(config: Config) -> bool:
    return config.offload.cpu_offloading


def _offloads_optimizer(config: Config) -> bool:
    return config.optimizer.optimizer_cpu_offload


def _has_graphs(config: Config) -> bool:
    return config.cuda_graph.cuda_graph_impl != "none"


OFFLOAD_RULES: tuple[Rule, ...] = (
    Rule(
        id="O1",
        keys=("offload.cpu_offloading_num_layers", "model.num_layers"),
        applies=lambda config: (
            _offloads_layers(config) and not 0 <= config.offload.cpu_offloading_num_layers < config.model.num_layers
        ),
        summary="cpu_offloading_num_layers is from 0 to num_layers - 1.",
        message=lambda config: (
            f"{config.offload.cpu_offloading_num_layers} of {config.model.num_layers} layers cannot be offloaded"
        ),
        remedy="set cpu_offloading_num_layers to between 0 and num_layers - 1",
        source=_CORE,
    ),
    Rule(
        id="O2",
        keys=("offload.cpu_offloading", "parallel.pipeline_model_parallel_size"),
        applies=lambda config: _offloads_layers(config) and config.parallel.pipeline_model_parallel_size > 1,
        summary="Layer offloading and pipeline parallelism exclude each other.",
        message="cpu_offloading does not work with pipeline parallelism",
        remedy="set pipeline_model_parallel_size to 1, or remove cpu_offloading",
        source=_CORE,
    ),
    Rule(
        id="R21",
        keys=("offload.cpu_offloading", "recompute.recompute_granularity"),
        applies=lambda config: _offloads_layers(config) and config.recompute.recompute_granularity is not None,
        summary="Layer offloading and recomputation exclude each other (even selective recomputation of nothing).",
        message="cpu_offloading does not work when activations are recomputed",
        remedy="set recompute_granularity to null, or remove cpu_offloading",
        source=f"{_CORE} (checked before R1)",
    ),
    Rule(
        id="O3",
        keys=("offload.fine_grained_activation_offloading", "offload.cpu_offloading"),
        applies=lambda config: _offloads_layers(config) and config.offload.fine_grained_activation_offloading,
        summary="Layer offloading and fine-grained offloading exclude each other.",
        message="cpu_offloading and fine_grained_activation_offloading are both set",
        remedy="remove one of them",
        source=_CORE,
    ),
    Rule(
        id="O4",
        keys=("offload.cpu_offloading_activations", "offload.cpu_offloading"),
        applies=lambda config: (
            _offloads_layers(config)
            and not config.offload.cpu_offloading_activations
            and not config.offload.cpu_offloading_weights
        ),
        summary="Layer offloading offloads something.",
        message="cpu_offloading is to offload neither activations nor weights",
        remedy="set cpu_offloading_activations, or remove cpu_offloading",
        source=_TE,
    ),
    Rule(
        id="O5",
        severity="warning",
        keys=("offload.cpu_offloading_weights",),
        applies=lambda config: config.offload.cpu_offloading_weights,
        summary="cpu_offloading_weights has no effect.",
        message=lambda config: (
            "cpu_offloading_weights does nothing"
            + ("" if config.offload.cpu_offloading_activations else ", and with it alone nothing is offloaded")
        ),
        remedy="remove cpu_offloading_weights",
        source=f"{_TE}, version 2",
    ),
    Rule(
        id="O6",
        severity="warning",
        keys=("offload.cpu_offloading_double_buffering",),
        applies=lambda config: config.offload.cpu_offloading_double_buffering,
        summary="cpu_offloading_double_buffering has no effect.",
        message="cpu_offloading_double_buffering does nothing",
        remedy="remove cpu_offloading_double_buffering",
        source=f"{_TE}, version 2",
    ),
    Rule(
        id="O7",
        severity="warning",
        keys=("offload.cpu_offloading_num_layers", "offload.cpu_offloading"),
        applies=lambda config: _offloads_layers(config) and config.offload.cpu_offloading_num_layers == 0,
        summary="Layer offloading of no layers offloads nothing.",
        message="cpu_offloading is set, and cpu_offloading_num_layers is 0: nothing is offloaded",
        remedy="set cpu_offloading_num_layers",
        source=_CORE,
    ),
    Rule(
        id="O8",
        severity="warning",
        keys=("offload.cpu_offloading_num_layers", "model.num_layers"),
        applies=lambda config: (
            _offloads_layers(config)
            and config.offload.cpu_offloading_num_layers > 0
            and config.offload.cpu_offloading_num_layers == config.model.num_layers - 1
        ),
        summary="Offloading all layers but one leaves nothing to overlap the copies with.",
        message=lambda config: (
            f"offloading {config.offload.cpu_offloading_num_layers} of {config.model.num_layers} layers leaves none "
            "to overlap the copies with"
        ),
        remedy="offload fewer layers",
        source=_TE,
    ),
    Rule(
        id="O9",
        severity="warning",
        keys=("offload.cpu_offloading_num_layers",),
        applies=lambda config: not _offloads_layers(config) and config.offload.cpu_offloading_num_layers != 0,
        summary="cpu_offloading_num_layers acts with cpu_offloading alone.",
        message="cpu_offloading_num_layers is ignored, since cpu_offloading is false",
        remedy="set cpu_offloading (Megatron-LM's launcher sets it by itself)",
        source="Megatron-Core model_parallel_config.py",
    ),
    Rule(
        id="O16",
        severity="warning",
        keys=("offload.cpu_offloading_num_layers", "data.seq_length", "model.hidden_size"),
        applies=lambda config: (
            _offloads_layers(config)
            and config.offload.cpu_offloading_num_layers > 0
            and largest_of_layer(config) < SMALLEST_OFFLOADED
        ),
        summary="Layer offloading leaves tensors of fewer than 262,144 elements on the device.",
        message=lambda config: (
            f"no tensor that a layer saves has more than {largest_of_layer(config):,} elements: nothing is offloaded"
        ),
        remedy=f"remove cpu_offloading: it takes tensors of {SMALLEST_OFFLOADED:,} elements or more",
        source=_TE,
    ),
    Rule(
        id="O10",
        severity="warning",
        keys=("optimizer.optimizer_cpu_offload", "optimizer.optimizer_offload_fraction"),
        applies=lambda config: _offloads_optimizer(config) and config.optimizer.optimizer_offload_fraction == 0,
        summary="Optimizer offloading of the fraction 0 offloads nothing.",
        message="optimizer_cpu_offload is set, and optimizer_offload_fraction is 0: nothing is offloaded",
        remedy="set optimizer_offload_fraction (it defaults to 0 here, and to 1 in Megatron-LM's launcher)",
        source="Megatron-Core optimizer/optimizer_config.py",
    ),
    Rule(
        id="O11",
        severity="warning",
        keys=("optimizer.use_torch_optimizer_for_cpu_offload",),
        applies=lambda config: config.optimizer.use_torch_optimizer_for_cpu_offload,
        summary="use_torch_optimizer_for_cpu_offload has no effect.",
        message="use_torch_optimizer_for_cpu_offload does nothing: what it chooses is replaced two statements later",
        remedy="remove use_torch_optimizer_for_cpu_offload",
        source=_OPTIMIZER,
    ),
    Rule(
        id="O13",
        keys=("optimizer.decoupled_weight_decay", "optimizer.optimizer_cpu_offload"),
        applies=lambda config: _offloads_optimizer(config) and not config.optimizer.decoupled_weight_decay,
        summary="Optimizer offloading needs decoupled weight decay.",
        message="optimizer_cpu_offload is set, and decoupled_weight_decay is false",
        remedy="set decoupled_weight_decay",
        source=_OPTIMIZER,
    ),
    Rule(
        id="O15",
        keys=("optimizer.optimizer_cpu_offload", "optimizer.use_distributed_optimizer"),
        applies=lambda config: (
            _offloads_optimizer(config)
            and (config.precision.bf16 or config.precision.fp16)
            and not config.optimizer.use_distributed_optimizer
        ),
        summary="Optimizer offloading of a 16-bit model needs the distributed optimizer.",
        message="the first step ends in a KeyError: the fp32 masters take the place of parameters that are looked up",
        remedy="set use_distributed_optimizer",
        source=f"{_OPTIMIZER}, Float16OptimizerWithFloat16Params; optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    Rule(
        id="O14",
        severity="warning",
        keys=("optimizer.optimizer_cpu_offload", "optimizer.use_precision_aware_optimizer"),
        applies=lambda config: (
            _offloads_optimizer(config)
            and config.optimizer.optimizer_offload_fraction > 0
            and not config.optimizer.use_precision_aware_optimizer
        ),
        summary="Optimizer offloading without the precision-aware optimizer leaves the fp32 masters on the device.",
        message="the moments go to the host, and the fp32 masters stay: 8 of 12 bytes a parameter",
        remedy="set use_precision_aware_optimizer (Megatron-LM's launcher requires it, Megatron-Bridge does not)",
        source="Megatron-LM training/arguments.py; Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    Rule(
        id="O18",
        severity="warning",
        keys=("optimizer.store_param_remainders", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"),
        applies=lambda config: (
            _offloads_optimizer(config)
            and config.optimizer.use_precision_aware_optimizer
            and (
                config.optimizer.optimizer_offload_fraction < 1
                or config.optimizer.exp_avg_dtype != "fp32"
                or config.optimizer.exp_avg_sq_dtype != "fp32"
            )
        ),
        summary="With optimizer offloading no optimizer is precision-aware: remainders and narrow moments are ignored.",
        message="the hybrid optimizer is made of plain Adams: what stays on the device has an fp32 master and fp32"
        " moments, 12 bytes a parameter, whatever store_param_remainders, exp_avg_dtype and exp_avg_sq_dtype ask for",
        remedy="set optimizer_offload_fraction to 1 and leave the dtypes at fp32, or remove optimizer_cpu_offload",
        source=_OPTIMIZER,
    ),
    Rule(
        id="O17",
        severity="warning",
        keys=("optimizer.optimizer_offload_fraction", "optimizer.use_distributed_optimizer"),
        applies=lambda config: (
            _offloads_optimizer(config)
            and config.optimizer.use_distributed_optimizer
            and 0 < config.optimizer.optimizer_offload_fraction < 1
            and config.parallel.data_parallel_size * config.parallel.context_parallel_size > 1
        ),
        summary="Ranks of one stage offload different shares of their optimizer states.",
        message="each rank moves whole pieces of its own shard until the fraction is reached: another rank of the same"
        " stage may keep the states of one such piece more",
        remedy="probe other replicas as well, with --rank N",
        source="Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    Rule(
        id="O12",
        severity="warning",
        keys=("optimizer.optimizer_offload_fraction", "optimizer.overlap_cpu_optimizer_d2h_h2d"),
        applies=lambda config: (
            not _offloads_optimizer(config)
            and (config.optimizer.optimizer_offload_fraction > 0 or config.optimizer.overlap_cpu_optimizer_d2h_h2d)
        ),
        summary="The details of optimizer offloading act with optimizer_cpu_offload alone.",
        message="nothing of the optimizer is offloaded, since optimizer_cpu_offload is false",
        remedy="set optimizer_cpu_offload",
        source=_OPTIMIZER,
    ),
    Rule(
        id="G3",
        severity="warning",
        keys=("cuda_graph.cuda_graph_modules", "cuda_graph.cuda_graph_impl"),
        applies=lambda config: (
            config.cuda_graph.cuda_graph_impl == "none" and bool(config.cuda_graph.cuda_graph_modules)
        ),
        summary="cuda_graph_modules acts with a cuda_graph_impl alone.",
        message="cuda_graph_modules is ignored, since cuda_graph_impl is none",
        remedy="set cuda_graph_impl, or remove cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="G5",
        severity="warning",
        keys=("offload.delay_offload_until_cuda_graph",),
        applies=lambda config: (
            config.offload.delay_offload_until_cuda_graph and config.cuda_graph.cuda_graph_impl == "none"
        ),
        summary="delay_offload_until_cuda_graph acts with graphs and fine-grained offloading alone.",
        message="delay_offload_until_cuda_graph does nothing without a CUDA graph and fine-grained offloading",
        remedy="remove delay_offload_until_cuda_graph",
        source=_CORE,
    ),
)
