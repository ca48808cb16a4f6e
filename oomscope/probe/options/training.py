"""Options of optimizer, precision, data and allocator."""

from __future__ import annotations

from oomscope.probe.options.option import (
    AWARE,
    DENSE_OPTIMIZER,
    LLAMA,
    MFSDP3,
    PIPELINE,
    SHORT,
    TENSORWISE,
    TINY,
    UNFUSED,
    Option,
    keys,
)

OPTIMIZER = (
    Option(
        keys("optimizer", "use_distributed_optimizer"),
        "Masters and moments are sharded: 6 + 12/d bytes a parameter in place of 18 (bf16, fp32 gradients). "
        "Parameters start at multiples of 64 elements, buckets end at multiples of lcm(d, 128).",
        "A reduce-scatter and an all-gather in place of an all-reduce.",
        LLAMA,
        ("optimizer.use_distributed_optimizer=true",),
        given=(DENSE_OPTIMIZER,),
    ),
    Option(
        keys("optimizer", "num_distributed_optimizer_instances"),
        "Each instance shards masters and moments over its part of the ranks: 6 + 12·n/d bytes a parameter.",
        "Gathers among fewer ranks, and an all-reduce of the shards over the instances.",
        LLAMA,
        ("optimizer.num_distributed_optimizer_instances=2",),
    ),
    Option(
        keys("optimizer", "overlap_grad_reduce"),
        "Buckets are views of one buffer: no bytes, but for the padding at the end of each bucket.",
        "Hides the reduction behind backward.",
        LLAMA,
        ("optimizer.overlap_grad_reduce=true",),
    ),
    Option(
        keys("optimizer", "overlap_param_gather"),
        "The gather is in place: no bytes.",
        "Hides the gather behind the next forward.",
        LLAMA,
        ("optimizer.overlap_param_gather=true",),
        given=("optimizer.overlap_grad_reduce=true",),
    ),
    Option(
        keys("optimizer", "overlap_param_gather_with_optimizer_step"),
        "As overlap_param_gather, in place; on the first stage a chunk's gradients are one bucket, without the padding "
        "between buckets.",
        "Hides the gather of the first chunk behind the update of the others.",
        LLAMA,
        ("optimizer.overlap_param_gather_with_optimizer_step=true",),
        given=(
            "parallel.pipeline_model_parallel_size=2",
            "parallel.virtual_pipeline_model_parallel_size=2",
            "data.num_microbatches=4",
            "optimizer.overlap_grad_reduce=true",
            "optimizer.overlap_param_gather=true",
        ),
    ),
    Option(
        keys("optimizer", "log_params_norm"),
        "With Megatron-FSDP, lets go from one step to the next of the units that were gathered ahead: no byte of the "
        "peak.",
        "They are gathered again.",
        LLAMA,
        ("optimizer.log_params_norm=true",),
        given=MFSDP3,
    ),
    Option(
        keys("optimizer", "optimizer sgd_momentum"),
        "Adam keeps 8 bytes a parameter of moments, SGD 4 with momentum and none without.",
        "None.",
        LLAMA,
        ("optimizer.optimizer=sgd",),
    ),
    Option(
        keys(
            "optimizer",
            "muon_momentum muon_nesterov muon_split_qkv muon_fp32_matmul_prec muon_num_ns_steps muon_tp_mode "
            "muon_extra_scale_factor",
        ),
        "Muon keeps 4 bytes an element of matrices, Adam 8 of the rest. While a matrix is stepped there are up to 16 "
        "bytes an element of it, of the whole one under TP.",
        "15 products of each matrix a step, which no estimate has; under TP each rank makes them all.",
        LLAMA,
        ("optimizer.optimizer=muon",),
        given=(DENSE_OPTIMIZER,),
    ),
    Option(
        keys("optimizer", "use_precision_aware_optimizer store_param_remainders"),
        "Masters are kept as the 16 bits that bf16 parameters lack: 6 + 10/d bytes a parameter.",
        "None.",
        LLAMA,
        (AWARE,),
    ),
    Option(
        keys("optimizer", "exp_avg_dtype exp_avg_sq_dtype main_params_dtype main_grads_dtype"),
        "With the precision-aware optimizer, moments, masters and gradients in 16 bits: 2 bytes a parameter less each.",
        "Rounding.",
        LLAMA,
        ("optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"),
        given=(AWARE,),
    ),
    Option(
        keys("optimizer", "clip_grad"),
        "The norm needs scratch for a moment; 0 does without it.",
        "A pass over the gradients.",
        LLAMA,
        ("optimizer.clip_grad=0.0",),
    ),
)


PRECISION = (
    Option(
        keys("precision", "bf16"),
        "Activations of 2 bytes in place of 4; parameters 2 + 4 of gradients + 12 of masters and moments (fp32: 16).",
        "Matrix products are many times faster.",
        LLAMA,
        ("precision.bf16=true",),
        given=("precision.bf16=false", SHORT, UNFUSED),
    ),
    Option(
        keys("precision", "fp16"),
        "As bf16, with gradients of 2 bytes in the buffer and their fp32 copies at the step: 20 bytes a parameter.",
        "Loss scaling; steps that overflow are left out.",
        LLAMA,
        ("precision.bf16=false", "precision.fp16=true"),
    ),
    Option(
        keys("precision", "grad_reduce_in_fp32"),
        "false keeps gradients in 16 bits: 2 bytes a parameter less, and 4/d for a moment at the step.",
        "Half the traffic of the reduction; rounding.",
        LLAMA,
        ("precision.grad_reduce_in_fp32=false",),
    ),
    Option(
        keys("precision", "gradient_accumulation_fusion"),
        "Weight gradients go into the main gradients at once: no 16-bit gradient of each matrix, but a placeholder "
        "of each shape that stays.",
        "Fewer passes over gradients.",
        LLAMA,
        ("precision.gradient_accumulation_fusion=true",),
    ),
    Option(
        keys("precision", "fp8 fp8_recipe"),
        "Linear layers keep their inputs in 1 byte an element; each weight of the layers has copies of 1 byte an "
        "element, 2 before Blackwell and where blocks have scales.",
        "Products are up to twice as fast; casts; rounding.",
        LLAMA,
        ("precision.fp8=hybrid", "precision.fp8_recipe=tensorwise"),
    ),
    Option(
        keys("precision", "fp8_param"),
        "The layers' weights in fp8 alone: 1 byte an element, and 1 of its transpose before Blackwell, in place of 2 "
        "and the copies.",
        "Half the traffic of the gather.",
        LLAMA,
        ("precision.fp8_param=true",),
        given=TENSORWISE,
    ),
    Option(
        keys("precision", "fp8_amax_history_len"),
        "Delayed scaling remembers 20 bytes a step and weight.",
        "None.",
        LLAMA,
        ("precision.fp8_amax_history_len=1024",),
        given=("precision.fp8=hybrid",),
    ),
    Option(
        keys("precision", "first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16"),
        "Layers at both ends keep 16-bit inputs and have no copies of their weights.",
        "Slower products in those layers.",
        LLAMA,
        ("precision.first_last_layers_bf16=true",),
        given=TENSORWISE,
    ),
    Option(
        keys("precision", "disable_parameter_transpose_cache"),
        "Copies of weights live from a microbatch's forward to its backward, and no longer.",
        "Weights are cast in every microbatch.",
        LLAMA,
        ("precision.disable_parameter_transpose_cache=true",),
        given=TENSORWISE,
    ),
)


DATA = (
    Option(
        keys("data", "seq_length"),
        "n = s·b/c: activations and logits grow with it; unfused scores with s².",
        "Attention grows with s².",
        LLAMA,
        ("data.seq_length=16384",),
    ),
    Option(
        keys("data", "micro_batch_size"),
        "n = s·b/c: activations and logits grow with it.",
        "Larger products are more efficient.",
        TINY,
        ("data.micro_batch_size=8",),
    ),
    Option(
        keys("data", "num_microbatches global_batch_size"),
        "Nothing without a pipeline; with one up to p - r microbatches are in flight.",
        "A smaller bubble.",
        LLAMA,
        ("data.num_microbatches=1",),
        given=PIPELINE,
    ),
    Option(
        keys("data", "create_attention_mask_in_dataloader"),
        "A boolean mask of b·s²/c bytes for each microbatch at both ends of the pipeline.",
        "Its making.",
        LLAMA,
        ("data.create_attention_mask_in_dataloader=false",),
    ),
)


ALLOCATOR = (
    Option(
        keys("allocator", "conf"),
        "Requested bytes stay, what is reserved beyond them changes: expandable_segments ends most fragmentation, "
        "max_split_size_mb and roundup_power2_divisions move it.",
        "Mapping of pages while the first steps run.",
        LLAMA,
        ("allocator.conf=expandable_segments:True",),
    ),
    Option(
        keys("device", "cublas_workspace_config"),
        "The workspace that cuBLAS takes for each handle and stream; null means the card's default.",
        "A small workspace leaves out algorithms.",
        LLAMA,
        ("device.cublas_workspace_config=:4096:2",),
    ),
)
