"""Arguments of other programs, and what importing them gives."""

from __future__ import annotations

from typing import Any

from oomscope.config.importers.command_lines import read_arguments
from oomscope.config.importers.importer import Imported, import_arguments

SHAPE = "--num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024"
"""Of Megatron-LM."""
BRIDGE = """
model:
  _target_: megatron.bridge.models.llama.Llama3ModelProvider
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  seq_length: 8192
  vocab_size: 128256
  should_pad_vocab: false
  normalization: RMSNorm
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  gated_linear_unit: true
  add_bias_linear: false
  position_embedding_type: rope
  rotary_base: 500000.0
  attention_backend: {_target_: megatron.core.transformer.enums.AttnBackend, _name_: flash, _call_: false}
  share_embeddings_and_output_weights: false
  tensor_model_parallel_size: 2
  sequence_parallel: true
  hidden_dropout: 0
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
  init_method_std: 0.02
  some_new_option: 3
  another_new_option: null
mixed_precision: bf16_mixed
train: {micro_batch_size: 1, global_batch_size: 64, train_iters: 100}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, grad_reduce_in_fp32: false}
optimizer: {lr: 3.0e-4, optimizer_cpu_offload: true, use_precision: null}
scheduler: {lr_decay_style: cosine}
checkpoint: {save: /ckpt}
"""
NEMO = """
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  tensor_model_parallel_size: 8
  megatron_amp_O2: %s
  activations_checkpoint_layers_per_pipeline: %s
  optim: {name: distributed_fused_adam, betas: [0.9, 0.95]}
  data:
    data_prefix: ???
"""


def imported(text: str, dialect: str | None = None) -> Imported:
    return import_arguments(read_arguments(text, "args"), dialect)


def values(result: Imported) -> dict[str, Any]:
    return {key: setting.value for key, setting in result.settings.items()}
