"""What every option does to memory and what it costs, each with an example that a probe can measure.

The rows are what ``docs/options.md`` shows (``option_page.py`` measures them). Each key of the configuration stands in
exactly one row, or among the keys that move no memory, that only this tool has, or that no version here can measure.
"""

from __future__ import annotations

from dataclasses import dataclass

SMALL: dict[str, tuple[str, ...]] = {
    "llama3-8b": ("model.num_layers=4", "data.num_microbatches=2"),
    "qwen3-30b-a3b-shaped": ("model.num_layers=2", "data.num_microbatches=2"),
    "gpt-tiny": (),
}
"""Presets that examples build on, and what makes them quick to probe."""

_LLAMA, _EXPERTS, _TINY = SMALL


@dataclass(frozen=True)
class Option:
    """One option, or several keys that act together."""

    keys: tuple[str, ...]
    memory: str
    """Its effect on the memory of a rank; symbols as in docs/options.md."""
    cost: str
    """What is paid for it in time, traffic or host memory."""
    preset: str
    """One of ``SMALL``."""
    example: tuple[str, ...]
    """Overrides that show the effect."""
    given: tuple[str, ...] = ()
    """Overrides that hold before and after."""


def _keys(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


_SELECTIVE = "recompute.recompute_granularity=selective"
_FULL = ("recompute.recompute_granularity=full", "recompute.recompute_method=uniform")
_UNFUSED = "model.attention_backend=unfused"
_SHORT = "data.seq_length=2048"
_NO_SP = "parallel.sequence_parallel=false"
_ONE = ("parallel.tensor_model_parallel_size=1", _NO_SP)
_PIPELINE = ("parallel.pipeline_model_parallel_size=2", "data.num_microbatches=4")
_DENSE_OPTIMIZER = "optimizer.use_distributed_optimizer=false"
_HOST = ("optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0")
_FINE = "offload.fine_grained_activation_offloading=true"
_AWARE = "optimizer.use_precision_aware_optimizer=true"
_FSDP2 = (*_ONE, _DENSE_OPTIMIZER, "parallel.data_parallel_size=8", "precision.grad_reduce_in_fp32=false")
_LATENT = (
    "model.multi_latent_attention=true",
    "model.num_query_groups=",
    "model.qk_layernorm=false",
    "model.kv_channels=",
)

RECOMPUTE = (
    Option(
        _keys("recompute", "recompute_granularity recompute_method recompute_num_layers"),
        "full keeps 2nh/S of each group of layers and one group's activations during backward: uniform cuts all layers "
        "into groups of N, block recomputes the first N layers one by one. Counted in each model chunk.",
        "The forward of what is recomputed once more: up to a third of the step.",
        _LLAMA,
        (*_FULL, "recompute.recompute_num_layers=1"),
    ),
    Option(
        _keys("recompute", "recompute_modules"),
        "selective drops what the named modules save inside: core_attn 5as²b/t unfused and almost nothing with flash, "
        "mlp the outputs of fc1 and of the activation; layernorm, moe_act and mla_up_proj drop their outputs too.",
        "The forward of the modules once more; moe repeats its all-to-all.",
        _LLAMA,
        (_SELECTIVE, "recompute.recompute_modules=[mlp]"),
    ),
    Option(
        _keys("recompute", "distribute_saved_activations"),
        "With full recomputation and without sequence parallelism, each TP rank keeps 1/t of a group's input.",
        "An all-gather of each group's input in backward.",
        _LLAMA,
        ("recompute.distribute_saved_activations=true",),
        given=(*_FULL, "recompute.recompute_num_layers=1", _NO_SP, "data.num_microbatches=1"),
    ),
    Option(
        _keys("recompute", "moe_layer_recompute"),
        "An old name: selective recomputation of moe, which keeps the input of the MoE layer alone.",
        "Router, dispatch and experts once more, with their communication.",
        _EXPERTS,
        (_SELECTIVE, "recompute.recompute_modules=[moe]"),
    ),
)

OFFLOAD = (
    Option(
        _keys("offload", "cpu_offloading cpu_offloading_num_layers cpu_offloading_activations"),
        "Saved tensors of 256Ki elements or more of the first N layers go to pinned memory: L - N layers' activations "
        "stay. Not with pipelines or recomputation.",
        "Each byte crosses PCIe twice, beside computation; as many pinned bytes on the host.",
        _LLAMA,
        ("offload.cpu_offloading=true", "offload.cpu_offloading_num_layers=2"),
    ),
    Option(
        _keys("offload", "fine_grained_activation_offloading offload_modules"),
        "What the named modules save goes to the host, but for the last group of each name.",
        "Each byte crosses PCIe twice; pinned host memory.",
        _LLAMA,
        (_FINE, "offload.offload_modules=[qkv_linear,core_attn,attn_proj]"),
    ),
    Option(
        _keys("offload", "min_offloaded_tensor_size"),
        "Tensors of fewer elements (not bytes) stay on the device.",
        "Fewer and larger copies.",
        _LLAMA,
        ("offload.min_offloaded_tensor_size=16777216",),
        given=(_FINE, "offload.offload_modules=[qkv_linear,core_attn,attn_proj]"),
    ),
    Option(
        _keys("offload", "activation_offload_fraction"),
        "After the first iteration only the first such share of the groups leaves the device.",
        "That share of the traffic.",
        _LLAMA,
        ("offload.activation_offload_fraction=0.5",),
        given=(_FINE, "offload.offload_modules=[qkv_linear,core_attn,attn_proj]"),
    ),
    Option(
        _keys("optimizer", "optimizer_cpu_offload optimizer_offload_fraction"),
        "Moments of that share of the parameters live on the host: 8/d bytes a parameter less, 12/d with the "
        "precision-aware optimizer. The fraction is 0 unless given (Megatron-LM's launcher: 1).",
        "The step runs on the CPU; 16/d bytes a parameter of host memory; gradients and parameters cross PCIe.",
        _LLAMA,
        _HOST,
    ),
    Option(
        _keys("optimizer", "overlap_cpu_optimizer_d2h_h2d"),
        "The same bytes; copies of single parameters overlap with the step.",
        "One CPU optimizer a parameter.",
        _LLAMA,
        ("optimizer.overlap_cpu_optimizer_d2h_h2d=true",),
        given=_HOST,
    ),
)

PARALLEL = (
    Option(
        _keys("parallel", "tensor_model_parallel_size"),
        "Matrices, their gradients and states, heads and MLP widths are divided by t; what lies between them is not.",
        "An all-reduce (with SP an all-gather and a reduce-scatter) twice a layer each way.",
        _LLAMA,
        ("parallel.tensor_model_parallel_size=4",),
        given=(*_ONE, _SHORT),
    ),
    Option(
        _keys("parallel", "sequence_parallel"),
        "Norms, dropouts and the residual stream are divided by t as well.",
        "None: the all-reduce is cut in two. Gathers are repeated in backward.",
        _LLAMA,
        ("parallel.sequence_parallel=true",),
        given=(_NO_SP,),
    ),
    Option(
        _keys("parallel", "pipeline_model_parallel_size"),
        "Layers, with their parameters and states, are divided by p; rank r holds up to p - r microbatches in flight.",
        "A bubble of (p - 1)/m of the step; activations are sent between stages.",
        _LLAMA,
        ("parallel.pipeline_model_parallel_size=2",),
        given=("data.num_microbatches=4",),
    ),
    Option(
        _keys("parallel", "virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage"),
        "v chunks a rank, interleaved: the first rank holds (p - 1)·2 + (v - 1)·p + 1 chunks of 1/v of its layers in "
        "flight, about p·(1 + (p - 1)/(p·v)) microbatches' worth.",
        "The bubble shrinks to 1/v; v times as many messages.",
        _LLAMA,
        ("parallel.virtual_pipeline_model_parallel_size=2",),
        given=_PIPELINE,
    ),
    Option(
        _keys("parallel", "microbatch_group_size_per_vp_stage"),
        "Each microbatch more in a group keeps v - 1 more chunks in flight.",
        "Fewer switches between chunks.",
        _LLAMA,
        ("parallel.microbatch_group_size_per_vp_stage=4",),
        given=(*_PIPELINE, "parallel.virtual_pipeline_model_parallel_size=2"),
    ),
    Option(
        _keys("parallel", "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage"),
        "Moves layers from the first stage, which holds most microbatches, or from the last, which holds the logits.",
        "Stages that take longer than others are waited for.",
        _LLAMA,
        ("parallel.num_layers_in_first_pipeline_stage=1",),
        given=_PIPELINE,
    ),
    Option(
        _keys("parallel", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split"),
        "Count embedding or loss as a layer: the first or last stage has one transformer layer less. In two stages "
        "both together change nothing.",
        "Evens out the time of the stages.",
        _LLAMA,
        (
            "parallel.account_for_embedding_in_pipeline_split=true",
            "parallel.account_for_loss_in_pipeline_split=true",
        ),
        given=_PIPELINE,
    ),
    Option(
        _keys("parallel", "deallocate_pipeline_outputs"),
        "A stage's output is freed once it is sent: 2nh/S less for each microbatch in flight.",
        "None.",
        _LLAMA,
        ("parallel.deallocate_pipeline_outputs=false",),
        given=_PIPELINE,
    ),
    Option(
        _keys("parallel", "overlap_p2p_comm batch_p2p_comm"),
        "How neighbours exchange tensors: with overlap buffers of the next exchange exist while one is computed on.",
        "Overlap hides the exchange.",
        _LLAMA,
        ("parallel.overlap_p2p_comm=false", "parallel.batch_p2p_comm=true"),
        given=(
            "parallel.pipeline_model_parallel_size=4",
            "parallel.virtual_pipeline_model_parallel_size=2",
            "model.num_layers=8",
            "data.num_microbatches=8",
        ),
    ),
    Option(
        _keys("parallel", "context_parallel_size"),
        "All tensors of tokens are divided by c; parameters are not, and states are sharded over d·c.",
        "Keys and values go round in every layer, each way.",
        _LLAMA,
        ("parallel.context_parallel_size=2",),
    ),
    Option(
        _keys("parallel", "cp_comm_type"),
        "p2p passes keys and values round a ring, block by block; a2a exchanges heads for tokens; all_gather holds "
        "the keys and values of the whole sequence for a while.",
        "Traffic of (c - 1)/c of keys and values, or of queries and outputs too (a2a).",
        _LLAMA,
        ("parallel.cp_comm_type=all_gather",),
        given=("parallel.context_parallel_size=2",),
    ),
    Option(
        _keys("parallel", "expert_model_parallel_size"),
        "Routed experts, with gradients and states, are divided by e.",
        "Two all-to-alls a layer each way.",
        _EXPERTS,
        ("parallel.expert_model_parallel_size=16",),
    ),
    Option(
        _keys("parallel", "expert_tensor_parallel_size"),
        "Cuts the width of each expert; null means t. 1 keeps experts whole, so that each has more rows at once.",
        "An all-gather and a reduce-scatter of the experts' rows.",
        _EXPERTS,
        ("parallel.expert_tensor_parallel_size=1",),
        given=("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true"),
    ),
    Option(
        _keys("parallel", "data_parallel_size"),
        "With the distributed optimizer masters and moments are divided by d, else nothing is.",
        "Gradients are reduced once a step.",
        _LLAMA,
        ("parallel.data_parallel_size=8",),
    ),
    Option(
        _keys("parallel", "use_torch_fsdp2"),
        "Parameters, gradients and states are divided by d; one layer's parameters and gradients are whole at a time.",
        "Parameters are gathered in forward and backward, gradients scattered, in every microbatch.",
        _LLAMA,
        ("parallel.use_torch_fsdp2=true",),
        given=_FSDP2,
    ),
    Option(
        _keys("parallel", "torch_fsdp2_reshard_after_forward"),
        "false keeps the gathered parameters of all layers from forward to backward.",
        "One gather of the parameters less.",
        _LLAMA,
        ("parallel.torch_fsdp2_reshard_after_forward=false",),
        given=(*_FSDP2, "parallel.use_torch_fsdp2=true"),
    ),
)

OPTIMIZER = (
    Option(
        _keys("optimizer", "use_distributed_optimizer"),
        "Masters and moments are sharded: 6 + 12/d bytes a parameter in place of 18 (bf16, fp32 gradients). "
        "Parameters start at multiples of 64 elements, buckets end at multiples of lcm(d, 128).",
        "A reduce-scatter and an all-gather in place of an all-reduce.",
        _LLAMA,
        ("optimizer.use_distributed_optimizer=true",),
        given=(_DENSE_OPTIMIZER,),
    ),
    Option(
        _keys("optimizer", "overlap_grad_reduce"),
        "Buckets are views of one buffer: no bytes, but for the padding at the end of each bucket.",
        "Hides the reduction behind backward.",
        _LLAMA,
        ("optimizer.overlap_grad_reduce=true",),
    ),
    Option(
        _keys("optimizer", "overlap_param_gather"),
        "The gather is in place: no bytes.",
        "Hides the gather behind the next forward.",
        _LLAMA,
        ("optimizer.overlap_param_gather=true",),
        given=("optimizer.overlap_grad_reduce=true",),
    ),
    Option(
        _keys("optimizer", "optimizer sgd_momentum"),
        "Adam keeps 8 bytes a parameter of moments, SGD 4 with momentum and none without.",
        "None.",
        _LLAMA,
        ("optimizer.optimizer=sgd",),
    ),
    Option(
        _keys("optimizer", "use_precision_aware_optimizer store_param_remainders"),
        "Masters are kept as the 16 bits that bf16 parameters lack: 6 + 10/d bytes a parameter.",
        "None.",
        _LLAMA,
        (_AWARE,),
    ),
    Option(
        _keys("optimizer", "exp_avg_dtype exp_avg_sq_dtype main_params_dtype main_grads_dtype"),
        "With the precision-aware optimizer, moments, masters and gradients in 16 bits: 2 bytes a parameter less each.",
        "Rounding.",
        _LLAMA,
        ("optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"),
        given=(_AWARE,),
    ),
    Option(
        _keys("optimizer", "clip_grad"),
        "The norm needs scratch for a moment; 0 does without it.",
        "A pass over the gradients.",
        _LLAMA,
        ("optimizer.clip_grad=0.0",),
    ),
)

PRECISION = (
    Option(
        _keys("precision", "bf16"),
        "Activations of 2 bytes in place of 4; parameters 2 + 4 of gradients + 12 of masters and moments (fp32: 16).",
        "Matrix products are many times faster.",
        _LLAMA,
        ("precision.bf16=true",),
        given=("precision.bf16=false", _SHORT, _UNFUSED),
    ),
    Option(
        _keys("precision", "fp16"),
        "As bf16, with gradients of 2 bytes in the buffer and their fp32 copies at the step: 20 bytes a parameter.",
        "Loss scaling; steps that overflow are left out.",
        _LLAMA,
        ("precision.bf16=false", "precision.fp16=true"),
    ),
    Option(
        _keys("precision", "grad_reduce_in_fp32"),
        "false keeps gradients in 16 bits: 2 bytes a parameter less, and 4/d for a moment at the step.",
        "Half the traffic of the reduction; rounding.",
        _LLAMA,
        ("precision.grad_reduce_in_fp32=false",),
    ),
    Option(
        _keys("precision", "gradient_accumulation_fusion"),
        "Weight gradients go into the main gradients at once: the 16-bit gradient of a matrix never exists.",
        "Fewer passes over gradients.",
        _LLAMA,
        ("precision.gradient_accumulation_fusion=true",),
    ),
)

MODEL = (
    Option(
        _keys("model", "num_layers"),
        "Parameters, states and activations of each layer.",
        "Time grows alike.",
        _LLAMA,
        ("model.num_layers=8",),
    ),
    Option(
        _keys("model", "hidden_size"),
        "Activations grow with h, parameters with h².",
        "Time grows with h².",
        _LLAMA,
        ("model.hidden_size=5120",),
        given=("model.kv_channels=128",),
    ),
    Option(
        _keys("model", "num_attention_heads num_query_groups kv_channels"),
        "Queries of a·d and keys and values of g·d a token; fewer groups save parameters and activations.",
        "Less traffic of keys and values.",
        _LLAMA,
        ("model.num_query_groups=32",),
    ),
    Option(
        _keys("model", "ffn_hidden_size"),
        "Activations of the MLP grow with f.",
        "Time grows alike.",
        _LLAMA,
        ("model.ffn_hidden_size=28672",),
    ),
    Option(
        _keys("model", "vocab_size make_vocab_size_divisible_by"),
        "Rows of embedding and head, padded to a multiple of 128·t, and 6 bytes a logit at the loss (bf16 and fp32).",
        "The product with the head.",
        _LLAMA,
        ("model.vocab_size=32000",),
    ),
    Option(
        _keys("model", "position_embedding_type max_position_embeddings"),
        "Learned positions are parameters of max_position_embeddings rows; rotary ones a table, and rotated copies of "
        "queries and keys.",
        "Little.",
        _LLAMA,
        ("model.position_embedding_type=learned_absolute",),
    ),
    Option(
        _keys("model", "normalization"),
        "RMSNorm keeps one statistic a token and one vector of parameters, LayerNorm two of each.",
        "Little.",
        _LLAMA,
        ("model.normalization=LayerNorm",),
    ),
    Option(
        _keys("model", "qk_layernorm"),
        "Keeps the projection that the norms of queries and keys read.",
        "Little.",
        _LLAMA,
        ("model.qk_layernorm=true",),
    ),
    Option(
        _keys("model", "activation_func gated_linear_unit"),
        "A gated MLP keeps an fc1 output of twice the width, and has half as many parameters again.",
        "Half as many operations of the MLP again.",
        _LLAMA,
        ("model.gated_linear_unit=false", "model.activation_func=gelu"),
    ),
    Option(
        _keys("model", "add_bias_linear add_qkv_bias"),
        "Vectors of parameters; outputs that a bias is added to are copied in backward.",
        "Little.",
        _LLAMA,
        ("model.add_bias_linear=true",),
    ),
    Option(
        _keys("model", "share_embeddings_and_output_weights"),
        "One table in place of two; with a pipeline both ends hold it.",
        "With a pipeline an all-reduce of its gradient.",
        _LLAMA,
        ("model.share_embeddings_and_output_weights=true",),
    ),
    Option(
        _keys("model", "hidden_dropout"),
        "A mask of 1 byte an element: nh/S twice a layer, and on the embedding.",
        "Little.",
        _TINY,
        ("model.hidden_dropout=0.0",),
    ),
    Option(
        _keys("model", "attention_dropout"),
        "Unfused, a mask and the dropped probabilities: 3as²b/t bytes; flash keeps a random state.",
        "Little.",
        _LLAMA,
        ("model.attention_dropout=0.1",),
        given=(_UNFUSED, _SHORT),
    ),
    Option(
        _keys("model", "attention_backend"),
        "Unfused attention keeps scores of 2as²b/t bytes and more; flash the output and 4an/t of log-sum-exp.",
        "Unfused attention is slower.",
        _LLAMA,
        (_UNFUSED,),
        given=(_SHORT,),
    ),
    Option(
        _keys("model", "cross_entropy_loss_fusion cross_entropy_fusion_impl"),
        "native holds 4nV/t bytes more in backward, a copy of the softmax; te writes the gradient in forward, in 4nV/t "
        "bytes of fp32 or, before version 2.18, over the logits.",
        "Fused kernels are faster.",
        _LLAMA,
        ("model.cross_entropy_loss_fusion=true",),
    ),
    Option(
        _keys("model", "transformer_impl transformer_engine_version"),
        "local has norms of their own (which layernorm recomputation can drop), a scratch buffer for gathers and "
        "scores over the whole run, and the mask it multiplies by.",
        "Fused kernels are faster.",
        _LLAMA,
        ("model.transformer_impl=local",),
        given=(_UNFUSED, _SHORT),
    ),
    Option(
        _keys("model", "multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim"),
        "Keeps the latents and, unless mla_up_proj is recomputed, the queries, keys and values that they expand to.",
        "The products that lead up from the latents.",
        _EXPERTS,
        (_SELECTIVE, "recompute.recompute_modules=[mla_up_proj]"),
        given=_LATENT,
    ),
)

EXPERTS = (
    Option(
        _keys("model", "num_moe_experts moe_layer_freq"),
        "E experts hold E times the parameters of one MLP, over e ranks; a token visits k of them.",
        "The work of k experts.",
        _EXPERTS,
        ("model.num_moe_experts=64",),
    ),
    Option(
        _keys("model", "moe_router_topk"),
        "k rows a token: the experts' activations and the permuted copies grow with k.",
        "The experts' work and traffic grow with k.",
        _EXPERTS,
        ("model.moe_router_topk=2",),
    ),
    Option(
        _keys("model", "moe_ffn_hidden_size"),
        "The width of an expert: parameters and activations grow with it.",
        "So does the work.",
        _EXPERTS,
        ("model.moe_ffn_hidden_size=1536",),
    ),
    Option(
        _keys("model", "moe_shared_expert_intermediate_size"),
        "An MLP that every token visits: its parameters, and activations of all n tokens.",
        "Its work.",
        _EXPERTS,
        ("model.moe_shared_expert_intermediate_size=768",),
    ),
    Option(
        _keys("model", "moe_grouped_gemm"),
        "One product over all experts; false joins the experts' outputs by a copy.",
        "Many small products are slow.",
        _EXPERTS,
        ("model.moe_grouped_gemm=false",),
    ),
    Option(
        _keys("model", "moe_token_dispatcher_type"),
        "allgather holds the tokens of all ranks of the expert group at once, alltoall those that visit.",
        "allgather moves all tokens to every rank.",
        _EXPERTS,
        ("model.moe_token_dispatcher_type=allgather",),
    ),
    Option(
        _keys("model", "moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_token_drop_policy"),
        "Bounds an expert's rows of a rank's tokens by ceil(n·k/E · factor), or pads to it; a mask of nE bytes.",
        "Dropped tokens learn nothing; padding is work for nothing.",
        _EXPERTS,
        ("model.moe_expert_capacity_factor=1.0",),
        given=("model.moe_imbalance_factor=2.0",),
    ),
    Option(
        _keys("model", "moe_imbalance_factor"),
        "Rows that reach this rank's experts over an even share: dropless routing has no bound below e.",
        "The slowest rank decides.",
        _EXPERTS,
        ("model.moe_imbalance_factor=2.0",),
    ),
    Option(
        _keys("model", "moe_router_load_balancing_type moe_aux_loss_coeff"),
        "A balancing loss keeps the fp32 scores of all experts, 4nE, and counts; sinkhorn the softmax and a mask.",
        "An all-reduce of the counts.",
        _EXPERTS,
        ("model.moe_aux_loss_coeff=0.0",),
    ),
    Option(
        _keys("model", "moe_z_loss_coeff"),
        "Keeps the logits, in the router's format, and their log-sum-exp.",
        "Little.",
        _EXPERTS,
        ("model.moe_z_loss_coeff=0.001",),
    ),
    Option(
        _keys("model", "moe_router_dtype"),
        "Logits, probabilities and the weights of rows in 4 or 8 bytes.",
        "Little.",
        _EXPERTS,
        ("model.moe_router_dtype=fp64",),
    ),
    Option(
        _keys("model", "moe_router_pre_softmax"),
        "Keeps the softmax of all experts, 4nE, in place of 4nk.",
        "Little.",
        _EXPERTS,
        ("model.moe_router_pre_softmax=true",),
    ),
    Option(
        _keys("model", "moe_router_score_function moe_router_topk_scaling_factor"),
        "sigmoid keeps the scores of all experts, 4nE, and 4n(k + 1) of the quotient by their sum.",
        "Little.",
        _EXPERTS,
        ("model.moe_router_score_function=sigmoid",),
    ),
    Option(
        _keys("model", "moe_router_num_groups moe_router_group_topk"),
        "Keeps a mask of nE bytes, unless the expert bias makes the choice.",
        "Little; fewer ranks to send to.",
        _EXPERTS,
        ("model.moe_router_num_groups=8", "model.moe_router_group_topk=4"),
    ),
    Option(
        _keys("model", "moe_router_enable_expert_bias moe_router_bias_update_rate"),
        "8E bytes a layer for the whole run.",
        "An all-reduce of the counts of all layers once a step.",
        _EXPERTS,
        ("model.moe_router_enable_expert_bias=true",),
        given=("model.moe_router_score_function=sigmoid",),
    ),
    Option(
        _keys("model", "moe_permute_fusion"),
        "Keeps one map of 4n(2E + 1) bytes in place of the sort's indices, 8nE and 8 a row.",
        "One kernel in place of several.",
        _EXPERTS,
        ("model.moe_permute_fusion=false",),
    ),
)

DATA = (
    Option(
        _keys("data", "seq_length"),
        "n = s·b/c: activations and logits grow with it; unfused scores with s².",
        "Attention grows with s².",
        _LLAMA,
        ("data.seq_length=16384",),
    ),
    Option(
        _keys("data", "micro_batch_size"),
        "n = s·b/c: activations and logits grow with it.",
        "Larger products are more efficient.",
        _TINY,
        ("data.micro_batch_size=8",),
    ),
    Option(
        _keys("data", "num_microbatches global_batch_size"),
        "Nothing without a pipeline; with one up to p - r microbatches are in flight.",
        "A smaller bubble.",
        _LLAMA,
        ("data.num_microbatches=1",),
        given=_PIPELINE,
    ),
    Option(
        _keys("data", "create_attention_mask_in_dataloader"),
        "A boolean mask of b·s²/c bytes for each microbatch at both ends of the pipeline.",
        "Its making.",
        _LLAMA,
        ("data.create_attention_mask_in_dataloader=false",),
    ),
)

ALLOCATOR = (
    Option(
        _keys("allocator", "conf"),
        "Live bytes stay, what is reserved beyond them changes: expandable_segments ends most fragmentation, "
        "max_split_size_mb and roundup_power2_divisions move it.",
        "Mapping of pages while the first steps run.",
        _LLAMA,
        ("allocator.conf=expandable_segments:True",),
    ),
    Option(
        _keys("device", "cublas_workspace_config"),
        "The workspace that cuBLAS takes for each handle and stream; null means the card's default.",
        "A small workspace leaves out algorithms.",
        _LLAMA,
        ("device.cublas_workspace_config=:4096:2",),
    ),
)

TOPICS: dict[str, tuple[Option, ...]] = {
    "Recomputation": RECOMPUTE,
    "Offloading": OFFLOAD,
    "Parallelism": PARALLEL,
    "Optimizer": OPTIMIZER,
    "Precision": PRECISION,
    "Model": MODEL,
    "Experts": EXPERTS,
    "Data": DATA,
    "Allocator": ALLOCATOR,
}
"""Heading to its options, in the order of the page."""

NO_EFFECT: tuple[str, ...] = (
    *_keys("model", "rotary_base layernorm_epsilon"),
    *_keys(
        "optimizer",
        "lr weight_decay adam_beta1 adam_beta2 adam_eps loss_scale initial_loss_scale min_loss_scale loss_scale_window "
        "hysteresis use_torch_optimizer_for_cpu_offload",
    ),
    *_keys(
        "offload", "cpu_offloading_weights cpu_offloading_double_buffering cpu_offloading_retain_pinned_cpu_buffers"
    ),
)
"""Keys that move no byte on the device: numbers alone, and what upstream accepts and never reads (rules.md warns)."""

NOT_MODELLED: tuple[str, ...] = (
    *_keys(
        "model",
        "use_transformer_engine_op_fuser experimental_attention_variant enable_mhc_connections mtp_num_layers "
        "moe_shared_expert_overlap moe_input_jitter_eps moe_paged_stash",
    ),
    *_keys("parallel", "overlap_moe_expert_parallel_comm use_megatron_fsdp data_parallel_sharding_strategy"),
    *_keys("recompute", "mhc_recompute_layer_num num_microbatches_with_partial_activation_checkpoints"),
    *_keys(
        "offload",
        "nvte_cpu_offload_v1 delta_offload_bytes_across_pp_ranks delay_offload_until_cuda_graph "
        "fine_grained_offloading_max_inflight_offloads",
    ),
    *_keys(
        "cuda_graph",
        "cuda_graph_impl cuda_graph_modules cuda_graph_scope cuda_graph_warmup_steps nccl_graph_register",
    ),
    *_keys("optimizer", "decoupled_weight_decay"),
    *_keys("precision", "fp8 fp8_recipe fp8_param fp4"),
)
"""Keys that the rules refuse, or that act beside a refused one alone."""

OWN_SECTIONS: tuple[str, ...] = ("device", "probe", "cost")
"""Sections that say what is measured and how, and are no options of a training run."""
OWN_KEYS: tuple[str, ...] = ("allocator.torch_version",)
"""The same, of other sections."""
