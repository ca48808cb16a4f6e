"""DeepSpeed's ZeRO of a given stage on one rank, with torch's Adam."""

import os
import sys

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
import deepspeed
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": int(sys.argv[1])},
    },
)
for _ in range(3):
    loss = engine(torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
