"""Options of the dense model."""

from __future__ import annotations

from oomscope.probe.options.option import LATENT, LLAMA, MOE, SELECTIVE, SHORT, TINY, UNFUSED, Option, keys

MODEL = (
    Option(
        keys("model", "num_layers"),
        "Parameters, states and activations of each layer.",
        "Time grows alike.",
        LLAMA,
        ("model.num_layers=8",),
    ),
    Option(
        keys("model", "hidden_size"),
        "Activations grow with h, parameters with h².",
        "Time grows with h².",
        LLAMA,
        ("model.hidden_size=5120",),
        given=("model.kv_channels=128",),
    ),
    Option(
        keys("model", "num_attention_heads num_query_groups kv_channels"),
        "Queries of a·d and keys and values of g·d a token; fewer groups save parameters and activations.",
        "Less traffic of keys and values.",
        LLAMA,
        ("model.num_query_groups=32",),
    ),
    Option(
        keys("model", "ffn_hidden_size"),
        "Activations of the MLP grow with f.",
        "Time grows alike.",
        LLAMA,
        ("model.ffn_hidden_size=28672",),
    ),
    Option(
        keys("model", "vocab_size make_vocab_size_divisible_by"),
        "Rows of embedding and head, padded to a multiple of 128·t, and 6 bytes a logit at the loss (bf16 and fp32).",
        "The product with the head.",
        LLAMA,
        ("model.vocab_size=32000",),
    ),
    Option(
        keys("model", "position_embedding_type max_position_embeddings"),
        "Learned positions are parameters of max_position_embeddings rows; rotary ones a table, and rotated copies of "
        "queries and keys.",
        "Little.",
        LLAMA,
        ("model.position_embedding_type=learned_absolute",),
    ),
    Option(
        keys("model", "normalization"),
        "RMSNorm keeps one statistic a token and one vector of parameters, LayerNorm two of each.",
        "Little.",
        LLAMA,
        ("model.normalization=LayerNorm",),
    ),
    Option(
        keys("model", "qk_layernorm"),
        "Keeps the projection that the norms of queries and keys read.",
        "Little.",
        LLAMA,
        ("model.qk_layernorm=true",),
    ),
    Option(
        keys("model", "activation_func gated_linear_unit"),
        "A gated MLP keeps an fc1 output of twice the width, and has half as many parameters again.",
        "Half as many operations of the MLP again.",
        LLAMA,
        ("model.gated_linear_unit=false", "model.activation_func=gelu"),
    ),
    Option(
        keys("model", "add_bias_linear add_qkv_bias"),
        "Vectors of parameters; outputs that a bias is added to are copied in backward.",
        "Little.",
        LLAMA,
        ("model.add_bias_linear=true",),
    ),
    Option(
        keys("model", "share_embeddings_and_output_weights"),
        "One table in place of two; with a pipeline both ends hold it.",
        "With a pipeline an all-reduce of its gradient.",
        LLAMA,
        ("model.share_embeddings_and_output_weights=true",),
    ),
    Option(
        keys("model", "hidden_dropout"),
        "A mask of 1 byte an element: nh/S twice a layer, and on the embedding.",
        "Little.",
        TINY,
        ("model.hidden_dropout=0.0",),
    ),
    Option(
        keys("model", "attention_dropout"),
        "Unfused, a mask and the dropped probabilities: 3as²b/t bytes; flash keeps a random state.",
        "Little.",
        LLAMA,
        ("model.attention_dropout=0.1",),
        given=(UNFUSED, SHORT),
    ),
    Option(
        keys("model", "attention_backend"),
        "Unfused attention keeps scores of 2as²b/t bytes and more; flash the output and 4an/t of log-sum-exp.",
        "Unfused attention is slower.",
        LLAMA,
        (UNFUSED,),
        given=(SHORT,),
    ),
    Option(
        keys("model", "cross_entropy_loss_fusion cross_entropy_fusion_impl"),
        "native holds 4nV/t bytes more in backward, a copy of the softmax; te writes the gradient in forward, in 4nV/t "
        "bytes of fp32 or, before version 2.18, over the logits.",
        "Fused kernels are faster.",
        LLAMA,
        ("model.cross_entropy_loss_fusion=true",),
    ),
    Option(
        keys("model", "transformer_impl transformer_engine_version"),
        "local has norms of their own (which layernorm recomputation can drop), a scratch buffer for gathers and "
        "scores over the whole run, and the mask it multiplies by.",
        "Fused kernels are faster.",
        LLAMA,
        ("model.transformer_impl=local",),
        given=(UNFUSED, SHORT),
    ),
    Option(
        keys("model", "multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim"),
        "Keeps the latents and, unless mla_up_proj is recomputed, the queries, keys and values that they expand to.",
        "The products that lead up from the latents.",
        MOE,
        (SELECTIVE, "recompute.recompute_modules=[mla_up_proj]"),
        given=LATENT,
    ),
    Option(
        keys("model", "mtp_num_layers mtp_use_repeated_layer"),
        "Each depth keeps a layer, its two inputs, their join and a projection, and the softmax of its own logits, "
        "4nV/t, until backward; a copy of the embedding on the last stage. One layer for all depths spares parameters.",
        "Time of a layer and of the head for each depth; with a pipeline an all-reduce of the embedding's gradient.",
        LLAMA,
        ("model.mtp_num_layers=1",),
    ),
)
