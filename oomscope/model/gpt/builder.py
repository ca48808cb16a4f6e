"""Makes the parts of a GPT from a configuration: widths, biases, norms and initial values of one rank's share."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from oomscope.config.schema import Config
from oomscope.errors import ConfigError
from oomscope.model.base.observer import Observer
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.fp8.linear import Fp8ColumnParallelLinear, Fp8RowParallelLinear
from oomscope.model.fp8.recipe import Fp8Recipe, fp8_recipe, is_bf16_layer
from oomscope.model.fp8.weight import Fp8Weight, fp8_parameter
from oomscope.model.gpt.multi_token_prediction import MultiTokenPrediction, PredictionLayer
from oomscope.model.gpt.transformer_layer import TransformerLayer
from oomscope.model.layers.attention import CoreAttention, SelfAttention
from oomscope.model.layers.embedding import Embedding, VocabParallelEmbedding
from oomscope.model.layers.initialisation import Parameters, Shard
from oomscope.model.layers.mlp import MLP
from oomscope.model.layers.multi_latent_attention import LatentAttention, LatentWidths, Projections
from oomscope.model.layers.norms import LayerNorm, RMSNorm
from oomscope.model.layers.rotary import rotary_table
from oomscope.model.memory.layer_groups import recomputes_predictions
from oomscope.model.memory.offload import ModuleOffload
from oomscope.model.moe.aux_loss import Balance
from oomscope.model.moe.experts import ExpertForm, GroupedExperts, SequentialExperts
from oomscope.model.moe.moe_layer import MoE
from oomscope.model.moe.router import Router
from oomscope.model.moe.row_plan import ExpertParallel
from oomscope.model.parallel.context_parallel import ContextParallel
from oomscope.model.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, TensorParallel

_INIT_STD = 0.02
"""Megatron-Core ``init_method_std``."""


class GPTBuilder:
    """Builds the parts that one rank holds.

    Args:
        config: a configuration that satisfies the rules.
        tp: the rank's place in its tensor-parallel group.
        cp: the rank's place in its context-parallel group.
        ep: the rank's place in its expert-parallel group.
        balance: the losses of the routers.
        random: the rank's random numbers.
        offload: what single modules save and is to go to the host.
        observer: receives the roles of what single modules keep permanently.
        device: where everything lives.
        dtype: of parameters and activations.

    Raises:
        ConfigError: the key/value heads cannot be split over the TP ranks, or the card lacks the fp8 recipe.
    """

    def __init__(
        self,
        config: Config,
        *,
        tp: TensorParallel,
        cp: ContextParallel,
        ep: ExpertParallel,
        balance: Balance,
        random: ModelParallelRandom,
        offload: ModuleOffload,
        observer: Observer,
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
        self._balance = balance
        self._random = random
        self._offload = offload
        self._observer = observer
        self._recipe = fp8_recipe(config, device)
        self._parameters = Parameters(device=device, dtype=dtype, seed=config.probe.seed, tp=tp, random=random)
        positions = cp.positions(config.data.seq_length // cp.size, device)
        width = config.model.qk_pos_emb_head_dim if config.model.multi_latent_attention else config.head_dim
        rotates = config.model.multi_latent_attention or config.model.position_embedding_type == "rope"
        self._rotary = rotary_table(positions, width, config.model.rotary_base, dtype=dtype) if rotates else None

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """The tensors that all layers read and none trains."""
        return () if self._rotary is None else tuple(self._rotary)

    def embedding(self) -> Embedding:
        """Return the embedding of the first stage; multi-token prediction has a copy of it on the last."""
        model = self._config.model
        positions = None
        if model.position_embedding_type == "learned_absolute":
            rows = model.max_position_embeddings or self._config.data.seq_length
            positions = self._parameters.whole("embedding.positions", rows, model.hidden_size, std=_INIT_STD)
        words = self.vocabulary("embedding.words")
        tied = model.share_embeddings_and_output_weights or model.mtp_num_layers is not None
        words.shared_embedding = tied  # type: ignore[attr-defined]
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
        weight = self._parameters.split_rows(name, (self._config.padded_vocab_size,), model.hidden_size, std=_INIT_STD)
        weight.is_embedding_or_output_parameter = True  # type: ignore[attr-defined]
        return weight

    def norm(self, width: int) -> LayerNorm | RMSNorm:
        """Return the configured norm of rows of ``width``."""
        model = self._config.model
        weight = self._parameters.constant(1.0, width, sequence_parallel=True)
        if model.normalization == "RMSNorm":
            return RMSNorm(weight, model.layernorm_epsilon)
        bias = self._parameters.constant(0.0, width, sequence_parallel=True)
        return LayerNorm(weight, bias, model.layernorm_epsilon)

    def layer(self, index: int, name: str | None = None, balance: Balance | None = None) -> TransformerLayer:
        """Return layer ``index`` of the whole model, or one like it with another ``name`` and other router losses."""
        config, name = self._config, name or f"layers.{index}"
        fp8 = None if is_bf16_layer(config, index) else self._recipe
        return TransformerLayer(
            self.norm(config.model.hidden_size),
            self._latent_attention(f"{name}.attention")
            if config.model.multi_latent_attention
            else self._attention(f"{name}.attention", fp8),
            self.norm(config.model.hidden_size),
            self._moe(f"{name}.mlp", config.model.num_moe_experts, balance or self._balance)
            if config.model.num_moe_experts is not None and config.is_moe_layer(index)
            else self._mlp(f"{name}.mlp", config.ffn_size, fp8),
            hidden_dropout=config.model.hidden_dropout,
            recompute_modules=config.recompute_modules,
            fused_norms=config.model.transformer_impl == "transformer_engine",
            random=self._random,
            offload=self._offload,
        )

    def multi_token_prediction(self) -> MultiTokenPrediction:
        """Return the depths behind the last layer."""
        model = self._config.model
        layers = 1 if model.mtp_use_repeated_layer else model.mtp_num_layers or 0
        return MultiTokenPrediction(map(self._prediction_layer, range(layers)), config=self._config, cp=self._cp)

    def _prediction_layer(self, depth: int) -> PredictionLayer:
        """Return a depth; its layer is of the kind of the model's last (Megatron-LM ``gpt_builders.py``)."""
        h, name = self._config.model.hidden_size, f"mtp.{depth}"
        return PredictionLayer(
            self.norm(h),
            self.norm(h),
            ColumnParallelLinear(
                self._parameters.split_rows(f"{name}.eh_proj", (h,), 2 * h, std=_INIT_STD), None, self._tp
            ),
            self.layer(self._config.model.num_layers - 1, f"{name}.layer", self._balance_of_depths()),
            self.norm(h),
            tp=self._tp,
            random=self._random,
            recompute=recomputes_predictions(self._config),
        )

    def _balance_of_depths(self) -> Balance:
        """Return the losses of a router that every depth runs: they count once (Megatron-Core ``moe/router.py``)."""
        model = self._config.model
        runs = model.mtp_num_layers or 1 if model.mtp_use_repeated_layer else 1
        return replace(self._balance, aux_loss_coeff=self._balance.aux_loss_coeff / runs)

    def _attention(self, name: str, fp8: Fp8Recipe | None) -> SelfAttention:
        config, model = self._config, self._config.model
        d, a, g = config.head_dim, model.num_attention_heads, config.query_groups
        norms = (self._head_norm(d), self._head_norm(d)) if model.qk_layernorm else (None, None)
        qkv = self._column(
            f"{name}.qkv", (a * d, g * d, g * d), bias=model.add_bias_linear or model.add_qkv_bias, fp8=fp8
        )
        qkv.weight.stacked_rows = tuple(width // self._tp.size for width in (a * d, g * d, g * d))  # type: ignore[attr-defined]
        return SelfAttention(
            qkv,
            self._row(f"{name}.projection", a * d, fp8, keeps_input=True),
            self._core(),
            heads=(a // self._tp.size, g // self._tp.size, g // self._tp.size),
            rotary=self._rotary,
            q_norm=norms[0],
            k_norm=norms[1],
            offload=self._offload,
        )

    def _core(self) -> CoreAttention:
        config = self._config
        return CoreAttention(
            config.attention_backend,
            kernels=config.flash_kernels,
            dropout_p=config.model.attention_dropout,
            random=self._random,
            fork=not self._tp.sequence_parallel,
            recompute="core_attn" in config.recompute_modules,
            buffer=self._tp.buffer,
            cp=self._cp,
        )

    def _latent_attention(self, name: str) -> LatentAttention:
        model, up = self._config.model, self._parameters.split_rows
        a, latent, h = model.num_attention_heads, model.kv_lora_rank, model.hidden_size
        query_width = a * self._config.query_width
        key_value_width = a * (model.qk_head_dim + model.v_head_dim)
        q_down = None if model.q_lora_rank is None else self._duplicated(f"{name}.q_down", model.q_lora_rank)
        return LatentAttention(
            Projections(
                q_down=q_down,
                q_norm=self.norm(model.q_lora_rank) if model.qk_layernorm and model.q_lora_rank else None,
                q_up=up(f"{name}.q_up", (query_width,), model.q_lora_rank or h, std=_INIT_STD),
                kv_down=self._duplicated(f"{name}.kv_down", latent + model.qk_pos_emb_head_dim),
                kv_norm=self.norm(latent) if model.qk_layernorm else None,
                kv_up=up(f"{name}.kv_up", (key_value_width,), latent, std=_INIT_STD),
            ),
            self._row(f"{name}.projection", a * model.v_head_dim),
            self._core(),
            widths=LatentWidths(latent, model.qk_head_dim, model.qk_pos_emb_head_dim, model.v_head_dim),
            rotary=self._rotary,
            tp=self._tp,
            recompute="mla_up_proj" in self._config.recompute_modules,
            fused_norms=model.transformer_impl == "transformer_engine",
            offload=self._offload,
        )

    def _duplicated(self, name: str, rows: int) -> torch.nn.Parameter:
        """Return a matrix that every rank holds alike and multiplies its own rows of the sequence by."""
        return self._parameters.whole(name, rows, self._config.model.hidden_size, std=_INIT_STD, sequence_parallel=True)

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

    def _mlp(self, name: str, f: int, fp8: Fp8Recipe | None = None) -> MLP:
        model = self._config.model
        return MLP(
            self._column(
                f"{name}.fc1", (f, f) if model.gated_linear_unit else (f,), bias=model.add_bias_linear, fp8=fp8
            ),
            self._row(f"{name}.fc2", f, fp8),
            activation=model.activation_func,
            is_gated=model.gated_linear_unit,
        )

    def _moe(self, name: str, num_experts: int, balance: Balance) -> MoE:
        model = self._config.model
        router = self._parameters.whole(
            f"{name}.router", num_experts, model.hidden_size, std=_INIT_STD, sequence_parallel=True
        )
        shared = model.moe_shared_expert_intermediate_size
        return MoE(
            Router(router, model, balance),
            self._experts(name, num_experts),
            None if shared is None else self._mlp(f"{name}.shared", shared),
            model=model,
            ep=self._ep,
            recompute_modules=self._config.recompute_modules,
            random=self._random,
        )

    def _experts(self, name: str, num_experts: int) -> GroupedExperts | SequentialExperts:
        model, h, local = self._config.model, self._config.model.hidden_size, num_experts // self._ep.size
        f, halves = self._config.expert_ffn_size, 2 if model.gated_linear_unit else 1
        mine = range(self._ep.rank * local, (self._ep.rank + 1) * local)
        tp = Shard(self._ep.tp_rank, self._ep.tp_size)
        form = ExpertForm(
            activation=model.activation_func,
            is_gated=model.gated_linear_unit,
            placeholders=self._tp.placeholders,
            recompute_activation="moe_act" in self._config.recompute_modules,
        )

        def fc1(experts: range | int) -> torch.nn.Parameter:
            shape = (halves * f, h)
            return self._parameters.experts(f"{name}.fc1", experts, shape, blocks=halves, dim=0, tp=tp, std=_INIT_STD)

        def fc2(experts: range | int) -> torch.nn.Parameter:
            shape = (h, f)
            return self._parameters.experts(f"{name}.fc2", experts, shape, blocks=1, dim=1, tp=tp, std=self._scaled_std)

        if model.moe_grouped_gemm:
            return GroupedExperts(fc1(mine), fc2(mine), form, self._offload)
        return SequentialExperts([fc1(expert) for expert in mine], [fc2(expert) for expert in mine], form)

    def _column(
        self, name: str, blocks: tuple[int, ...], *, bias: bool, fp8: Fp8Recipe | None = None
    ) -> ColumnParallelLinear:
        weight = self._parameters.split_rows(name, blocks, self._config.model.hidden_size, std=_INIT_STD)
        zeros = self._parameters.constant(0.0, weight.shape[0], tensor_parallel=True) if bias else None
        if fp8 is None:
            return ColumnParallelLinear(weight, zeros, self._tp)
        weight, copies = self._in_fp8(weight, fp8)
        return Fp8ColumnParallelLinear(weight, zeros, self._tp, copies, after_norm=True)

    def _row(
        self, name: str, columns: int, fp8: Fp8Recipe | None = None, *, keeps_input: bool = False
    ) -> RowParallelLinear:
        """Return a layer of ``columns`` inputs; ``keeps_input``: in 16 bits, as others do, where fp8 allows."""
        model = self._config.model
        weight = self._parameters.split_columns(name, model.hidden_size, columns, std=self._scaled_std)
        bias = (
            self._parameters.constant(0.0, model.hidden_size, sequence_parallel=True) if model.add_bias_linear else None
        )
        if fp8 is None:
            return RowParallelLinear(weight, bias, self._tp)
        weight, copies = self._in_fp8(weight, fp8)
        keeps_input = keeps_input and fp8.scaling != "delayed"
        return Fp8RowParallelLinear(weight, bias, self._tp, copies, keeps_input=keeps_input)

    def _in_fp8(self, weight: torch.nn.Parameter, fp8: Fp8Recipe) -> tuple[torch.nn.Parameter, Fp8Weight]:
        """Return what is trained, and what products read of it."""
        trained = fp8_parameter(weight, fp8) if self._config.precision.fp8_param else weight
        return trained, Fp8Weight(trained, fp8, self._observer)
