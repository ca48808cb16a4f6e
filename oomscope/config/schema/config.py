"""All sections together, and what follows from them, each quantity with Megatron's own definition."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import ConfigDict

from oomscope.config.schema.activations import OffloadConfig, RecomputeConfig
from oomscope.config.schema.measurement import AllocatorConfig, CostConfig, DataConfig, DeviceConfig, ProbeConfig
from oomscope.config.schema.model import FlashKernels, ModelConfig, Softmax
from oomscope.config.schema.parallel import ParallelConfig, stages_of
from oomscope.config.schema.section import Section
from oomscope.config.schema.training import OptimizerConfig, PrecisionConfig


class Config(Section):
    """A whole configuration."""

    model_config = ConfigDict(strict=False)  # sections arrive as mappings

    model: ModelConfig
    parallel: ParallelConfig = ParallelConfig()
    recompute: RecomputeConfig = RecomputeConfig()
    offload: OffloadConfig = OffloadConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: PrecisionConfig = PrecisionConfig()
    data: DataConfig = DataConfig()
    allocator: AllocatorConfig = AllocatorConfig()
    device: DeviceConfig = DeviceConfig()
    probe: ProbeConfig = ProbeConfig()
    cost: CostConfig = CostConfig()

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
    def rest_of_batch(self) -> int:
        """Sequences of the global batch that are left over where it cannot be split evenly."""
        return (self.data.global_batch_size or 0) % (self.data.micro_batch_size * self.parallel.data_parallel_size)

    @property
    def shards_optimizer_states(self) -> bool:
        """Whether data-parallel ranks share out masters and moments, by whichever means."""
        if self.parallel.use_megatron_fsdp:
            return self.parallel.data_parallel_sharding_strategy != "no_shard"
        return self.optimizer.use_distributed_optimizer or self.parallel.use_torch_fsdp2

    @property
    def model_chunks(self) -> int:
        """Model chunks that each pipeline rank holds (v); without a pipeline always 1."""
        parallel = self.parallel
        if parallel.pipeline_model_parallel_size == 1:
            return 1
        if parallel.pipeline_model_parallel_layout is not None:
            return max(1, len(self.stage_layout) // parallel.pipeline_model_parallel_size)
        if parallel.virtual_pipeline_model_parallel_size is not None:
            return parallel.virtual_pipeline_model_parallel_size
        if parallel.num_layers_per_virtual_pipeline_stage is None:
            return 1
        return max(1, self.layers_of_even_stage // parallel.num_layers_per_virtual_pipeline_stage)

    @property
    def stage_layout(self) -> tuple[str, ...]:
        """The signs of each virtual stage of ``pipeline_model_parallel_layout``, none where it is not given."""
        layout = self.parallel.pipeline_model_parallel_layout
        return () if layout is None else stages_of(layout)

    @property
    def context_levels(self) -> tuple[int, int]:
        """Context-parallel ranks that exchange heads for tokens, and those that see each other's keys and values."""
        ranks, kind = self.parallel.context_parallel_size, self.parallel.cp_comm_type
        neighbours = {"a2a": ranks, "a2a+p2p": (self.parallel.hierarchical_context_parallel_sizes or (1,))[0]}
        exchanging = neighbours.get(kind, 1)
        return exchanging, max(1, ranks // exchanging)

    @property
    def cp_comm_type(self) -> Literal["p2p", "a2a", "all_gather", "a2a+p2p"]:
        """How context-parallel ranks communicate; two levels count as one if one of them has a single rank."""
        if self.parallel.cp_comm_type != "a2a+p2p" or 1 not in self.context_levels:
            return self.parallel.cp_comm_type
        return "p2p" if self.context_levels[0] == 1 else "a2a"

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
    def fuses_gate(self) -> bool:
        """Whether one kernel computes the MLP's gate: there is none for other functions than silu and gelu."""
        return self.model.bias_activation_fusion and self.model.activation_func in ("silu", "gelu")

    @property
    def softmax(self) -> Softmax:
        """How unfused attention comes to probabilities.

        Source: Megatron-Core fusions/fused_softmax.py, is_kernel_available (get_batch_per_block: 8 up to 128 tokens);
        Transformer Engine pytorch/attention/dot_product_attention/softmax.py.
        """
        model, s = self.model, self.data.seq_length
        batches = self.data.micro_batch_size * model.num_attention_heads // self.parallel.tensor_model_parallel_size
        if not (self.precision.bf16 or self.precision.fp16):
            return "as scores"
        if model.transformer_impl == "transformer_engine":
            return "kernel" if 16 < s < 16384 and s % 8 == 0 and batches % 4 == 0 else "fp32"
        fits = 16 < s <= 4096 and s % 4 == 0 and batches % (8 if s <= 128 else 4) == 0
        if model.masked_softmax_fusion and fits:
            return "kernel"
        return "fp32" if model.attention_softmax_in_fp32 else "as scores"

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

    @property
    def te_version(self) -> tuple[int, ...] | None:
        """Major and minor version of Transformer Engine; None where none is given that has numbers."""
        numbers = re.match(r"(\d+)\.(\d+)", self.model.transformer_engine_version or "")
        return (int(numbers[1]), int(numbers[2])) if numbers else None

    def flat(self) -> dict[str, Any]:
        """Return dotted keys and JSON values of every field, in declaration order."""
        document = self.model_dump(mode="json")
        return {f"{section}.{key}": value for section, values in document.items() for key, value in values.items()}
