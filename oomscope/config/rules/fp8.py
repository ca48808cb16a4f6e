"""Rules of products in fp8: what Megatron-Core and Transformer Engine refuse, and what is not modelled of them."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_CORE = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_UTILS = "Transformer Engine pytorch/utils.py, assert_dim_for_fp8_exec"
_ROWS = 8
_COLUMNS = 16
_BLOCKS = {"blockwise": 128, "mxfp8": 32}


def _fp8(config: Config) -> bool:
    return config.precision.fp8 is not None


def _rows(config: Config) -> int:
    """Return the tokens of a microbatch that a rank multiplies at once, the fewest of its layers."""
    parallel = config.parallel
    shards = parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1
    return config.data.seq_length * config.data.micro_batch_size // (parallel.context_parallel_size * shards)


def _widths(config: Config) -> dict[str, int]:
    """Return the widths that products have on a rank, by name."""
    model, t = config.model, config.parallel.tensor_model_parallel_size
    return {
        "hidden_size": model.hidden_size,
        "the projection's input": model.num_attention_heads * config.head_dim // t,
        "Q, K and V": (model.num_attention_heads + 2 * config.query_groups) * config.head_dim // t,
        "ffn_hidden_size": config.ffn_size // t,
    }


def _odd_widths(config: Config) -> list[str]:
    of = _BLOCKS.get(config.precision.fp8_recipe, _COLUMNS)
    return [f"{name} {width}" for name, width in _widths(config).items() if width % of]


def _rows_of(config: Config) -> int:
    return _BLOCKS.get(config.precision.fp8_recipe, _ROWS)


def _too_many_bf16_layers(config: Config) -> list[str]:
    precision, most = config.precision, config.model.num_layers // config.parallel.pipeline_model_parallel_size
    counts = {
        "num_layers_at_start_in_bf16": precision.num_layers_at_start_in_bf16,
        "num_layers_at_end_in_bf16": precision.num_layers_at_end_in_bf16,
    }
    return [f"{name} is {count}" for name, count in counts.items() if count > most]


FP8_RULES: tuple[Rule, ...] = (
    Rule(
        id="Q1",
        severity="warning",
        keys=("precision.fp8", "model.transformer_impl"),
        applies=lambda config: _fp8(config) and config.model.transformer_impl != "transformer_engine",
        summary="Products in fp8 are Transformer Engine's.",
        message="fp8 is set, and does nothing in the layers of transformer_impl local",
        remedy="set transformer_impl to transformer_engine, or fp8 to null",
        source="Megatron-Core fp8_utils.py, get_fp8_context",
    ),
    Rule(
        id="Q2",
        keys=("precision.first_last_layers_bf16", "precision.fp8_recipe"),
        applies=lambda config: (
            _fp8(config) and config.precision.first_last_layers_bf16 and config.precision.fp8_recipe == "delayed"
        ),
        summary="Under delayed scaling all layers are in fp8.",
        message="delayed scaling does not leave the first and last layers in bf16",
        remedy="choose another fp8_recipe, or set first_last_layers_bf16 to false",
        source=_CORE,
    ),
    Rule(
        id="Q3",
        keys=("precision.num_layers_at_start_in_bf16", "precision.num_layers_at_end_in_bf16"),
        applies=lambda config: (
            _fp8(config) and config.precision.first_last_layers_bf16 and bool(_too_many_bf16_layers(config))
        ),
        summary="At either end no more layers stay in bf16 than a pipeline stage has.",
        message=lambda config: f"{' and '.join(_too_many_bf16_layers(config))}, more than a pipeline stage has",
        remedy="lower it",
        source=_CORE,
    ),
    Rule(
        id="Q4",
        keys=("precision.fp8_param", "optimizer.use_distributed_optimizer"),
        applies=lambda config: config.precision.fp8_param and not config.optimizer.use_distributed_optimizer,
        summary="Parameters in fp8 belong to the distributed optimizer.",
        message="fp8_param is set without the distributed optimizer",
        remedy="set use_distributed_optimizer, or fp8_param to false",
        source=_ARGS,
    ),
    Rule(
        id="Q5",
        keys=("precision.fp8", "precision.fp8_recipe"),
        applies=lambda config: _fp8(config) and bool(_odd_widths(config)),
        summary="Widths of products in fp8 are multiples of 16, and of a block (128 or 32) where those have scales.",
        message=lambda config: (
            f"on a rank {', '.join(_odd_widths(config))} is no multiple of "
            f"{_BLOCKS.get(config.precision.fp8_recipe, _COLUMNS)}, as fp8_recipe {config.precision.fp8_recipe} wants"
        ),
        remedy="change the width or the tensor parallelism",
        source=_UTILS,
    ),
    Rule(
        id="Q6",
        keys=("precision.fp8", "data.seq_length", "data.micro_batch_size"),
        applies=lambda config: _fp8(config) and _rows(config) % _rows_of(config) != 0,
        summary="Tokens of a product in fp8 are a multiple of 8, and of a block (128 or 32) where those have scales.",
        message=lambda config: (
            f"a rank multiplies {_rows(config)} tokens at once, no multiple of {_rows_of(config)}, as fp8_recipe "
            f"{config.precision.fp8_recipe} wants"
        ),
        remedy="change seq_length or micro_batch_size",
        source=_UTILS,
    ),
    Rule(
        id="N-fp8-fp32",
        severity="not_modelled",
        keys=("precision.fp8", "precision.bf16"),
        applies=lambda config: _fp8(config) and not (config.precision.bf16 or config.precision.fp16),
        summary="Products in fp8 between activations of fp32.",
        message="products in fp8 of activations in fp32 are not there",
        remedy="set bf16",
        source="Transformer Engine pytorch/module/base.py, set_activation_dtype",
    ),
    Rule(
        id="N-fp4",
        severity="not_modelled",
        keys=("precision.fp4",),
        applies=lambda config: config.precision.fp4 is not None,
        summary="Products in fp4: their copies, rotations and scales.",
        message="matrix products in fp4, with their copies of the weights, are not there",
        remedy="set fp4 to null, or measure fp8",
        source="Transformer Engine pytorch/tensor/nvfp4_tensor.py",
    ),
    Rule(
        id="N-fp8-recipe",
        severity="not_modelled",
        keys=("precision.fp8_recipe", "precision.fp8_wgrad"),
        applies=lambda config: (
            _fp8(config) and (config.precision.fp8_recipe == "custom" or not config.precision.fp8_wgrad)
        ),
        summary="fp8 recipes of one's own, and weight gradients in 16 bits beside fp8.",
        message="a recipe of one's own, or weight gradients in 16 bits beside fp8, is not there",
        remedy="set fp8_recipe to tensorwise and fp8_wgrad to true",
        source="Megatron-Core fp8_utils.py, get_fp8_recipe",
    ),
    Rule(
        id="N-fp8-attention",
        severity="not_modelled",
        keys=("precision.fp8_dot_product_attention", "precision.fp8_multi_head_attention"),
        applies=lambda config: config.precision.fp8_dot_product_attention or config.precision.fp8_multi_head_attention,
        summary="Attention in fp8, which keeps Q, K, V and the output in fp8.",
        message="attention in fp8, with other tensors kept, is not there",
        remedy="set fp8_dot_product_attention and fp8_multi_head_attention to false",
        source="Transformer Engine pytorch/attention/dot_product_attention/backends.py",
    ),
    Rule(
        id="N-fp8-experts",
        severity="not_modelled",
        keys=("precision.fp8", "model.num_moe_experts"),
        applies=lambda config: _fp8(config) and config.model.num_moe_experts is not None,
        summary="Experts in fp8: their padded rows and the copies of each expert's weights.",
        message="experts in fp8, with rows padded to blocks and copies of each expert's weights, are not there",
        remedy="set fp8 to null; a probe in bf16 is an upper bound of the activations, not of the weights",
        source="Transformer Engine pytorch/module/grouped_linear.py",
    ),
    Rule(
        id="N-fp8-latent",
        severity="not_modelled",
        keys=("precision.fp8", "model.multi_latent_attention"),
        applies=lambda config: _fp8(config) and config.model.multi_latent_attention,
        summary="Multi-latent attention in fp8.",
        message="the projections of multi-latent attention in fp8 are not there",
        remedy="set fp8 to null",
        source="Megatron-Core transformer/multi_latent_attention.py",
    ),
    Rule(
        id="N-fp8-mtp",
        severity="not_modelled",
        keys=("precision.fp8", "model.mtp_num_layers"),
        applies=lambda config: _fp8(config) and config.model.mtp_num_layers is not None,
        summary="Multi-token prediction in fp8.",
        message="the layers of multi-token prediction in fp8 are not there",
        remedy="set fp8 or mtp_num_layers to null",
        source="Megatron-Core transformer/multi_token_prediction.py",
    ),
    Rule(
        id="N-fp8-offload",
        severity="not_modelled",
        keys=("precision.fp8", "offload.cpu_offloading", "offload.fine_grained_activation_offloading"),
        applies=lambda config: (
            _fp8(config) and (config.offload.cpu_offloading or config.offload.fine_grained_activation_offloading)
        ),
        summary="Activations in fp8 on the host.",
        message="offloading what products in fp8 save is not there",
        remedy="set cpu_offloading and fine_grained_activation_offloading to false, or fp8 to null",
        source="Transformer Engine pytorch/cpu_offload.py",
    ),
    Rule(
        id="N-fp8-fsdp",
        severity="not_modelled",
        keys=("precision.fp8", "parallel.use_torch_fsdp2", "parallel.use_megatron_fsdp"),
        applies=lambda config: _fp8(config) and (config.parallel.use_torch_fsdp2 or config.parallel.use_megatron_fsdp),
        summary="torch's FSDP2 and Megatron-FSDP with products in fp8.",
        message="fp8 with fully sharded parameters, whose gathered weights are quantised anew, is not there",
        remedy="set use_distributed_optimizer in place of use_torch_fsdp2 or use_megatron_fsdp",
        source="Transformer Engine pytorch/module/linear.py (is_fsdp2)",
    ),
    Rule(
        id="N-fp8-param",
        severity="not_modelled",
        keys=(
            "precision.fp8_param",
            "precision.fp8_recipe",
            "optimizer.use_precision_aware_optimizer",
            "optimizer.optimizer",
        ),
        applies=lambda config: (
            config.precision.fp8_param
            and (
                config.precision.fp8_recipe not in ("delayed", "tensorwise")
                or config.optimizer.use_precision_aware_optimizer
                or config.optimizer.optimizer_cpu_offload
                or config.optimizer.optimizer == "muon"
            )
        ),
        summary="Parameters in fp8 with scales of blocks, or with another optimizer than that in fp32 on the device.",
        message=(
            "parameters in fp8 are there with one scale a tensor (delayed, tensorwise) and Adam or SGD in fp32 on the "
            "device"
        ),
        remedy="set fp8_param to false, or fp8_recipe to tensorwise and train with adam in fp32 on the device",
        source="Megatron-Core distributed/param_and_grad_buffer.py; optimizer/distrib_optimizer.py",
    ),
)
