"""How many parameters a rank holds, in closed form: of a layer, of its experts, of a stage.

Symbols as in ``gpt/stage.py``; layers are counted over the whole model. Tests hold the model to every number.
"""

from __future__ import annotations

from oomscope.config.rules.layer_split import has_final_norm
from oomscope.config.schema import Config
from oomscope.model.parallel.parallel_state import expert_tensor_parallel_size


def element_bytes(config: Config) -> int:
    """Return the bytes of one parameter or activation element."""
    return 2 if config.precision.bf16 or config.precision.fp16 else 4


def layer_parameters(config: Config, layer: int = 0) -> int:
    """Return the parameters of ``layer`` that one rank holds."""
    attention = _latent_parameters(config) if config.model.multi_latent_attention else _attention_parameters(config)
    norms = 2 * _norm_parameters(config, config.model.hidden_size)
    return attention + norms + (_moe_parameters(config) if config.is_moe_layer(layer) else _mlp_parameters(config))


def _attention_parameters(config: Config) -> int:
    model, h, d, t = config.model, config.model.hidden_size, config.head_dim, config.parallel.tensor_model_parallel_size
    qkv = (model.num_attention_heads + 2 * config.query_groups) * d // t
    matrices = h * (qkv + model.num_attention_heads * d // t)
    biases = qkv + h if model.add_bias_linear else qkv if model.add_qkv_bias else 0
    return matrices + biases + (2 * _norm_parameters(config, d) if model.qk_layernorm else 0)


def _latent_parameters(config: Config) -> int:
    """Every rank holds the way down; the way up and the output projection are split by heads."""
    model, h = config.model, config.model.hidden_size
    heads = model.num_attention_heads // config.parallel.tensor_model_parallel_size
    query, latent = model.q_lora_rank, model.kv_lora_rank
    down = h * (query or 0) + h * (latent + model.qk_pos_emb_head_dim)
    up = heads * ((query or h) * config.query_width + latent * (model.qk_head_dim + model.v_head_dim))
    normed = (query or 0, latent) if model.qk_layernorm else ()
    biases = h if model.add_bias_linear else 0
    return down + up + heads * model.v_head_dim * h + biases + sum(_norm_parameters(config, width) for width in normed)


def _mlp_parameters(config: Config, ffn_size: int | None = None) -> int:
    model, h, t = config.model, config.model.hidden_size, config.parallel.tensor_model_parallel_size
    width = (ffn_size or config.ffn_size) // t
    fc1 = (2 if model.gated_linear_unit else 1) * width
    return h * (fc1 + width) + (fc1 + h if model.add_bias_linear else 0)


def _moe_parameters(config: Config) -> int:
    model, shared = config.model, config.model.moe_shared_expert_intermediate_size
    router = (model.num_moe_experts or 0) * model.hidden_size
    return router + expert_parameters(config) + (0 if shared is None else _mlp_parameters(config, shared))


def expert_parameters(config: Config) -> int:
    """Return the parameters of the routed experts of one MoE layer that one rank holds; they have no biases."""
    model = config.model
    if model.num_moe_experts is None:
        return 0
    matrices = 3 if model.gated_linear_unit else 2
    local = model.num_moe_experts // config.parallel.expert_model_parallel_size
    return local * matrices * model.hidden_size * config.expert_ffn_size // expert_tensor_parallel_size(config)


def stage_parameters(config: Config, num_layers: int, *, pre_process: bool, post_process: bool, first: int = 0) -> int:
    """Return the parameters of one stage that one TP rank holds; a weight tied within the stage counts once."""
    model, h = config.model, config.model.hidden_size
    vocabulary = config.padded_vocab_size * h // config.parallel.tensor_model_parallel_size
    total = sum(layer_parameters(config, first + layer) for layer in range(num_layers))
    if pre_process:
        total += vocabulary
        if model.position_embedding_type == "learned_absolute":
            total += (model.max_position_embeddings or config.data.seq_length) * h
    if post_process:
        tied_here = pre_process and model.share_embeddings_and_output_weights
        total += 0 if tied_here else vocabulary
    if has_final_norm(config, range(first, first + num_layers), post_process=post_process):
        total += _norm_parameters(config, h)
    if post_process and model.mtp_num_layers is not None:
        total += prediction_parameters(config) + (0 if pre_process else vocabulary)
    return total


def prediction_parameters(config: Config) -> int:
    """Return the parameters of multi-token prediction: each depth's layer, projection [h/t, 2h] and three norms.

    The stage that holds it has a copy of the embedding besides, unless it is the first.
    """
    model, h = config.model, config.model.hidden_size
    layer = layer_parameters(config, model.num_layers - 1)
    depth = layer + 2 * h * h // config.parallel.tensor_model_parallel_size + 3 * _norm_parameters(config, h)
    return prediction_layers(config) * depth


def prediction_layers(config: Config) -> int:
    """Return how many layers of its own multi-token prediction has; with ``mtp_use_repeated_layer`` one."""
    depths = config.model.mtp_num_layers or 0
    return min(depths, 1) if config.model.mtp_use_repeated_layer else depths


def _norm_parameters(config: Config, width: int) -> int:
    return width if config.model.normalization == "RMSNorm" else 2 * width
