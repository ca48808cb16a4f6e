"""Makes the parts of a GPT from a configuration: widths, biases, norms and initial values of one rank's share."""

from __future__ import annotations

import math

import torch

from oomscope.config.schema import Config
from oomscope.errors import ConfigError
from oomscope.model.attention import CoreAttention, SelfAttention
from oomscope.model.context_parallel import ContextParallel
from oomscope.model.dispatch import ExpertParallel
from oomscope.model.embedding import Embedding, VocabParallelEmbedding
from oomscope.model.initialisation import Parameters
from oomscope.model.mlp import MLP
from oomscope.model.moe import MoE, Router
from oomscope.model.norms import LayerNorm, RMSNorm
from oomscope.model.random_state import ModelParallelRandom
from oomscope.model.rotary import rotary_table
from oomscope.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear, TensorParallel
from oomscope.model.transformer_layer import TransformerLayer

_INIT_STD = 0.02
"""Megatron-Core ``init_method_std``."""


class Assembly:
    """Builds the parts that one rank holds.

    Args:
        config: a configuration that satisfies the rules.
        tp: the rank's place in its tensor-parallel group.
        cp: the rank's place in its context-parallel group.
        ep: the rank's place in its expert-parallel group.
        random: the rank's random numbers.
        device: where everything lives.
        dtype: of parameters and activations.

    Raises:
        ConfigError: the key/value heads cannot be split over the TP ranks.
    """

    def __init__(
        self,
        config: Config,
        *,
        tp: TensorParallel,
        cp: ContextParallel,
        ep: ExpertParallel,
        random: ModelParallelRandom,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if config.query_groups % tp.size:
            raise ConfigError(
                f"{config.query_groups} key/value heads cannot be split over {tp.size} TP ranks",
                where="model.num_query_groups",
                remedy="let it be a multiple of parallel.tensor_model_parallel_size",
            )
        self._config = config
        self._tp = tp
        self._cp = cp
        self._ep = ep
        self._random = random
        self._parameters = Parameters(device=device, dtype=dtype, seed=config.probe.seed, tp=tp, random=random)
        positions = cp.positions(config.data.seq_length // cp.size, device)
        self._rotary = (
            rotary_table(positions, config.head_dim, config.model.rotary_base, dtype=dtype)
            if config.model.position_embedding_type == "rope"
            else None
        )

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """The tensors that all layers read and nobody trains."""
        return () if self._rotary is None else tuple(self._rotary)

    def embedding(self) -> Embedding:
        """Return the embedding of the first stage."""
        model = self._config.model
        positions = None
        if model.position_embedding_type == "learned_absolute":
            rows = model.max_position_embeddings or self._config.data.seq_length
            positions = self._parameters.whole("embedding.positions", rows, model.hidden_size, std=_INIT_STD)
        words = self.vocabulary("embedding.words")
        words.shared_embedding = model.share_embeddings_and_output_weights  # type: ignore[attr-defined]
        return Embedding(
            VocabParallelEmbedding(words, self._tp),
            positions,
            dropout_p=model.hidden_dropout,
            tp=self._tp,
            cp=self._cp,
            random=self._random,
        )

    def vocabulary(self, name: str) -> torch.nn.Parameter:
        """Return a matrix with a row for each word of this rank, [V/t, h]: a word table or an output layer."""
        model = self._config.model
        return self._parameters.split_rows(name, (self._config.padded_vocab_size,), model.hidden_size, std=_INIT_STD)

    def norm(self, width: int) -> LayerNorm | RMSNorm:
        """Return the configured norm of rows of ``width``."""
        model = self._config.model
        weight = self._parameters.constant(1.0, width, sequence_parallel=True)
        if model.normalization == "RMSNorm":
            return RMSNorm(weight, model.layernorm_epsilon)
        bias = self._parameters.constant(0.0, width, sequence_parallel=True)
        return LayerNorm(weight, bias, model.layernorm_epsilon)

    def layer(self, index: int) -> TransformerLayer:
        """Return layer ``index`` of the whole model."""
        config = self._config
        return TransformerLayer(
            self.norm(config.model.hidden_size),
            self._attention(f"layers.{index}.attention"),
            self.norm(config.model.hidden_size),
            self._mlp(f"layers.{index}.mlp")
            if config.model.num_moe_experts is None
            else self._moe(f"layers.{index}.mlp", config.model.num_moe_experts),
            hidden_dropout=config.model.hidden_dropout,
            recompute_modules=config.recompute_modules,
            fused_norms=config.model.transformer_impl == "transformer_engine",
            random=self._random,
        )

    def _attention(self, name: str) -> SelfAttention:
        config, model = self._config, self._config.model
        d, a, g = config.head_dim, model.num_attention_heads, config.query_groups
        norms = (self._head_norm(d), self._head_norm(d)) if model.qk_layernorm else (None, None)
        return SelfAttention(
            self._column(f"{name}.qkv", (a * d, g * d, g * d), bias=model.add_bias_linear or model.add_qkv_bias),
            self._row(f"{name}.projection", a * d),
            CoreAttention(
                config.attention_backend,
                dropout_p=model.attention_dropout,
                random=self._random,
                fork=not self._tp.sequence_parallel,
                recompute="core_attn" in config.recompute_modules,
                buffer=self._tp.buffer,
                cp=self._cp,
            ),
            heads=(a // self._tp.size, g // self._tp.size, g // self._tp.size),
            rotary=self._rotary,
            q_norm=norms[0],
            k_norm=norms[1],
        )

    @property
    def _scaled_std(self) -> float:
        """Standard deviation of what is added to the residual stream (Megatron-Core ``scaled_init_method_normal``)."""
        return _INIT_STD / math.sqrt(2.0 * self._config.model.num_layers)

    def _head_norm(self, width: int) -> LayerNorm | RMSNorm:
        """Return a norm inside the tensor-parallel region: each rank sees its own heads only."""
        norm = self.norm(width)
        for parameter in norm.parameters():
            parameter.sequence_parallel = self._tp.size > 1  # type: ignore[attr-defined]
        return norm

    def _mlp(self, name: str) -> MLP:
        model, f = self._config.model, self._config.ffn_size
        return MLP(
            self._column(f"{name}.fc1", (f, f) if model.gated_linear_unit else (f,), bias=model.add_bias_linear),
            self._row(f"{name}.fc2", f),
            activation=model.activation_func,
            is_gated=model.gated_linear_unit,
        )

    def _moe(self, name: str, num_experts: int) -> MoE:
        model, h = self._config.model, self._config.model.hidden_size
        f, local = model.moe_ffn_hidden_size or self._config.ffn_size, num_experts // self._ep.size
        mine = range(self._ep.rank * local, (self._ep.rank + 1) * local)
        fc1_rows = 2 * f if model.gated_linear_unit else f
        router = self._parameters.whole(f"{name}.router", num_experts, h, std=_INIT_STD, sequence_parallel=True)
        return MoE(
            Router(router, model.moe_router_topk),
            self._parameters.experts(f"{name}.fc1", mine, fc1_rows, h, std=_INIT_STD),
            self._parameters.experts(f"{name}.fc2", mine, h, f, std=self._scaled_std),
            activation=model.activation_func,
            is_gated=model.gated_linear_unit,
            num_experts=num_experts,
            ep=self._ep,
            fuse_weight_gradients=self._tp.fuse_weight_gradients,
        )

    def _column(self, name: str, blocks: tuple[int, ...], *, bias: bool) -> ColumnParallelLinear:
        weight = self._parameters.split_rows(name, blocks, self._config.model.hidden_size, std=_INIT_STD)
        zeros = self._parameters.constant(0.0, weight.shape[0], tensor_parallel=True) if bias else None
        return ColumnParallelLinear(weight, zeros, self._tp)

    def _row(self, name: str, columns: int) -> RowParallelLinear:
        model = self._config.model
        weight = self._parameters.split_columns(name, model.hidden_size, columns, std=self._scaled_std)
        bias = (
            self._parameters.constant(0.0, model.hidden_size, sequence_parallel=True) if model.add_bias_linear else None
        )
        return RowParallelLinear(weight, bias, self._tp)
