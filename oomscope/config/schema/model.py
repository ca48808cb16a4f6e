"""The section ``model``: the transformer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from oomscope.config.schema.section import Count, Section

FlashKernels = Literal["auto", "flash", "fused"]
"""Kernels of flash attention: as Transformer Engine chooses by the card, flash-attn's, cuDNN's."""


Softmax = Literal["kernel", "fp32", "as scores"]
"""How probabilities are computed from scores: by the fused kernel, or by torch in fp32 or in the scores' format."""


class ModelConfig(Section):
    """The transformer (Megatron-Core ``TransformerConfig`` and ``GPTModel``)."""

    num_layers: Annotated[Count, Field(le=2**16)]
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
    """How positions enter the model."""
    rotary_base: Count = 10000
    """Base of the rotary frequencies."""
    apply_rope_fusion: bool = True
    """Rotate queries and keys by a fused kernel; without it each layer keeps cosines and sines for both, 8·s·d/CP bytes
    in 16 bits, which neither TP nor the batch divides (Megatron-LM: false with --no-rope-fusion)."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """Norm of both sub-layers and of the final norm."""
    layernorm_epsilon: float = Field(default=1e-5, gt=0)
    """Epsilon of the norms."""
    qk_layernorm: bool = False
    """Normalise each query and key head before the rotary embedding (Qwen3)."""
    activation_func: Literal["gelu", "silu", "relu", "squared_relu"] = "gelu"
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
    masked_softmax_fusion: bool = True
    """In the local layers, take the fused kernel for the softmax of unfused attention where sizes allow it: 16-bit
    scores of 17 to 4096 tokens, in multiples of 4, and a multiple of 4 heads of all samples (8 up to 128 tokens).
    Transformer Engine takes its own below 16384 tokens, in multiples of 8."""
    attention_softmax_in_fp32: bool = True
    """In the local layers without that kernel, keep probabilities in fp32, and a copy in 16 bits (Megatron-LM: with
    --attention-softmax-in-fp32 only). Transformer Engine always does."""
    bias_activation_fusion: bool = True
    """Compute a gated non-linearity in one kernel; false keeps its first half's output too."""
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
    mtp_num_layers: Count | None = None
    """Depths of multi-token prediction (MTP, DeepSeek-V3), each with a layer and logits of its own; null means none."""
    mtp_loss_scaling_factor: float = Field(default=0.1, ge=0)
    """Weight of the mean of the depths' losses, beside the model's own loss."""
    mtp_use_repeated_layer: bool = False
    """Run the same MTP layer at every depth."""
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
    """Function from logits to scores; sigmoid keeps the scores of all experts in fp32 (DeepSeek-V3)."""
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
    moe_imbalance_factor: float = Field(default=1.0, ge=1)
    """Rows that reach this rank's experts over an even share, where routing is not observed: on virtual, and where one
    process plays one rank of many."""
