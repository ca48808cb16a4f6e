"""Mixtures of experts of transformers, whose loops ask which experts were chosen: python experts.py NAME."""

import sys

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, MixtralConfig, Qwen3MoeConfig

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
}
HEADS = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "q_lora_rank": 64, "kv_lora_rank": 64}
CONFIGURATIONS = {
    "mixtral": lambda: MixtralConfig(**SMALL, num_local_experts=8),
    "qwen3": lambda: Qwen3MoeConfig(
        **SMALL, head_dim=64, moe_intermediate_size=128, num_experts=32, num_experts_per_tok=4
    ),
    "deepseek": lambda: DeepseekV3Config(
        **SMALL,
        **HEADS,
        moe_intermediate_size=128,
        n_routed_experts=32,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
    ),
}
configuration = CONFIGURATIONS[sys.argv[1]]()
model = AutoModelForCausalLM.from_config(configuration, experts_implementation="eager").cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.randint(0, 1000, (2, 1024)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
