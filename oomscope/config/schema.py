"""The configuration: one model a section, keys named as Megatron-Core names them.

Every field states its meaning, unit and source under its declaration; ``oomscope config schema`` prints them
as JSON Schema. A model here only says what a key *is*. What may be combined with what is in ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from oomscope.errors import InputError
from oomscope.units import parse_size


def _size(value: object) -> int:
    """Read a size; pydantic collects the ValueError with those of the other keys."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no size")
    try:
        return parse_size(value)
    except InputError as error:
        raise ValueError(error.message) from error


Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""A number of things; bounded so that no product of two leaves 64 bits."""

Size = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=0, le=2**63 - 1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {
                    "type": "string",
                    "pattern": r"^\s*\d+(?:[_,]\d{3})*(?:\.\d+)?\s*(?:[kKmMgGtT](?:[iI]?[bB])?|[bB])?\s*$",
                },
            ],
            "format": "size",
        }
    ),
]
"""Bytes; text such as ``80GiB`` is accepted."""

FlashKernels = Literal["auto", "flash", "fused"]
"""Whose attention: as Transformer Engine chooses by the card, flash-attn's, cuDNN's."""

RecomputeModule = Literal[
    "core_attn",
    "mlp",
    "layernorm",
    "moe",
    "moe_act",
    "shared_experts",
    "mla_up_proj",
    "gdn_norm_out",
    "gdp_in_proj",
    "gdp_qkv",
    "mhc",
]
OffloadModule = Literal[
    "core_attn",
    "attn_proj",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
    "attn_norm",
    "mlp_norm",
    "qkv_linear",
    "gdp_qkv",
]
CudaGraphModule = Literal["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"]


_MLA = "Megatron-Core transformer/transformer_config.py, MLATransformerConfig"


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values keep their type (``"8"`` is no number), none changes."""

    SOURCE: ClassVar[str] = "oomscope"
    """Where the names, defaults and meanings of the section's keys come from."""
    SOURCES: ClassVar[Mapping[str, str]] = {}
    """The same for the keys that come from elsewhere."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
    )


class ModelConfig(Section):
    """The transformer (Megatron-Core ``TransformerConfig`` and ``GPTModel``)."""

    SOURCE = "Megatron-Core transformer/transformer_config.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "vocab_size": "Megatron-LM training/arguments.py",
        "make_vocab_size_divisible_by": "Megatron-LM training/arguments.py",
        "max_position_embeddings": "Megatron-Core models/gpt/gpt_model.py",
        "position_embedding_type": "Megatron-Core models/gpt/gpt_model.py",
        "rotary_base": "Megatron-Core models/gpt/gpt_model.py",
        "share_embeddings_and_output_weights": "Megatron-Core models/gpt/gpt_model.py",
        "transformer_impl": "Megatron-LM training/arguments.py",
        "kv_lora_rank": _MLA,
        "multi_latent_attention": _MLA,
        "q_lora_rank": _MLA,
        "qk_head_dim": _MLA,
        "qk_pos_emb_head_dim": _MLA,
        "v_head_dim": _MLA,
        "cross_entropy_loss_fusion": "Megatron-Core model_parallel_config.py",
        "cross_entropy_fusion_impl": "Megatron-Core model_parallel_config.py",
        "transformer_engine_version": "Transformer Engine pytorch/__init__.py",
        "moe_imbalance_factor": "oomscope",
    }

    num_layers: Count
    """Transformer layers of the whole model, over all pipeline stages."""
    hidden_size: Count
    """Width of the residual stream."""
    num_attention_heads: Count
    """Query heads."""
    num_query_groups: Count | None = None
    """Key/value heads (GQA); null means as many as query heads (MHA)."""
    kv_channels: Count | None = None
    """Width of one head; null means hidden_size / num_attention_heads."""
    ffn_hidden_size: Count | None = None
    """Width of the MLP (of each half, when gated); null means 4 * hidden_size."""
    vocab_size: Count = 50257
    """Tokens of the vocabulary, before padding."""
    make_vocab_size_divisible_by: Count = 128
    """The vocabulary is padded to a multiple of this times tensor_model_parallel_size."""
    max_position_embeddings: Count | None = None
    """Rows of the learned position table; null means data.seq_length."""
    position_embedding_type: Literal["learned_absolute", "rope", "none"] = "learned_absolute"
    """How positions enter."""
    rotary_base: Count = 10000
    """Base of the rotary frequencies."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """Norm of both sub-layers and of the final norm."""
    layernorm_epsilon: float = Field(default=1e-5, gt=0)
    """Epsilon of the norms."""
    qk_layernorm: bool = False
    """Normalise each query and key head before the rotary embedding (Qwen3)."""
    activation_func: Literal["gelu", "silu", "relu"] = "gelu"
    """Non-linearity of the MLP."""
    gated_linear_unit: bool = False
    """Gate the MLP (with silu: SwiGLU): fc1 is twice as wide."""
    add_bias_linear: bool = True
    """Biases in all linear layers."""
    add_qkv_bias: bool = False
    """Bias in the QKV projection even where add_bias_linear is false."""
    share_embeddings_and_output_weights: bool = True
    """Tie the output layer to the word embedding (Megatron-LM: unless --untie-embeddings-and-output-weights)."""
    hidden_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the residual branches and on the embedding output."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the attention probabilities."""
    attention_backend: Literal["auto", "flash", "fused", "unfused"] = "auto"
    """Core attention: flash-attn's, cuDNN's (fused) or neither. auto means unfused in fp32 and in the local layers,
    which know no other; else as Transformer Engine chooses, cuDNN's from Hopper on and flash-attn's below."""
    cross_entropy_loss_fusion: bool = False
    """Take the loss's fused kernels: cross_entropy_fusion_impl says whose."""
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    """native: compiled by torch, with one fp32 copy of the logits more in backward. te: Transformer Engine's, which
    writes the gradient in forward, in fp32 or, before version 2.18, over the logits."""
    transformer_impl: Literal["local", "transformer_engine"] = "transformer_engine"
    """Which layer specification: transformer_engine fuses the norms into the following linear layer (so that
    recompute of layernorm has nothing to act on in a dense model); local keeps a scratch buffer for the whole run, for
    unfused attention scores and sequence-parallel gathers."""
    transformer_engine_version: str | None = None
    """Version of Transformer Engine, such as ``2.10.0``; null means one that has what the configuration uses."""
    use_transformer_engine_op_fuser: bool = False
    """Build the MLP from Transformer Engine's fused operations; not modelled."""
    experimental_attention_variant: str | None = None
    """Another attention, such as gdn (gated delta net); not modelled."""
    enable_mhc_connections: bool = False
    """Hyper-connections in place of the residual stream; not modelled."""
    mtp_num_layers: Count | None = None
    """Layers of multi-token prediction; not modelled."""
    multi_latent_attention: bool = False
    """Project queries, keys and values up from low-rank latents (MLA, DeepSeek-V2)."""
    q_lora_rank: Count | None = 512
    """With MLA: width of the queries' latent; null projects them straight from the hidden state."""
    kv_lora_rank: Count = 512
    """With MLA: width of the latent of keys and values."""
    qk_head_dim: Count = 128
    """With MLA: width of a query and key head without its rotary part."""
    qk_pos_emb_head_dim: Count = 64
    """With MLA: width of the rotary part, whose key all heads share."""
    v_head_dim: Count = 128
    """With MLA: width of a value head."""
    num_moe_experts: Count | None = None
    """Routed experts of each MoE layer; null means a dense model."""
    moe_layer_freq: Count | Annotated[tuple[Literal[0, 1], ...], Field(strict=False)] = 1
    """Which layers are MoE layers: N for the first of every N, or a list with 1 (MoE) or 0 (dense) for each layer."""
    moe_router_topk: Count = 2
    """Experts a token is sent to."""
    moe_ffn_hidden_size: Count | None = None
    """Width of one expert; null means ffn_hidden_size."""
    moe_shared_expert_intermediate_size: Count | None = None
    """Width of the shared experts together, which every token visits; null means none."""
    moe_grouped_gemm: bool = False
    """Multiply all experts of a rank in one grouped product; false runs them one after the other, and joins their
    outputs by a copy."""
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] = "allgather"  # noqa: S105
    """How tokens reach their experts: allgather brings all tokens of the expert group to every rank, alltoall sends
    each where it is wanted; flex (DeepEP) is not modelled."""
    moe_expert_capacity_factor: Annotated[float, Field(gt=0)] | None = None
    """Rows that an expert takes of each rank's tokens, over an even share; the least probable beyond it are dropped.
    null drops none."""
    moe_pad_expert_input_to_capacity: bool = False
    """Pad every expert's input to its capacity, so that no size depends on the routing."""
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"] = (
        "aux_loss"
    )
    """How the router is balanced. aux_loss counts the visits of a microbatch, seq_aux_loss those of each sequence,
    global_aux_loss those of all replicas since the last step; with a coefficient they keep the fp32 scores of all
    experts. sinkhorn evens the choice out itself, and keeps the softmax of all experts."""
    moe_aux_loss_coeff: float = Field(default=0.0, ge=0)
    """Weight of the balancing loss; 0 means none."""
    moe_z_loss_coeff: Annotated[float, Field(gt=0)] | None = None
    """Weight of the loss on large router logits; null means none. It keeps the logits."""
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    """Number format of logits and probabilities; null means that of the model."""
    moe_router_pre_softmax: bool = False
    """Take the softmax over all experts, before the top k are picked, and keep it."""
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    """What makes scores of logits; sigmoid keeps those of all experts in fp32 (DeepSeek-V3)."""
    moe_router_topk_scaling_factor: float | None = Field(default=None, gt=0)
    """Multiply the weights of the chosen experts by this; null means 1."""
    moe_router_num_groups: Count | None = None
    """Groups of equally many experts that the choice is limited by (DeepSeek-V2); acts with moe_router_group_topk."""
    moe_router_group_topk: Count | None = None
    """Groups that a token's experts may come from; null means all. It keeps a mask of the experts."""
    moe_router_enable_expert_bias: bool = False
    """Add to the scores, for the choice alone, a bias of each expert that every step moves towards even loads."""
    moe_router_bias_update_rate: float = Field(default=1e-3, ge=0)
    """How far a step moves the bias of an expert."""
    moe_token_drop_policy: Literal["probs", "position"] = "probs"  # noqa: S105
    """Which tokens an expert keeps when more come than its capacity: the most probable, or the first."""
    moe_permute_fusion: bool = False
    """Permute by Transformer Engine's fused kernels, which keep one row map of 4 * (2E + 1) bytes a token."""
    moe_shared_expert_overlap: bool = False
    """Run the shared experts on a stream of their own while tokens are dispatched."""
    moe_input_jitter_eps: float | None = Field(default=None, ge=0)
    """Multiply the router's input by noise of this width; null means none."""
    moe_paged_stash: bool = False
    """Keep what the experts save in pages shared by all layers; not modelled."""
    moe_imbalance_factor: float = Field(default=1.0, ge=1)
    """Rows that reach this rank's experts over an even share, where routing is not observed: on sim, and where one
    process plays one rank of many."""


class ParallelConfig(Section):
    """Parallelism (Megatron-Core ``ModelParallelConfig``)."""

    SOURCE = "Megatron-Core model_parallel_config.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "data_parallel_size": "Megatron-Core parallel_state.py (derived there)",
        "num_layers_per_virtual_pipeline_stage": "Megatron-LM training/arguments.py",
        "num_layers_in_first_pipeline_stage": "Megatron-Core transformer/transformer_config.py",
        "num_layers_in_last_pipeline_stage": "Megatron-Core transformer/transformer_config.py",
        "account_for_embedding_in_pipeline_split": "Megatron-Core transformer/transformer_config.py",
        "account_for_loss_in_pipeline_split": "Megatron-Core transformer/transformer_config.py",
        "use_torch_fsdp2": "Megatron-LM training/arguments.py",
        "torch_fsdp2_reshard_after_forward": "Megatron-LM training/arguments.py",
        "use_megatron_fsdp": "Megatron-LM training/arguments.py",
        "data_parallel_sharding_strategy": "Megatron-Core distributed/distributed_data_parallel_config.py",
    }

    tensor_model_parallel_size: Count = 1
    """Ranks that share each matrix (TP)."""
    sequence_parallel: bool = False
    """Split norms, dropouts and the residual stream along the sequence over the TP group (SP)."""
    pipeline_model_parallel_size: Count = 1
    """Pipeline stages (PP)."""
    virtual_pipeline_model_parallel_size: Count | None = None
    """Model chunks a pipeline rank holds (VPP): the interleaved schedule, which keeps more microbatches in flight."""
    num_layers_per_virtual_pipeline_stage: Count | None = None
    """Layers of a model chunk, in place of the number of chunks."""
    microbatch_group_size_per_vp_stage: Count | None = None
    """Microbatches that a chunk takes in a row before the next chunk's turn; null means pipeline_model_parallel_size.
    Each one more keeps v - 1 more chunks in flight."""
    num_layers_in_first_pipeline_stage: Count | None = None
    """Layers of the first stage, over all its chunks; null means an even share."""
    num_layers_in_last_pipeline_stage: Count | None = None
    """Layers of the last stage, over all its chunks; null means an even share."""
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as a layer when layers are shared out: the first chunk gets one less."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the loss as a layer when layers are shared out: the last chunk gets one less."""
    context_parallel_size: Count = 1
    """Ranks that share each sequence (CP)."""
    cp_comm_type: Literal["p2p", "a2a", "all_gather", "a2a+p2p"] = "p2p"
    """How attention sees the other ranks' tokens: p2p passes keys and values round a ring, a2a exchanges heads for
    tokens, all_gather fetches all keys and values; a2a+p2p (hierarchical) is not modelled."""
    expert_model_parallel_size: Count = 1
    """Ranks that share the experts of a layer (EP)."""
    expert_tensor_parallel_size: Count | None = None
    """TP inside an expert; null means tensor_model_parallel_size."""
    data_parallel_size: Count = 1
    """Replicas (DP). The world has TP * PP * CP * DP ranks."""
    overlap_moe_expert_parallel_comm: bool = False
    """Overlap the experts' all-to-all with the computation of another microbatch; not modelled."""
    use_torch_fsdp2: bool = False
    """Shard parameters, gradients and states over the data-parallel ranks with torch's fully_shard."""
    torch_fsdp2_reshard_after_forward: bool = True
    """With use_torch_fsdp2, drop a unit's gathered parameters after its forward, and gather them again for backward."""
    use_megatron_fsdp: bool = False
    """Shard them with Megatron-FSDP instead; not modelled."""
    data_parallel_sharding_strategy: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"] = "no_shard"
    """What Megatron-FSDP shards."""
    overlap_p2p_comm: bool | None = None
    """With model chunks, send and receive while the next pass runs; false, between pairs of passes, where no buffer
    waits during a backward. null means Megatron-LM's choice: true."""
    batch_p2p_comm: bool | None = None
    """Post sends and receives as one batch; changes no bytes that torch allocates. null means Megatron-LM's choice:
    the opposite of overlap_p2p_comm."""
    deallocate_pipeline_outputs: bool = True
    """Free a stage's output once it has been sent (Megatron-Core's own default is false; Megatron-LM and
    Megatron-Bridge always turn it on)."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return (
            self.tensor_model_parallel_size
            * self.pipeline_model_parallel_size
            * self.context_parallel_size
            * self.data_parallel_size
        )


class RecomputeConfig(Section):
    """Activation recomputation (Megatron-Core ``recompute_*``)."""

    SOURCE = "Megatron-Core transformer/transformer_config.py"

    recompute_granularity: Literal["full", "selective"] | None = None
    """full: whole layers; selective: the modules named in recompute_modules; null: none."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With full: uniform checkpoints groups of recompute_num_layers layers, block the first recompute_num_layers."""
    recompute_num_layers: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    """Layers of a group (uniform) or layers recomputed (block), per pipeline stage (per virtual stage with VPP)."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], Field(strict=False)] | None = None
    """With selective: what is recomputed; null means [core_attn]; an empty list recomputes nothing."""
    distribute_saved_activations: bool = False
    """With full: each TP rank keeps 1/TP of every checkpointed hidden state."""
    moe_layer_recompute: bool = False
    """Deprecated name of selective recomputation with moe in recompute_modules, which it sets; refused with full."""
    mhc_recompute_layer_num: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    """With mhc in recompute_modules: layers whose hyper-connections are recomputed together; null means all."""
    num_microbatches_with_partial_activation_checkpoints: Count | None = None
    """Refused: no model of Megatron-Core reads it (model_parallel_config.py declares it)."""

    @model_validator(mode="before")
    @classmethod
    def _take_old_name(cls, values: Any) -> Any:
        """Make of moe_layer_recompute what TransformerConfig.__post_init__ makes of it."""
        if not isinstance(values, Mapping) or values.get("moe_layer_recompute") is not True:
            return values
        modules = values.get("recompute_modules")
        modules = ["core_attn"] if modules is None else modules
        if values.get("recompute_granularity") not in {None, "selective"} or not isinstance(modules, list | tuple):
            return values
        together = [*modules, *(["moe"] if "moe" not in modules else [])]
        return {**values, "recompute_granularity": "selective", "recompute_modules": together}


class OffloadConfig(Section):
    """Offload to host memory (Megatron-Core ``cpu_offloading*``, fine-grained offload)."""

    SOURCE = "Megatron-Core model_parallel_config.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "fine_grained_activation_offloading": "Megatron-Core transformer/transformer_config.py",
        "offload_modules": "Megatron-Core transformer/transformer_config.py",
        "min_offloaded_tensor_size": "Megatron-Core transformer/transformer_config.py",
        "activation_offload_fraction": "Megatron-Core transformer/transformer_config.py",
        "delta_offload_bytes_across_pp_ranks": "Megatron-Core transformer/transformer_config.py",
        "delay_offload_until_cuda_graph": "Megatron-Core transformer/transformer_config.py",
        "fine_grained_offloading_max_inflight_offloads": "Megatron-Core transformer/transformer_config.py",
        "nvte_cpu_offload_v1": "Transformer Engine pytorch/cpu_offload.py",
    }

    cpu_offloading: bool = False
    """Offload the saved activations of the first cpu_offloading_num_layers layers."""
    cpu_offloading_num_layers: int = Field(default=0, ge=-(2**31), le=2**31 - 1)
    """Layers whose activations go to the host."""
    cpu_offloading_activations: bool = True
    """Offload activations."""
    cpu_offloading_weights: bool = False
    """Accepted and without effect in Transformer Engine v2."""
    cpu_offloading_double_buffering: bool = False
    """Accepted and without effect in Transformer Engine v2."""
    cpu_offloading_retain_pinned_cpu_buffers: bool = False
    """Keep the pinned host buffers from one step to the next; no byte of the device depends on it."""
    nvte_cpu_offload_v1: bool = False
    """NVTE_CPU_OFFLOAD_V1: Transformer Engine's first implementation of layer offloading; not modelled."""
    fine_grained_activation_offloading: bool = False
    """Offload the saved activations of offload_modules."""
    offload_modules: Annotated[tuple[OffloadModule, ...], Field(strict=False)] = ()
    """Modules whose saved activations are offloaded."""
    min_offloaded_tensor_size: int = Field(default=1024 * 1024, ge=0, le=2**63 - 1)
    """Tensors with fewer elements stay on the device."""
    activation_offload_fraction: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups that is offloaded."""
    delta_offload_bytes_across_pp_ranks: int = Field(default=0, ge=-(2**63), le=2**63 - 1)
    """Bytes that a pipeline rank keeps on the device more than the rank before it; not modelled above 0."""
    delay_offload_until_cuda_graph: bool = False
    """Wait with the copies until a CUDA graph has been replayed; acts with CUDA graphs alone."""
    fine_grained_offloading_max_inflight_offloads: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    """Copies under way at once; null means any number."""


class CudaGraphConfig(Section):
    """CUDA graphs (Megatron-Core ``cuda_graph_*``): checked for what they exclude, and then refused as not modelled.

    What a graph holds (static inputs and outputs, private pools) no rule gives; a measured constant may be added to
    ``device.non_torch_bytes``.
    """

    SOURCE = "Megatron-Core transformer/transformer_config.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "nccl_graph_register": "NCCL environment variables",
    }

    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    """Who captures what: nothing, layers by Megatron-Core or by Transformer Engine, or the whole iteration."""
    cuda_graph_modules: Annotated[tuple[CudaGraphModule, ...], Field(strict=False)] = ()
    """Parts of a layer that are captured; empty means the whole layer."""
    cuda_graph_scope: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Deprecated name of cuda_graph_modules."""
    cuda_graph_warmup_steps: int = Field(default=3, ge=0, le=2**31 - 1)
    """Steps before the capture."""
    nccl_graph_register: bool = True
    """NCCL_GRAPH_REGISTER: let NCCL register the buffers that a graph uses."""


class OptimizerConfig(Section):
    """The optimizer (Megatron-Core ``OptimizerConfig`` and ``DistributedDataParallelConfig``)."""

    SOURCE = "Megatron-Core optimizer/optimizer_config.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "overlap_grad_reduce": "Megatron-Core distributed/distributed_data_parallel_config.py",
    }

    optimizer: Literal["adam", "sgd"] = "adam"
    """Adam (decoupled weight decay) or SGD with momentum."""
    lr: float = Field(default=1e-4, gt=0)
    """Learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    decoupled_weight_decay: bool = True
    """AdamW; false (weight decay in the gradient) is not modelled."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """Epsilon of Adam."""
    sgd_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    clip_grad: float = Field(default=1.0, ge=0)
    """Clip the gradient's global norm to this; 0 turns clipping off."""
    loss_scale: float | None = Field(default=None, gt=0)
    """Multiply the loss by this and divide the gradients by it; null means dynamic scaling in fp16, else none."""
    initial_loss_scale: float = Field(default=2.0**32, gt=0)
    """First factor of dynamic loss scaling."""
    min_loss_scale: float = Field(default=1.0, gt=0)
    """Least factor of dynamic loss scaling."""
    loss_scale_window: Count = 1000
    """Steps without overflow after which the factor is doubled."""
    hysteresis: Count = 2
    """Overflows after which the factor is halved."""
    use_precision_aware_optimizer: bool = False
    """Let the optimizer keep master weights and moments in the dtypes below, and read gradients as they are."""
    store_param_remainders: bool = True
    """With it, keep of the fp32 master of a bf16 parameter the lower 16 bits alone: 2 bytes a parameter less."""
    main_grads_dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of main gradients; bf16 needs use_precision_aware_optimizer and grad_reduce_in_fp32 off."""
    main_params_dtype: Literal["fp32", "fp16"] = "fp32"
    """Dtype of master weights."""
    exp_avg_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Dtype of Adam's first moment; fp8 is not modelled."""
    exp_avg_sq_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Dtype of Adam's second moment; fp8 is not modelled."""
    use_distributed_optimizer: bool = False
    """Shard master weights and optimizer states over the data-parallel ranks."""
    overlap_grad_reduce: bool = False
    """Reduce gradients bucket by bucket during backward."""
    overlap_param_gather: bool = False
    """Gather updated parameters while the next forward begins, in place: no byte depends on it."""
    optimizer_cpu_offload: bool = False
    """Keep optimizer states of optimizer_offload_fraction of the parameters on the host."""
    optimizer_offload_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of parameters whose optimizer states live on the host."""
    overlap_cpu_optimizer_d2h_h2d: bool = False
    """Overlap the copies of the offloaded optimizer."""
    use_torch_optimizer_for_cpu_offload: bool = False
    """Accepted and without effect upstream."""


class PrecisionConfig(Section):
    """Number formats. Neither bf16 nor fp16 means fp32."""

    SOURCE = "Megatron-Core model_parallel_config.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "grad_reduce_in_fp32": "Megatron-Core distributed/distributed_data_parallel_config.py",
        "fp8": "Megatron-Core transformer/transformer_config.py",
        "fp8_recipe": "Megatron-Core transformer/transformer_config.py",
        "fp8_param": "Megatron-Core transformer/transformer_config.py",
        "fp4": "Megatron-Core transformer/transformer_config.py",
    }

    bf16: bool = True
    """Parameters and activations in bfloat16, with fp32 master weights."""
    fp16: bool = False
    """Parameters and activations in float16, with fp32 master weights and loss scaling."""
    grad_reduce_in_fp32: bool = True
    """Accumulate and reduce gradients in fp32 main-gradient buffers."""
    fp8: Literal["e4m3", "hybrid"] | None = None
    """Matrix products in fp8; not modelled."""
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise", "custom"] = "delayed"
    """How fp8 tensors are scaled."""
    fp8_param: bool = False
    """Keep the parameters in fp8."""
    fp4: Literal["e2m1"] | None = None
    """Matrix products in fp4; not modelled."""
    gradient_accumulation_fusion: bool = False
    """Weight gradients are written straight into the main-gradient buffer, with no temporary of the weight's size."""


class DataConfig(Section):
    """The batch."""

    SOURCE = "Megatron-LM training/arguments.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "num_microbatches": "Megatron-Core num_microbatches_calculator.py",
    }

    seq_length: Count = 1024
    """Tokens of a sequence."""
    micro_batch_size: Count = 1
    """Sequences of a microbatch."""
    num_microbatches: Count | None = None
    """Microbatches of a step on each pipeline; null: from global_batch_size, else 1."""
    global_batch_size: Count | None = None
    """Sequences of a step over all replicas."""
    create_attention_mask_in_dataloader: bool = True
    """The batch brings a boolean mask of micro_batch_size * seq_length^2 bytes to the first and last stage, whether or
    not the attention reads it; checkpoints keep it until backward."""


class AllocatorConfig(Section):
    """The CUDA caching allocator."""

    SOURCE = "PyTorch docs, notes/cuda: PYTORCH_ALLOC_CONF"

    conf: str = ""
    """PYTORCH_ALLOC_CONF, such as ``expandable_segments:True,max_split_size_mb:128``."""
    torch_version: str | None = None
    """Whose allocator rules the simulated device follows; null means the installed torch's."""


class DeviceConfig(Section):
    """The GPU, as far as memory goes."""

    gpu: str | None = None
    """A card by name, such as ``h100-80gb``; null means h100-80gb on sim and the card found on cuda."""
    limit: Size | None = None
    """A card with this many bytes in all, instead of the card's real total."""
    non_torch_bytes: Size = 1024**3
    """On sim: bytes of the card outside the allocator (CUDA context, NCCL, cuBLAS handles). On cuda it is measured."""
    other_process_bytes: Size = 0
    """On sim: bytes of the card that other processes hold."""
    cublas_workspace_config: str | None = None
    """CUBLAS_WORKSPACE_CONFIG, such as ``:4096:8``; null means torch's default for the architecture."""
    op_temporaries: bool = True
    """On sim: allocate the known temporaries inside CUDA kernels and the cuBLAS workspaces."""
    stream_lag: int = Field(default=0, ge=0, le=2**31 - 1)
    """On sim: an event recorded on a side stream completes after this many further allocations (or when the
    stream is synchronised)."""


class ProbeConfig(Section):
    """How the measurement is made."""

    backend: Literal["auto", "sim", "cuda"] = "auto"
    """Where to measure; auto takes cuda where there is one."""
    rank: Annotated[int, Field(ge=0, le=2**31 - 1)] | Literal["first", "last", "worst"] = "first"
    """Which rank of the world this process plays; worst probes one rank of every distinct pipeline stage."""
    world_size: Count | None = None
    """For a harness: the ranks of its world, one of which is played; null means 1. The world of a configuration is
    the product of its parallel sizes."""
    iterations: Count = 2
    """Training steps."""
    seed: int = Field(default=1234, ge=0, le=2**63 - 1)
    """Seed of weights, data and dropout."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds after which the probe is ended."""
    max_entries: Count = 1_000_000
    """On cuda: size of the recorded event ring."""
    max_frames: Count = 40
    """Python frames kept of each stack."""


class CostConfig(Section):
    """What the estimate of time assumes; nothing that is measured depends on it.

    Shares are of the card's published peaks. The defaults repeat what Korthikanti et al. 2022 (Table 4, A100) and
    Megatron-Bridge's measurements (H100) report; see docs/cost.md.
    """

    matmul_efficiency: float = Field(default=0.65, gt=0, le=1)
    """Share of the peak FLOP/s that matrix products reach."""
    memory_efficiency: float = Field(default=0.8, gt=0, le=1)
    """Share of the peak memory bandwidth that element-wise kernels reach."""
    link_efficiency: float = Field(default=0.7, gt=0, le=1)
    """Share of the peak NVLink and PCI Express bandwidth that copies and collectives reach."""
    gpus_per_node: Count = 8
    """Cards that NVLink joins; groups that reach further use the network."""
    network_gbps: float = Field(default=50.0, gt=0)
    """Network bandwidth of a card in one direction, 10^9 bytes a second (50: one 400 Gbit/s port a card)."""
    host_memory_gbps: float = Field(default=150.0, gt=0)
    """Bandwidth that the optimizers of a node's ranks reach together in host memory, 10^9 bytes a second."""


class Config(Section):
    """A whole configuration."""

    model_config = ConfigDict(strict=False)  # sections arrive as mappings

    model: ModelConfig
    parallel: ParallelConfig = ParallelConfig()
    recompute: RecomputeConfig = RecomputeConfig()
    offload: OffloadConfig = OffloadConfig()
    cuda_graph: CudaGraphConfig = CudaGraphConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: PrecisionConfig = PrecisionConfig()
    data: DataConfig = DataConfig()
    allocator: AllocatorConfig = AllocatorConfig()
    device: DeviceConfig = DeviceConfig()
    probe: ProbeConfig = ProbeConfig()
    cost: CostConfig = CostConfig()

    # Derived quantities, each with Megatron's own definition -------------------------------------------------

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.model.kv_channels or self.model.hidden_size // self.model.num_attention_heads

    @property
    def query_width(self) -> int:
        """Width of one query and key head: with MLA its two parts together."""
        model = self.model
        return model.qk_head_dim + model.qk_pos_emb_head_dim if model.multi_latent_attention else self.head_dim

    @property
    def value_width(self) -> int:
        """Width of one value head."""
        return self.model.v_head_dim if self.model.multi_latent_attention else self.head_dim

    @property
    def query_groups(self) -> int:
        """Key/value heads."""
        return self.model.num_query_groups or self.model.num_attention_heads

    @property
    def ffn_size(self) -> int:
        """Width of the dense MLP (of each half when gated)."""
        return self.model.ffn_hidden_size or 4 * self.model.hidden_size

    @property
    def expert_ffn_size(self) -> int:
        """Width of one routed expert (of each half when gated)."""
        return self.model.moe_ffn_hidden_size or self.ffn_size

    @property
    def aux_loss_coeff(self) -> float:
        """Weight of the router's balancing loss; 0 where the configured balancing has none."""
        has_loss = self.model.moe_router_load_balancing_type not in {"none", "sinkhorn"}
        return self.model.moe_aux_loss_coeff if has_loss else 0.0

    @property
    def has_no_dense_layer(self) -> bool:
        """Whether every layer has experts."""
        pattern = self.model.moe_layer_freq
        everywhere = 0 not in pattern if isinstance(pattern, tuple) else pattern == 1
        return self.model.num_moe_experts is not None and everywhere

    def is_moe_layer(self, layer: int) -> bool:
        """Whether ``layer``, counted over the whole model from 0, has experts (Megatron-Core ``moe_layer_freq``)."""
        if self.model.num_moe_experts is None:
            return False
        pattern = self.model.moe_layer_freq
        return layer % pattern == 0 if isinstance(pattern, int) else pattern[layer] == 1

    @property
    def padded_vocab_size(self) -> int:
        """Vocabulary padded to a multiple of make_vocab_size_divisible_by * TP."""
        multiple = self.model.make_vocab_size_divisible_by * self.parallel.tensor_model_parallel_size
        return -(-self.model.vocab_size // multiple) * multiple

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step on each pipeline."""
        if self.data.num_microbatches is not None:
            return self.data.num_microbatches
        if self.data.global_batch_size is not None:
            return self.data.global_batch_size // (self.data.micro_batch_size * self.parallel.data_parallel_size)
        return 1

    @property
    def model_chunks(self) -> int:
        """Model chunks that each pipeline rank holds (v); without a pipeline always 1."""
        parallel = self.parallel
        if parallel.pipeline_model_parallel_size == 1:
            return 1
        if parallel.virtual_pipeline_model_parallel_size is not None:
            return parallel.virtual_pipeline_model_parallel_size
        if parallel.num_layers_per_virtual_pipeline_stage is None:
            return 1
        return max(1, self.layers_of_even_stage // parallel.num_layers_per_virtual_pipeline_stage)

    @property
    def layers_of_even_stage(self) -> int:
        """Layers of a stage where all have the same; embedding and loss included where they count."""
        parallel = self.parallel
        ends = parallel.account_for_embedding_in_pipeline_split + parallel.account_for_loss_in_pipeline_split
        return (self.model.num_layers + ends) // parallel.pipeline_model_parallel_size

    @property
    def overlap_p2p_comm(self) -> bool:
        """Whether model chunks communicate while they compute (Megatron-LM training/arguments.py)."""
        return self.model_chunks > 1 and self.parallel.overlap_p2p_comm is not False

    @property
    def microbatch_group_size(self) -> int:
        """Microbatches that a model chunk takes in a row (G)."""
        return self.parallel.microbatch_group_size_per_vp_stage or self.parallel.pipeline_model_parallel_size

    @property
    def attention_backend(self) -> Literal["flash", "unfused"]:
        """Whether scores are kept (unfused) or not (flash: by flash-attn's kernels or cuDNN's)."""
        if self.model.attention_backend == "auto":
            half = self.precision.bf16 or self.precision.fp16
            return "flash" if half and self.model.transformer_impl == "transformer_engine" else "unfused"
        return "unfused" if self.model.attention_backend == "unfused" else "flash"

    @property
    def flash_kernels(self) -> FlashKernels:
        """Whose kernels flash attention is made of."""
        return "auto" if self.model.attention_backend == "unfused" else self.model.attention_backend

    @property
    def recompute_modules(self) -> tuple[str, ...]:
        """The modules that selective recompute acts on (null promoted to core_attn, as upstream); else none."""
        if self.recompute.recompute_granularity != "selective":
            return ()
        modules = self.recompute.recompute_modules
        return ("core_attn",) if modules is None else modules

    def flat(self) -> dict[str, Any]:
        """Return dotted keys and JSON values of every field, in declaration order."""
        document = self.model_dump(mode="json")
        return {f"{section}.{key}": value for section, values in document.items() for key, value in values.items()}
